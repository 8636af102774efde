"""What goes wrong with keys and roots on the workstation."""

from __future__ import annotations

from edgekit_runtime.errors import EdgekitError

__all__ = ["KeysError"]


class KeysError(EdgekitError):
    """A key cannot be made, found or used, or a root.json cannot be changed as asked."""

    code = "keys"
