"""What is made once for a whole run, by whichever of its processes asks for it first.

    folder = once(request, "digits", lambda folder: train(folder / "digits.keras"))

Rules: who asks meanwhile waits; what could not be made is made anew by the next who asks; nobody changes what is there:
a test that would takes a copy.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def once(request: pytest.FixtureRequest, name: str, make: Callable[[Path], object]) -> Path:
    """A folder of this run, filled by `make(folder)`."""
    own = request.getfixturevalue("tmp_path_factory").getbasetemp()
    # Only xdist tells a worker that it is one; a run inside a test has a folder of its own, whatever the environment
    # says.
    folder = (own.parent if hasattr(request.config, "workerinput") else own) / "once" / name
    made = folder.with_name(f"{name}.made")
    folder.parent.mkdir(exist_ok=True)
    with _alone(folder.with_name(f"{name}.lock")):
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            made.touch()
    return folder


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """No other process is in here; it ends with the process that holds it, however that ends."""
    with path.open("w") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        except ImportError:  # on Windows the tests are not run by several processes
            pass
        yield
