"""Which inputs are kept: for each target a few that between them reach what was ever reached.

    # choose the fewest of the archive's inputs and the folder's, and write them
    python -m fuzz.choose window /tmp/found

Chosen is by what an input reaches: the lines of the target's own packages, and the sentence of the refusal without its
figures. Smaller inputs come first.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from fuzz.archive import keep, kept
from fuzz.target import Target, judge
from fuzz.targets import INSTRUMENTS, target

_MOST = 60


def chosen(one: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """As few as reach everything that all of them reach, in the order of their size; at most 60."""
    seen: set[Any] = set()
    found = []
    for data in sorted(set(inputs), key=lambda data: (len(data), data)):
        reached = _reached(one, data)
        if not reached <= seen and len(found) < _MOST:
            seen |= reached
            found.append(data)
    return found


def _reached(one: Target, data: bytes) -> set[Any]:
    parts = tuple(name.replace(".", "/") for name in INSTRUMENTS[one.name])
    lines: set[Any] = set()
    ours: dict[str, bool] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if file not in ours:
            ours[file] = any(f"/{part}/" in file or file.endswith(f"/{part}.py") for part in parts)
        if not ours[file]:
            return None
        lines.add((file, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        outcome = judge(one, data)
        try:
            one.read(data)
        except one.refusals as error:
            lines.add((outcome, re.sub(r"\d+|'[^']*'|\"[^\"]*\"", "_", error.what)[:40]))
        else:
            lines.add((outcome, len(data) // 512))
    finally:
        sys.settrace(None)
    return lines


def _files(folders: Iterable[str]) -> Iterator[bytes]:
    for folder in folders:
        for path in Path(folder).iterdir():
            yield path.read_bytes()


def main() -> None:
    name, *folders = sys.argv[1:]
    one = target(name)
    inputs = chosen(one, [*one.seeds(), *kept(name), *_files(folders)])
    print(f"{name}: {len(inputs)} inputs, {keep(name, inputs):,} bytes")


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    tests = Path(__file__).parents[1] / "tests"
    sys.path[:0] = [str(tests / "support"), str(tests)]
    main()
