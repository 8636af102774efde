"""The table that guides of this field print for ResNet-50, with edgekit's artifacts beside the raw engines.

    .venv/bin/python benchmarks/tutorial_table/table.py --cache FOLDER          # about half an hour on two quiet cores
    .venv/bin/python benchmarks/tutorial_table/table.py --write-readme          # the page again, from the JSON

A time is the least of `--calls` calls in each of `--rounds` processes, which take turns with those of the other rows:
whatever else the machine does only adds to it. Memory is the median of the processes. Writes
benchmarks/results/tutorial_table.json and the tables of README.md beside this file. `--side 64 --rounds 1 --calls 5`
tries it in some minutes.

Bundles and measurements are kept in FOLDER, so the same command resumes after an interruption. `--minutes 9` stops
after nine and exits 3 if something is left.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.bench.conditions import conditions
from edgekit_runtime.bundle.reader import read_bundle

HERE = Path(__file__).parent
RESULT = HERE.parent / "results" / "tutorial_table.json"
PAGE = HERE / "README.md"
MARK = "<!-- tables: written by table.py -->\n"
Json = dict[str, Any]
ENGINES = {"onnx": "ONNX Runtime", "tflite": "LiteRT"}


@dataclass(frozen=True)
class Row:
    """claimed: what the guides print, for a T4."""

    title: str
    network: str
    recipe: str
    items: int = 1
    claimed: str = ""


ROWS = (
    Row("FP32", "resnet50", "onnx-f32", claimed="50 ms, 20/s, 500 MB"),
    Row("FP16", "resnet50", "onnx-f16", claimed="25 ms"),
    Row("INT8", "resnet50", "onnx-int8-qdq", claimed="12 ms"),
    Row("INT8, batch 4", "resnet50", "onnx-int8-qdq", 4, claimed="15 ms, 320/s"),
    Row("TFLite FP32", "resnet50", "tflite-f32"),
    Row("TFLite FP16", "resnet50", "tflite-f16"),
    Row("TFLite INT8", "resnet50", "tflite-int8", claimed="100 ms, 50 MB"),
    Row("TFLite INT8, batch 4", "resnet50", "tflite-int8", 4),
    Row("50 % zeros, FP32", "halved", "onnx-f32"),
    Row("50 % zeros, TFLite FP32", "halved", "tflite-f32"),
    Row("student, FP32", "student", "onnx-f32"),
    Row("student, TFLite FP32", "student", "tflite-f32"),
)
CHAIN = {"input": 10.0, "queue": None, "transfer": 5.0, "inference": 50.0, "output": 10.0}
"""Stage -> what the guides say, milliseconds; they add 20 for the network."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "edgekit-tutorial-table")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="Stop after so many; exits 3 if not done.")
    parser.add_argument("--write-readme", action="store_true", help="Measure nothing: the page again, from the JSON.")
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    options = parser.parse_args()
    if not options.write_readme:
        until = time.monotonic() + 60 * options.minutes
        try:
            found = _found(options, lambda: time.monotonic() > until)
        except _OutOfTimeError:
            raise SystemExit(3) from None
        options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.output == RESULT:
        text = PAGE.read_text(encoding="utf-8").split(MARK)[0]
        PAGE.write_text(text + MARK + page(json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8")


def _bundle(row: Row, cache: Path, side: int) -> Path:
    """The artifact in a bundle of its own, made once; and beside it the plain file."""
    folder = cache / f"{row.network}-{row.recipe}"
    path = folder / f"{row.network}-x86-64.ekb"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        model = cache / f"{row.network}.keras"
        if not model.exists():
            _run([str(HERE / "networks.py"), row.network, str(model), "--side", str(side)])
            model.with_suffix(".contract.toml").write_text('task = "raw"\n', encoding="utf-8")
        inputs = cache / "inputs.npy"
        if not inputs.exists():
            np.save(inputs, np.random.default_rng(0).standard_normal((10, side, side, 3)).astype(np.float32))
        _run(
            [
                *("-c", "from edgekit.cli import main; main()", "build", str(model), "--profile", "x86-64"),
                *("--recipe", row.recipe, "--batch", "4", "--max-drop", "100%", "--alternates", "0"),
                *("--calibration", str(inputs)),
                *("-o", str(folder)),
            ]
        )
    bundle = read_bundle(path)
    for entry in bundle.manifest.artifacts:
        batch = entry.inputs[0].shape[0]
        name = f"model-{batch}.{entry.format}" if entry.role == "batch" else f"model.{entry.format}"
        (folder / name).write_bytes(bundle.blob(entry.blob))
    return path


class _OutOfTimeError(Exception):
    pass


def _found(options: argparse.Namespace, late: Callable[[], bool]) -> Json:
    cache = options.cache / str(options.side)
    bundles: dict[tuple[str, str], Path] = {}
    for row in ROWS:
        if (row.network, row.recipe) not in bundles:
            bundles[row.network, row.recipe] = _bundle(row, cache, options.side)
            if late():
                raise _OutOfTimeError
    kept = Kept(cache / f"measured-{options.calls}-{options.threads}.json", late)
    took: dict[tuple[str, str], list[Json]] = {}
    chains: list[Json] = []
    for number in range(options.rounds):
        for row in ROWS:
            bundle = bundles[row.network, row.recipe]
            for way, path in (("edgekit", bundle), ("raw", _plain(bundle, row))):
                command = [str(HERE / "measure.py"), way, str(path), "--items", str(row.items)]
                command += ["--calls", str(options.calls), "--threads", str(options.threads)]
                took.setdefault((row.title, way), []).append(kept.get(f"{number} {row.title} {way}", command))
        chain = [str(HERE / "chain.py"), str(bundles["resnet50", "onnx-f32"]), "--calls", str(options.calls)]
        chains.append(kept.get(f"{number} chain", chain))
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    rows = []
    for row in ROWS:
        about: Json = {"title": row.title, "recipe": row.recipe, "items": row.items, "claimed": row.claimed}
        about["file_mb"] = _plain(bundles[row.network, row.recipe], row).stat().st_size / 1e6
        rows.append(about | {way: best(took[row.title, way]) for way in ("edgekit", "raw")})
    work = {name: _macs(bundles[name, "onnx-f32"]) for name in ("resnet50", "student")}
    asked = {"rounds": options.rounds, "calls": options.calls, "threads": options.threads, "side": options.side}
    loads = sorted(run["load"] for runs in (*took.values(), chains) for run in runs)
    asked["load"] = f"{loads[0]:.1f} to {loads[-1]:.1f}"
    return {"conditions": conditions() | asked, "macs": work, "rows": rows, "chain": best(chains)}


class Kept:
    """What was measured so far, in a file: each key is measured once."""

    def __init__(self, path: Path, late: Callable[[], bool]) -> None:
        self.path, self.late = path, late
        self.found: Json = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def get(self, key: str, command: list[str]) -> Json:
        if key not in self.found:
            if self.late():
                raise _OutOfTimeError
            load = os.getloadavg()[0]
            self.found[key] = _run(command) | {"load": load}
            self.path.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
        one: Json = self.found[key]
        return one


def _plain(bundle: Path, row: Row) -> Path:
    """The model file for that many items: a variant of its own where the bundle has one."""
    suffix = row.recipe.split("-")[0]
    variant = bundle.parent / f"model-{row.items}.{suffix}"
    return variant if variant.exists() else bundle.parent / f"model.{suffix}"


def _macs(bundle: Path) -> int:
    from edgekit_converters.formats.workload import read_workload

    read = read_bundle(bundle)
    return sum(op.macs for op in read_workload("onnx", read.blob(read.artifact().blob), "float32").ops)


def best(runs: list[Json]) -> Json:
    """The fastest process, with the median of all for memory, and the time of each."""
    key = "min_ms" if "min_ms" in runs[0] else "total"
    memory = {name: statistics.median(run[name] for run in runs) for name in runs[0] if name.endswith("_mb")}
    worked = {"cpu_ms": min(run["cpu_ms"] for run in runs)} if "cpu_ms" in runs[0] else {}
    return min(runs, key=lambda run: float(run[key])) | worked | memory | {f"{key}_runs": [run[key] for run in runs]}


def _run(arguments: list[str]) -> Json:
    """What a Python process prints as JSON; nothing where it prints something else."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, check=False, env=os.environ | quiet
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} left with {done.returncode}")
    last = (done.stdout.strip().splitlines() or [""])[-1]
    found: Json = json.loads(last) if last.startswith("{") else {}
    return found


def page(found: Json) -> str:
    """The tables of README.md."""
    asked, rows = found["conditions"], {row["title"]: row for row in found["rows"]}
    lines = [
        f"\nResNet-50, {asked['side']} x {asked['side']}, {asked['threads']} thread, on {asked['cpu']}, "
        f"{asked['cores']} cores, with other work beside (load {asked['load']}). A time is the least of "
        f"{asked['calls']} calls in each of {asked['rounds']} processes, which took turns with those of the other "
        "rows; memory is their median.\n",
        "| row | guides, on a T4 | edgekit: ms of a call | items/s | resident MiB | the engine alone: ms | items/s | "
        "resident MiB | file MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        ours, raw = row["edgekit"], row["raw"]
        figures = [f"{one['min_ms']:.1f} | {one['per_s']:.1f} | {one['resident_mb']:.0f}" for one in (ours, raw)]
        engine = ENGINES[row["recipe"].split("-")[0]]
        said = row["claimed"] or "-"
        lines.append(f"| {row['title']}, {engine} | {said} | {figures[0]} | {figures[1]} | {row['file_mb']:.1f} |")
    lines += [
        f"| any of them on a GPU | as above |{' not measured |' * 7}",
        "\nThe chain of one request, FP32, through `edgekit host serve` on loopback:\n",
        "| stage | guides, ms | here, ms |",
        "|---|---|---|",
    ]
    for stage, said in CHAIN.items():
        lines.append(f"| {stage} | {'-' if said is None else f'{said:.0f}'} | {found['chain'][stage]:.2f} |")
    lines.append(f"| together | 75 + 20 of network | {found['chain']['total']:.2f} |")
    lines += ["\n| claim | ONNX Runtime here | LiteRT here |", "|---|---|---|"]
    for claim, slow, fast in (
        ("INT8 is 4x faster than FP32", "FP32", "INT8"),
        ("FP16 is 2x faster than FP32", "FP32", "FP16"),
        ("50 % sparsity is 2x faster", "FP32", "50 % zeros, FP32"),
        ("a student is 50-100x faster", "FP32", "student, FP32"),
    ):
        pair = []
        for prefix in ("", "TFLite "):
            fast_title = fast if not prefix else fast.replace("FP32", "TFLite FP32") if "," in fast else prefix + fast
            pair.append(rows[prefix + slow]["raw"]["cpu_ms"] / rows[fast_title]["raw"]["cpu_ms"])
        lines.append(f"| {claim} | {pair[0]:.2f}x | {pair[1]:.2f}x |")
    ratio = found["macs"]["resnet50"] / found["macs"]["student"]
    lines.append(
        f"\nThe student has {ratio:.0f} times fewer products. Ratios are of the engines alone, by processor time, "
        "which other work disturbs least.\n"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
