"""How many instructions one inference takes on an emulated processor.

    counts = count(land, site, CPUS["cortex-a76"], [Model("int8", "tflite", "litert", Path("net_int8.tflite"))])
    counts["int8"].all, counts["int8"].dot

Rules: a count is never turned into time: INT8 also moves a quarter of the bytes, and instructions differ in what they
cost.
It is good for three things: a ratio, labelled "instructions, emulated"; a gate against regressions, for it repeats
within 0.01 %; and proof of which kernels ran (`dot` is the INT8 dot product that a Cortex-A76 has and an A72 has not).

One thread only. Needs a QEMU that takes plugins (Debian 12's qemu-user; not qemu-user-static, nor Debian 13's), and
gcc.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit.boards.emulated_board import EmulationError, EmulatorMissingError, QemuCpu
from edgekit.boards.emulated_replay import ask
from edgekit.boards.qemu import INSTALL, EmulatedBoard, emulator
from edgekit.boards.userland import Userland, cache_root, make_folder

KINDS = Path(__file__).with_name("counting.py").absolute()
"""For `ask`: the kind of `tasks_for`."""


@dataclass(frozen=True)
class Model:
    """What to run. name: how the result is keyed. format, engine: as `edgekit_runtime` names them."""

    name: str
    format: str
    engine: str
    path: Path


@dataclass(frozen=True)
class Instructions:
    """Of one inference. all: every instruction. loadstore, simd: of these kinds; fmla, dot, mmla: of the latter.

    On 32-bit ARM only `all` is counted, the others are 0. engine: with its version.
    """

    engine: str
    all: int
    loadstore: int
    simd: int
    fmla: int
    dot: int
    mmla: int


def count(
    land: Userland, site: Path, cpu: QemuCpu, models: Sequence[Model], *, cache_dir: Path | None = None
) -> dict[str, Instructions]:
    """Instructions of one inference of each model, in one start of Python. Raises EmulationError."""
    options = plugin_options(land, cache_dir=cache_dir)
    with EmulatedBoard(land, cpu, site=site) as machine:
        told = ask(machine, tasks_for(models), timeout_s=500.0, options=options, kinds=KINDS)
    if told.finished.code != 0:
        raise EmulationError(
            f"the counted program {told.finished.ended}: {told.finished.tail}", where=f"{land.image}, {cpu.name}"
        )
    return counted(models, told.answers, told.finished.err)


def tasks_for(models: Sequence[Model]) -> list[dict[str, Any]]:
    """For `ask`, with `plugin_options`; other tasks may come before and after."""
    return [
        {"kind": "count", "model": str(model.path.absolute()), "format": model.format, "engine": model.engine,
         "first_mark": 2 * index}
        for index, model in enumerate(models)
    ]  # fmt: skip


def counted(models: Sequence[Model], answers: Sequence[Mapping[str, Any]], err: str) -> dict[str, Instructions]:
    """By the models' names. answers: those to their tasks. err: what the board's program wrote to stderr. Pure."""
    between = _marks(err)
    return {
        model.name: Instructions(f"{answer['engine']} {answer['version']}", **between[2 * index + 1])
        for index, (model, answer) in enumerate(zip(models, answers, strict=True))
    }


def plugin_options(land: Userland, *, cache_dir: Path | None = None) -> list[str]:
    """QEMU's options that load the counter, which is compiled the first time. Raises EmulatorMissingError."""
    binary = emulator(land.image)
    if binary.name.endswith("-static"):
        raise EmulatorMissingError(f"{binary.name} takes no plugins: nothing can be counted", do=f"Run: {INSTALL}")
    source = Path(__file__).with_name("insn.c")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    folder = make_folder(
        cache_root(cache_dir), f"plugin/{digest}", lambda draft: _compile(source, draft / "libinsn.so")
    )
    return ["-plugin", str(folder / "libinsn.so"), "-d", "plugin"]


def _compile(source: Path, library: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise EmulatorMissingError("a C compiler is not installed", do="Run: sudo apt-get install gcc libc6-dev")
    command = [compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise EmulationError(
            f"the instruction counter cannot be compiled: {said}", do="Run: sudo apt-get install gcc libc6-dev"
        )


def _marks(text: str) -> dict[int, dict[str, int]]:
    """Mark -> counts since the mark before."""
    found = {}
    for line in re.finditer(r"^INSN (\d+) (.+)$", text, re.MULTILINE):
        found[int(line[1])] = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", line[2])}
    return found
