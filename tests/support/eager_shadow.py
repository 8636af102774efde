"""The process of a shadow at the usual priority: on a busy machine the lowest one may wait for minutes."""

from __future__ import annotations

import sys

from edgekit_runtime.install import shadow_child


def use(monkeypatch) -> None:
    """Let models that are opened from now on use it."""
    from edgekit_runtime.install import open_active

    monkeypatch.setattr(open_active, "SHADOW_CHILD", "eager_shadow")


if __name__ == "__main__":
    shadow_child.give_way = lambda: None
    sys.exit(shadow_child.main(sys.argv[1:]))
