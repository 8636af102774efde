"""Do bundles open and answer in the memory of a small board? In fresh processes, under a cap that the kernel enforces.

    .venv/bin/python benchmarks/runtime/memory_cap.py demo/bundles/*.ekb

- `address space`: RLIMIT_AS, which counts everything that is mapped, used or not: stricter than a board's RAM for one
  process, and blind to the child that tests a bundle when it is opened for the first time;
- `cgroup`: a memory cgroup around the process and its children, where this user may make one: what a board has to give
  in all.

Nothing is known of a bundle when it is opened here, so that the child runs. Every answer must equal the one without a
cap, and the process's own high-water mark must lie below it. x86-64 figures: on ARM the libraries are smaller, and
nobody measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from edgekit.bench.conditions import conditions

CAPS_MB = (512, 1024)
WAYS = ("none", "address space", "cgroup")
_MIB = 1 << 20
_PROGRAM = """
import sys, json, hashlib
from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.reader import read_bundle
bundle = read_bundle(sys.argv[1])
inputs = [bundle.golden_items(golden) for golden in bundle.manifest.golden]
digest = hashlib.sha256()
with open_bundle(sys.argv[1], cache=False) as model:
    for _ in range(10):
        for item in inputs:
            answer = model.predict(item)
            for name in sorted(answer.outputs):
                digest.update(answer.outputs[name].tobytes())
    said = model.describe()
lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "recipe": said["recipe"], "engine": said["engine"]["name"], "answers": digest.hexdigest(),
    "peak_rss_mb": int(lines["VmHWM"].split()[0]) / 1024, "peak_mapped_mb": int(lines["VmPeak"].split()[0]) / 1024,
}))
"""


@dataclass(frozen=True)
class Run:
    """MiB. together_mb: of the process and its children, None where no cgroup counted them. error: why it did not
    answer.
    """

    cap_mb: int | None
    way: str
    recipe: str = ""
    engine: str = ""
    answers: str = ""
    peak_rss_mb: float | None = None
    peak_mapped_mb: float | None = None
    together_mb: float | None = None
    error: str = ""

    @property
    def held(self) -> bool:
        return not self.error and (self.cap_mb is None or (self.together_mb or self.peak_rss_mb or 0) <= self.cap_mb)


def run(path: Path, cap_mb: int | None, way: str) -> Run | None:
    """One fresh process under one cap; None where this user may not make a cgroup. Never raises for what the child
    does.
    """
    with contextlib.ExitStack() as stack:
        state = stack.enter_context(tempfile.TemporaryDirectory())
        group = stack.enter_context(cgroup(cap_mb)) if way == "cgroup" and cap_mb is not None else None
        if way == "cgroup" and group is None:
            return None
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(path)],
            env={**os.environ, "EDGEKIT_STATE_DIR": state, "OPENBLAS_NUM_THREADS": "1"},
            preexec_fn=_enter(group, cap_mb if way == "address space" else None),
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        together = None if group is None else group.peak_mb()
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        return Run(cap_mb, way, together_mb=together, error=lines[-1])
    return Run(cap_mb, way, together_mb=together, **json.loads(done.stdout))


def _enter(group: Cgroup | None, address_space_mb: int | None) -> Callable[[], None]:
    def enter() -> None:
        if group is not None:
            (group.folder / "cgroup.procs").write_text(str(os.getpid()))
        if address_space_mb is not None:
            resource.setrlimit(resource.RLIMIT_AS, (address_space_mb * _MIB, address_space_mb * _MIB))

    return enter


@dataclass(frozen=True)
class Cgroup:
    """peak: the file of the most there was, of version 1 or 2."""

    folder: Path
    peak: str

    def peak_mb(self) -> float | None:
        try:
            return int((self.folder / self.peak).read_text()) / _MIB
        except (OSError, ValueError):
            return None


@contextlib.contextmanager
def cgroup(cap_mb: int) -> Iterator[Cgroup | None]:
    """A memory cgroup with that limit, gone afterwards; None where there is none to be had."""
    roots = {
        "/sys/fs/cgroup/memory": ("memory.limit_in_bytes", "memory.max_usage_in_bytes"),
        "/sys/fs/cgroup": ("memory.max", "memory.peak"),
    }
    for root, (limit, peak) in roots.items():
        folder = Path(root) / f"edgekit-cap-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit).write_text(str(cap_mb * _MIB))
            (folder / peak).read_text()
        except OSError:
            folder.rmdir()
            continue
        try:
            yield Cgroup(folder, peak)
        finally:
            _remove(folder)
        return
    yield None


def _remove(folder: Path) -> None:
    """A group is busy for a moment after the last of its processes was reaped."""
    for _ in range(100):
        try:
            folder.rmdir()
        except OSError:
            time.sleep(0.05)
        else:
            return


def rows(path: Path) -> list[Run]:
    plain = run(path, None, "none")
    assert plain is not None
    capped = [run(path, cap, way) for cap in CAPS_MB for way in ("address space", "cgroup")]
    return [plain, *(found for found in capped if found is not None)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("bundles", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/runtime_memory_cap.json"))
    options = parser.parse_args()
    tables = {path.name: rows(path.absolute()) for path in options.bundles}
    good = True
    for name, found in tables.items():
        print(f"\n{name}: {found[0].recipe}, {found[0].engine}")
        print(f"  {'cap, MiB':<10}{'way':<16}{'resident':>10}{'mapped':>10}{'with child':>12}  same answers")
        for one in found:
            same = not one.error and one.answers == found[0].answers
            good &= one.held and same
            print(f"  {one.cap_mb or '-':<10}{one.way:<16}{_mb(one.peak_rss_mb):>10}{_mb(one.peak_mapped_mb):>10}"
                  f"{_mb(one.together_mb):>12}  {one.error or ('yes' if same else 'NO')}")  # fmt: skip
    value = {
        "conditions": conditions(),
        "tables": {name: [asdict(one) for one in found] for name, found in tables.items()},
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(value, indent=2) + "\n")
    print(f"\nwritten to {options.output}", file=sys.stderr)
    return 0 if good else 1


def _mb(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


if __name__ == "__main__":
    sys.exit(main())
