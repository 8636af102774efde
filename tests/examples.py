"""How many examples hypothesis tries.

Where the runtime's suite runs again, on another Python or another engine, EDGEKIT_TEST_EXAMPLES says which share of them is
enough: what the examples search is the same code, and what differs there differs for most of them.
"""

from __future__ import annotations

import os

__all__ = ["examples", "share_profile"]

SHARE = float(os.environ.get("EDGEKIT_TEST_EXAMPLES", "1"))


def examples(all_of_them: int) -> int:
    """Of so many, at least ten."""
    return max(10, round(all_of_them * SHARE))


def share_profile() -> None:
    """For the tests that name no number."""
    if SHARE == 1:
        return
    from hypothesis import settings

    settings.register_profile("share", settings.default, max_examples=examples(settings.default.max_examples))
    settings.load_profile("share")
