"""The disk tier's hits, misses and writes against those of another checkout, two processes on one file.

    git worktree add ../before <commit>
    .venv/bin/python benchmarks/runtime/disk_hits.py ../before/runtime [--rounds 15]

Each checkout has a file of its own with as many answers as half of its bound holds, opened by two processes: one reads,
the other reads and writes meanwhile. Writing is timed alone. The rounds alternate between the checkouts; the ratio is
the median over rounds of this checkout's median by the other's in the same round.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
from io import FileIO
from pathlib import Path
from time import perf_counter_ns
from typing import IO, Any

import numpy as np

SIZES = (1_000, 10_000, 100_000, 1_000_000)
BOUND = 256 << 20
MOST = 20_000
READS = 400
HERE = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("before", type=Path, help="the folder `runtime` of the other checkout")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("-o", "--output", type=Path, default=HERE / "benchmarks/results/runtime_disk_hits.json")
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    from edgekit.bench.conditions import conditions

    found: dict[str, Any] = {"title": "the disk tier beside that of another checkout", "conditions": conditions()}
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            found[f"{size} bytes"] = row = beside(options.before, size, options.rounds, Path(folder))
        print(f"{size:>9,} bytes  " + "  ".join(f"{name} {value:,.2f}" for name, value in row.items()), flush=True)
    options.output.write_text(json.dumps(found, indent=2) + "\n")


def beside(before: Path, size: int, rounds: int, folder: Path) -> dict[str, float]:
    """Microseconds, and ratios to the other checkout."""
    children = {name: _Child(runtime, size, folder / name) for name, runtime in _ways(before)}
    writers = {name: _Child(runtime, size, folder / name, "disturb") for name, runtime in _ways(before)}
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in children}
    for turn in range(rounds + 1):
        for name in sorted(children, reverse=turn % 2 == 1):
            writers[name].say("go")
            figures = children[name].ask("measure")
            writers[name].ask("stop")
            figures |= children[name].ask("write")
            if turn:  # the first warms up
                taken[name].append(figures)
    for child in (*children.values(), *writers.values()):
        child.end()
    row = {}
    for what in taken["now"][0]:
        now, then = ([one[what] for one in taken[name]] for name in ("now", "before"))
        row[what] = statistics.median(now)
        row[f"{what}_before"] = statistics.median(then)
        row[f"{what}_ratio"] = statistics.median(a / b for a, b in zip(now, then, strict=True))
    return row


def _ways(before: Path) -> list[tuple[str, Path]]:
    return [("before", before), ("now", HERE / "runtime")]


class _Child:
    def __init__(self, runtime: Path, size: int, path: Path, role: str = "measure") -> None:
        command = [sys.executable, __file__, "--child", role, str(path), str(size)]
        environment = os.environ | {"PYTHONPATH": str(runtime.resolve())}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._in: IO[str] = self._process.stdin  # type: ignore[assignment]
        self._out: IO[str] = self._process.stdout  # type: ignore[assignment]
        assert self._out.readline() == "ready\n"

    def say(self, word: str) -> None:
        self._in.write(word + "\n")
        self._in.flush()

    def ask(self, word: str) -> Any:
        self.say(word)
        return json.loads(self._out.readline())

    def end(self) -> None:
        self._in.close()
        self._process.wait(60)


def child(role: str, path: str, size: int) -> None:
    from edgekit_runtime.cache.disk import DiskCache
    from edgekit_runtime.cache.memory_tier import MISS
    from edgekit_runtime.cache.stored_answers import KeptForm

    outputs = {"probs": np.random.default_rng(0).random(size // 4, np.float32)}
    outputs["probs"].flags.writeable = False
    entries = min(MOST, BOUND // 2 // (size + 4096))
    tier = DiskCache(path, KeptForm(b"model"), max_bytes=BOUND, batch_s=0.05)
    rng = np.random.default_rng(1)
    if role == "measure":
        for number in range(entries):
            while not tier.put(key_of(number), outputs):
                tier.sync()
        tier.sync()
    print("ready", flush=True)
    turn = 0
    words = FileIO(0)  # without a buffer, so that `select` sees every word
    for word in words:
        if word == b"measure\n":
            order = rng.integers(0, entries, READS).tolist()
            hits = [timed(lambda i=i: tier.get(key_of(i)) is not MISS) for i in order]
            misses = [timed(lambda i=i: tier.get(key_of(-1 - i)) is MISS) for i in order]
            print(json.dumps({"hit_us": statistics.median(hits), "miss_us": statistics.median(misses)}), flush=True)
        elif word == b"write\n":
            turn += 1
            most = min(256, max(1, (4 << 20) // size))
            before, start = written_bytes(), perf_counter_ns()
            for number in range(most):
                tier.put(key_of(entries + turn * 256 + number), outputs)
            tier.sync()
            taken = (perf_counter_ns() - start) / 1e3
            print(json.dumps({"write_us": taken / most, "written": (written_bytes() - before) / most}), flush=True)
        elif word == b"go\n":
            disturb(tier, outputs, entries, words)


def disturb(tier: Any, outputs: Any, entries: int, words: FileIO) -> None:
    """Write and read until the next word."""
    number = 10**9
    rng = np.random.default_rng()
    while not select.select([words], [], [], 0)[0]:
        number += 1
        tier.put(key_of(number % 2000 + 10**9), outputs)
        tier.get(key_of(int(rng.integers(0, entries))))
        select.select([words], [], [], 2e-7 * max(10_000, outputs["probs"].nbytes))
    words.readline()
    print("0", flush=True)


def timed(call: Any) -> float:
    start = perf_counter_ns()
    held = call()
    taken = (perf_counter_ns() - start) / 1e3
    assert held
    return taken


def written_bytes() -> int:
    return next(int(line.split()[1]) for line in Path("/proc/self/io").read_text().splitlines() if "wchar" in line)


def key_of(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
