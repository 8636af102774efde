"""A process that fuzzes one target with atheris, libFuzzer's Python: guided by the branches of the target's own
packages.

    python -m fuzz.atheris_run window --runs 100000 --found /tmp/found --figures /tmp/window.json

It ends by itself after so many executions, or seconds, and leaves its figures; at the first input that breaks the
oracle it leaves that input beside them and ends with another code. Beside what `judge` asserts, the process's peak of
memory may grow by MOST_EXTRA_MB over what it was when the seeds had been read.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from random import Random

import atheris


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz.atheris_run")
    parser.add_argument("target")
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--found", type=Path, required=True, help="a folder: what reached something new is kept there")
    parser.add_argument("--figures", type=Path, required=True)
    return parser.parse_args()


class _Loop:
    """What libFuzzer calls."""

    def __init__(self, asked: argparse.Namespace) -> None:
        from fuzz.target import MOST_EXTRA_MB, OracleError, judge, mutated
        from fuzz.targets import target

        self._judge, self._mutated, self._error, self._most = judge, mutated, OracleError, MOST_EXTRA_MB
        self._asked = asked
        self.target = target(asked.target)
        self.outcomes: Counter[str] = Counter()
        self._slowest, self._began, self._processor = 0.0, time.monotonic(), time.process_time()
        for seed in self.target.seeds():
            self._judge(self.target, seed)
        self._base = _peak_mb()
        self._random = Random(asked.seed)

    def one(self, data: bytes) -> None:
        start = time.thread_time()
        outcome = self._judge(self.target, data)
        self._slowest = max(self._slowest, time.thread_time() - start)
        self.outcomes[outcome] += 1
        extra = _peak_mb() - self._base
        if extra > self._most:
            raise self._error(f"memory grew by {extra:.0f} MB")
        count = self.outcomes.total()
        if count >= self._asked.runs or (count % 256 == 0 and time.monotonic() - self._began > self._asked.seconds):
            self.tell()
            os._exit(0)  # libFuzzer would go on for its own count, and ends without Python's leave

    def mutate(self, data: bytes, most: int, seed: int) -> bytes:
        self._random.seed(seed)
        if self._random.random() < 0.2:
            return bytes(atheris.Mutate(data, most))
        return self._mutated(self.target, data, self._random)[:most]

    def tell(self) -> None:
        processor = time.process_time() - self._processor
        count = self.outcomes.total()
        figures = {
            "executions": count,
            "outcomes": dict(self.outcomes.most_common()),
            "processor_s": round(processor, 1),
            "per_processor_second": round(count / processor),
            "slowest_ms": round(self._slowest * 1000, 1),
            "extra_mb": round(_peak_mb() - self._base, 1),
        }
        self._asked.figures.write_text(json.dumps(figures))


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    asked = _arguments()
    warnings.simplefilter("ignore")
    tests = Path(__file__).parents[1] / "tests"
    sys.path[:0] = [str(tests / "support"), str(tests)]
    from fuzz.archive import kept
    from fuzz.targets import INSTRUMENTS

    with atheris.instrument_imports(include=list(INSTRUMENTS[asked.target])):
        loop = _Loop(asked)
    asked.found.mkdir(parents=True, exist_ok=True)
    for data in (*loop.target.seeds(), *kept(asked.target)):
        (asked.found / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    options = [
        f"-max_len={loop.target.most_bytes}",
        f"-artifact_prefix={asked.figures.parent}/{asked.target}-",
        f"-seed={asked.seed + 1}",
        "-rss_limit_mb=4096",
        "-mutate_depth=2",
        "-reduce_inputs=0",
        "-timeout=120",  # of the wall's clock, for what never ends; the oracle counts processor time
    ]
    atheris.Setup([sys.argv[0], *options, str(asked.found)], loop.one, custom_mutator=loop.mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
