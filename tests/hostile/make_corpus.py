"""Writes the corpus of good and bad bundles: `python tests/hostile/make_corpus.py`. A test regenerates it and compares.

corpus/good/    what is opened: signed, by two, by nobody
corpus/bad/     GROUP-NAME.ekb: what is refused, by the groups of docs/security.md
corpus/*.json   whom they trust
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def corpus() -> Iterator[tuple[str, bytes]]:
    """(path below corpus/, content)."""
    from hostile.cases import CASES, GOOD, ROOTS

    yield from ((name, make()) for name, make in ROOTS.items())
    yield from ((f"good/{name}", make()) for name, make in GOOD.items())
    yield from ((f"bad/{case.file}", case.make()) for case in CASES)


def main() -> None:
    import shutil

    shutil.rmtree(CORPUS, ignore_errors=True)
    total = 0
    for name, data in corpus():
        path = CORPUS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        total += len(data)
    print(f"{total:,} bytes in {sum(1 for _ in CORPUS.rglob('*.*'))} files")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
