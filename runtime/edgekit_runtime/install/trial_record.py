"""What an application has seen of a generation on trial, kept from one start to the next.

    write_seen(root, 4, read_seen(root, 4).plus(seen))

Rule: a record that cannot be read counts as nothing seen: the trial only takes longer.
"""

from __future__ import annotations

from edgekit_runtime.bundle.codec import json_text, read_json
from edgekit_runtime.errors import EdgekitError
from edgekit_runtime.install.disk import read_text, write_file
from edgekit_runtime.install.layout import Root
from edgekit_runtime.install.promise import Seen

__all__ = ["read_seen", "write_seen"]


def read_seen(root: Root, number: int) -> Seen:
    try:
        text = read_text(root.generation(number) / "trial.json")
        return Seen() if text is None else read_json(Seen, text, "trial.json")
    except (ValueError, EdgekitError):
        return Seen()


def write_seen(root: Root, number: int, seen: Seen) -> None:
    """Under the lock. Raises StorageError."""
    write_file(root.generation(number) / "trial.json", json_text(seen))
