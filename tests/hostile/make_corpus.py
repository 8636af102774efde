"""The corpus of good and bad bundles, written under build/ by the first test that needs it.

good/    what is opened: signed, by two, by nobody
bad/     GROUP-NAME.ekb: what is refused, by the groups of docs/security.md
*.json   whom they trust

`python tests/hostile/make_corpus.py` writes corpus.sha256 anew, with the digest of each file: a test compares, so that
no change of the generator goes unnoticed.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIGESTS = Path(__file__).with_name("corpus.sha256")


def corpus() -> dict[str, bytes]:
    """Path below the corpus' folder -> content."""
    from hostile.cases import CASES, GOOD, ROOTS

    good = {f"good/{name}": make() for name, make in GOOD.items()}
    bad = {f"bad/{case.file}": case.make() for case in CASES}
    return {**{name: make() for name, make in ROOTS.items()}, **good, **bad}


def digests(files: dict[str, bytes]) -> str:
    """As `sha256sum` writes them."""
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items()))


def _folder() -> Path:
    """The corpus with the digests that are checked in, written if it is not there yet."""
    folder = ROOT / "build" / f"hostile-{hashlib.sha256(DIGESTS.read_bytes()).hexdigest()[:12]}"
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        own = Path(tempfile.mkdtemp(dir=folder.parent))
        for name, data in corpus().items():
            (own / name).parent.mkdir(exist_ok=True)
            (own / name).write_bytes(data)
        try:
            own.rename(folder)
        except OSError:  # another process was quicker
            shutil.rmtree(own)
    return folder


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests")]
    DIGESTS.write_text(digests(corpus()))
else:
    CORPUS = _folder()
