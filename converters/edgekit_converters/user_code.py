"""A person's own module, named as `module:function` from the folder that edgekit runs in."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def working_folder_on_path() -> Iterator[None]:
    """Let modules of the working folder be imported, as `python -m` does.
    A console script does not."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
