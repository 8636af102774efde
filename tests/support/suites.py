"""Every suite, though one fails; then one summary.

    python tests/support/suites.py                    what `make test-all` runs
    python tests/support/suites.py fast python-3.12   some of them

The fast and the slow one use several processes and run one after the other. All others use one and run beside each
other, three at a time: one waits for downloads, installs or ends while others compute, and their output comes when they
are done. A suite is a make target that writes a JUnit report to build/reports, and maybe a report of its
coverage. A few tests that failed run again, alone: what passes then failed by the load of the machine, and the summary
names it. The summary has a line a suite, the slowest tests of all of them (build/reports/slowest.txt), and the sum as
its last line. Exit 1 if a suite failed or, in CI, could not run.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "build" / "reports"
SUITES = {
    "fast": "test",
    "slow": "test-slow",
    "python-3.13": "test-python-3.13",
    "python-3.12": "test-python-3.12",
    "interop": "test-interop",
    "python-3.10": "test-python-3.10",
    "tflite-runtime": "test-tflite-runtime",
    "openvino": "test-openvino",
    "llm": "test-llm",
    "tensorrt-rtx": "test-tensorrt-rtx",
    "onnx-tflite": "test-onnx-tflite",
    "torch": "test-torch",
}
"""Name -> the make target that runs it. It writes NAME.xml, or NAME.left-out with the reason why it cannot run here.

Of those that run beside each other the long ones come first."""
MOST_PROCESSOR_S = {"fast": 1500.0}
"""What a suite may take of all processors, which other load changes little: six minutes on two cores are 600 s of them,
and a core may be 2.5 times slower. A suite that takes more has tests that belong into SLOW (tests/conftest.py)."""
BESIDE = tuple(name for name in SUITES if name not in ("fast", "slow"))
"""Each uses one process."""
AT_ONCE = 3
SECOND_LOOK = 3
"""So many failed tests in all run again. More are no accident."""
SLOWEST = 50


@dataclass(frozen=True)
class Outcome:
    """counts: of passed, failed and skipped tests. tests: (seconds, name). reason: why it did not run here, if it did
    not.

    covered: per cent of statements and branches, where it was measured. processor_s: of a suite that has a limit.
    unsteady: tests that failed, and passed alone.
    """

    suite: str
    code: int
    seconds: float
    counts: Counter[str] = field(default_factory=Counter)
    tests: tuple[tuple[float, str], ...] = ()
    reason: str = ""
    covered: float | None = None
    processor_s: float = 0.0
    unsteady: tuple[str, ...] = ()

    def line(self) -> str:
        if self.reason:
            return f"{self.suite:15} left out: {self.reason}"
        counts = ", ".join(f"{self.counts[kind]} {kind}" for kind in ("passed", "failed", "skipped"))
        broken = "" if self.code == 0 or self.counts["failed"] else f"  (exit code {self.code} without a failed test)"
        covered = "" if self.covered is None else f", {self.covered:.1f} % covered"
        limit = MOST_PROCESSOR_S.get(self.suite)
        late = "" if limit is None else f", {self.processor_s:.0f} of {limit:.0f} s of the processors"
        unsteady = "".join(f"\n{'':15} unsteady, passed alone: {name}" for name in self.unsteady)
        return f"{self.suite:15} {counts} in {self.seconds:.0f} s{late}{covered}{broken}{unsteady}"

    def failed(self, *, ci: bool) -> bool:
        late = self.processor_s > MOST_PROCESSOR_S.get(self.suite, math.inf)
        return self.code != 0 or (ci and (late or bool(self.reason)))


def run_all(suites: Sequence[str]) -> list[Outcome]:
    """In their order, those of BESIDE last."""
    beside = [suite for suite in suites if suite in BESIDE]
    outcomes = [run(suite) for suite in suites if suite not in beside]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return outcomes + list(pool.map(lambda suite: run(suite, shown=len(beside) < 2), beside))


def run(suite: str, *, shown: bool = True) -> Outcome:
    """One suite. shown: its output as it comes, not when it is done."""
    report, left_out, coverage = (REPORTS / f"{suite}.{end}" for end in ("xml", "left-out", "coverage.json"))
    for file in (report, left_out, coverage):
        file.unlink(missing_ok=True)
    started, before = time.monotonic(), _children_s()
    command, environ = _command(suite, *(["JOBS=1"] if suite in BESIDE else []))
    if shown:
        code = subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode
    else:
        done = subprocess.run(
            command, cwd=ROOT, env=environ, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        code = done.returncode
        print(done.stdout, flush=True)
    seconds = time.monotonic() - started
    if left_out.exists():
        return Outcome(suite, code, seconds, reason=left_out.read_text().strip())
    counts, tests = read_report(report)
    covered = json.loads(coverage.read_text())["totals"]["percent_covered"] if coverage.exists() else None
    used = _children_s() - before if suite in MOST_PROCESSOR_S else 0.0
    return Outcome(suite, code or int(not counts), seconds, counts, tests, covered=covered, processor_s=used)


def look_again(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Failed tests run once more with nothing beside them, if they are few."""
    few = sum(outcome.counts["failed"] for outcome in outcomes) <= SECOND_LOOK
    return [_alone(outcome) if few and outcome.counts["failed"] else outcome for outcome in outcomes]


def _alone(outcome: Outcome) -> Outcome:
    appended = () if outcome.covered is None else ("--cov-append",)
    command, environ = _command(outcome.suite, "JOBS=1", "FAST_JOBS=1", options=("--last-failed", *appended))
    code = subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode
    again, tests = read_report(REPORTS / f"{outcome.suite}.xml")
    if code or again["passed"] != outcome.counts["failed"]:
        return outcome
    counts = outcome.counts + Counter(passed=again["passed"]) - Counter(failed=again["passed"])
    return replace(outcome, code=0, counts=counts, unsteady=tuple(name for _, name in tests))


def _command(suite: str, *settings: str, options: Sequence[str] = ()) -> tuple[list[str], dict[str, str]]:
    """What runs a suite, and its environment. pytest keeps what failed in a folder of the suite."""
    asked = (os.environ.get("PYTEST_ADDOPTS", ""), "-o", f"cache_dir={REPORTS / suite}.cache", *options)
    return ["make", "--no-print-directory", SUITES[suite], *settings], os.environ | {"PYTEST_ADDOPTS": " ".join(asked)}


def _children_s() -> float:
    """Processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read_report(path: Path) -> tuple[Counter[str], tuple[tuple[float, str], ...]]:
    """What a JUnit report holds; nothing where the suite ended before it wrote one."""
    counts: Counter[str] = Counter()
    tests: list[tuple[float, str]] = []
    if path.exists():
        for case in ET.parse(path).getroot().iter("testcase"):
            kinds = {child.tag for child in case}
            kind = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
            counts[kind] += 1
            tests.append((float(case.get("time", 0)), f"{case.get('classname', '')}::{case.get('name', '')}"))
    return counts, tuple(tests)


def summary(outcomes: Iterable[Outcome]) -> str:
    """A line a suite; the last line is the sum: 'N passed, N failed, N skipped'."""
    outcomes = list(outcomes)
    total: Counter[str] = Counter()
    for outcome in outcomes:
        total += outcome.counts
    lines = [outcome.line() for outcome in outcomes]
    return "\n".join([*lines, f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped"])


def slowest(outcomes: Iterable[Outcome]) -> str:
    """The slowest tests of all suites, a line each."""
    tests = [(seconds, outcome.suite, name) for outcome in outcomes for seconds, name in outcome.tests]
    return "\n".join(
        f"{seconds:8.2f} s  {suite}  {name}" for seconds, suite, name in sorted(tests, reverse=True)[:SLOWEST]
    )


def main(names: Sequence[str]) -> int:
    unknown = sorted(set(names) - set(SUITES))
    if unknown:
        print(f"no such suite: {', '.join(unknown)}; there are {', '.join(SUITES)}", file=sys.stderr)
        return 2
    REPORTS.mkdir(parents=True, exist_ok=True)
    outcomes = look_again(run_all(list(names or SUITES)))
    (REPORTS / "slowest.txt").write_text(slowest(outcomes) + "\n")
    print(f"\nthe slowest tests:\n{slowest(outcomes)}\n\n{summary(outcomes)}", flush=True)
    return int(any(outcome.failed(ci=os.environ.get("CI") == "true") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
