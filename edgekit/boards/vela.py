"""Arm's compiler Vela and its report of a TFLite artifact, as the check for an Ethos-U.

    report = check_ethos_u(Path("net.ekb"), "ethos-u65-256")
    report.networks[0].npu, report.networks[0].inference_ms

Rules:
- Vela runs in a sandbox: one folder, no network, bounded memory, files and time;
- times and sizes are Vela's estimate, for the system that it assumes by default;
- operators that it leaves to the processor are counted, each with Vela's reason.
"""

from __future__ import annotations

import csv
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgekit.boards.subject import open_subjects
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_converters.sources.sandbox import Sandbox, enter_sandbox
from edgekit_runtime.engines.registry import one_line
from edgekit_runtime.system.children import (
    crash_signal,
    die_with_parent,
    environment,
    limit_files,
    limit_memory,
    limit_processor_time,
    python_module,
)
from edgekit_runtime.system.errors import BundleError, MissingExtraError

ACCELERATORS = tuple(
    f"ethos-{unit}-{macs}"
    for unit, sizes in (("u65", (256, 512)), ("u85", (128, 256, 512, 1024, 2048)))
    for macs in sizes
)
LIMIT_S = 600
_MEMORY = 4 << 30
_COUNT = re.compile(r"^(CPU|NPU) operators = ([0-9]{1,9}) ", re.MULTILINE)
_LEFT = re.compile(
    r"^Warning \(supported operators\) operator: ([A-Z0-9_]{1,60}), .*\nReason: (.{1,200})", re.MULTILINE
)


@dataclass(frozen=True)
class VelaNetwork:
    """One artifact, compiled.

    npu, cpu: operators that run there, by Vela's count.
    left: (operator, Vela's reason, how many) of those on the processor.
    inference_ms, sram_kib, dram_kib: Vela's estimate for `system`.
    """

    artifact: str
    npu: int
    cpu: int
    left: tuple[tuple[str, str, int], ...]
    inference_ms: float
    sram_kib: float
    dram_kib: float
    system: str


@dataclass(frozen=True)
class VelaReport:
    target: str
    version: str
    networks: tuple[VelaNetwork, ...]

    def as_json(self) -> dict[str, Any]:
        artifacts = [{**asdict(one), "format": "tflite"} for one in self.networks]
        return {"for": self.target, "ok": True, "vela": self.version, "findings": [], "artifacts": artifacts}


def check_ethos_u(path: Path, accelerator: str, secret: str | None = None) -> VelaReport:
    """Compile every TFLite artifact. Raises MissingExtraError, BundleError, ConversionError."""
    if importlib.util.find_spec("ethosu") is None:
        raise MissingExtraError("vela", "compiling for an Ethos-U", where=str(path))
    subjects = [one for one in open_subjects(path, secret) if one.format == "tflite"]
    if not subjects:
        raise BundleError("an Ethos-U takes TFLite files, and it has none", where=str(path), do="Build tflite-int8")
    networks = tuple(_compile(one.name, one.data, accelerator) for one in subjects)
    return VelaReport(accelerator, importlib.metadata.version("ethos-u-vela"), networks)


def _compile(name: str, data: bytes, accelerator: str) -> VelaNetwork:
    with tempfile.TemporaryDirectory(prefix="edgekit-vela-") as folder:
        file = Path(folder) / "net.tflite"
        file.write_bytes(data)
        file.chmod(0o644)  # the sandbox of root is another user
        try:
            done = subprocess.run(
                python_module("edgekit.boards.vela", folder, accelerator),
                cwd=folder,
                env={**environment(), "TMPDIR": folder, "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ConversionError(f"Vela took longer than {LIMIT_S} s", where=name) from error
        said = done.stdout.decode(errors="replace")
        try:
            (table,) = Path(folder).glob("net_summary_*.csv")
            (row,) = csv.DictReader(table.read_text("utf-8")[: 1 << 16].splitlines())
            counts = {unit: int(count) for unit, count in _COUNT.findall(said)}
            seconds, sram, dram = (float(row[f]) for f in ("inference_time", "sram_memory_used", "dram_memory_used"))
            left = Counter((op, one_line(why)) for op, why in _LEFT.findall(said))
            each = tuple((op, why, count) for (op, why), count in left.items())
            system = row["system_config"][:80]
            return VelaNetwork(name, counts["NPU"], counts["CPU"], each, seconds * 1e3, sram, dram, system)
        except (OSError, ValueError, KeyError) as error:
            lines = (said + done.stderr.decode(errors="replace")).splitlines()
            why = crash_signal(done.returncode) or one_line(lines[-1] if lines else f"exit code {done.returncode}")
            raise ConversionError(f"Vela does not compile it: {why}", where=name) from error


def main(folder: str, accelerator: str) -> None:
    """The child."""
    die_with_parent()
    from ethosu.vela import vela  # before the sandbox, which cannot read every folder of modules

    package = Path(str(vela.__file__)).parents[1]
    enter_sandbox(Sandbox(readable=[package], writable=[Path(folder)]))
    limit_memory(_MEMORY)
    limit_files(1 << 30, 64)
    limit_processor_time(os.cpu_count() or 1)
    sys.exit(vela.main(["net.tflite", "--accelerator-config", accelerator, "--output-dir", folder]))


if __name__ == "__main__":
    main(*sys.argv[1:])
