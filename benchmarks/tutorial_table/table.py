"""The table that guides of this field print for ResNet-50, with edgekit's artifacts beside the raw engines.

    .venv/bin/python benchmarks/tutorial_table/table.py --cache FOLDER          # about half an hour on two quiet cores
    .venv/bin/python benchmarks/tutorial_table/table.py --write-readme          # the page again, from the JSON

Every figure is the median of `--rounds` processes, which take turns. Writes benchmarks/results/tutorial_table.json and
the tables of README.md beside this file. `--side 64 --rounds 1 --calls 5` tries it in some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit.bench import conditions
from edgekit_runtime.bundle import read_bundle

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
    parser.add_argument("--write-readme", action="store_true", help="Measure nothing: the page again, from the JSON.")
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    options = parser.parse_args()
    if not options.write_readme:
        cache = options.cache / str(options.side)
        bundles = {(row.network, row.recipe): _bundle(row, cache, options.side) for row in ROWS}
        found = _measured(bundles, cache, options)
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
        _run(
            [
                *("-c", "from edgekit.cli import main; main()", "build", str(model), "--profile", "x86-64"),
                *("--recipe", row.recipe, "--batch", "4", "--max-drop", "100%", "--allow-random", "--alternates", "0"),
                *("-o", str(folder)),
            ]
        )
    bundle = read_bundle(path)
    for entry in bundle.manifest.artifacts:
        batch = entry.inputs[0].shape[0]
        name = f"model-{batch}.{entry.format}" if entry.role == "batch" else f"model.{entry.format}"
        (folder / name).write_bytes(bundle.blob(entry.blob))
    return path


def _measured(bundles: Mapping[tuple[str, str], Path], cache: Path, options: argparse.Namespace) -> Json:
    took: dict[tuple[int, str], list[Json]] = {}
    chains: list[Json] = []
    for number in range(options.rounds):
        for place, row in enumerate(ROWS):
            bundle = bundles[row.network, row.recipe]
            for way, path in (("edgekit", bundle), ("raw", _plain(bundle, row))):
                command = [str(HERE / "measure.py"), way, str(path), "--items", str(row.items)]
                command += ["--calls", str(options.calls), "--threads", str(options.threads)]
                took.setdefault((place, way), []).append(_run(command))
        chain = [str(HERE / "chain.py"), str(bundles["resnet50", "onnx-f32"]), "--calls", str(options.calls)]
        chains.append(_run(chain))
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    rows = []
    for place, row in enumerate(ROWS):
        found: Json = {"title": row.title, "recipe": row.recipe, "items": row.items, "claimed": row.claimed}
        found["file_mb"] = _plain(bundles[row.network, row.recipe], row).stat().st_size / 1e6
        rows.append(found | {way: _median(took[place, way]) for way in ("edgekit", "raw")})
    work = {name: _macs(bundles[name, "onnx-f32"]) for name in ("resnet50", "student")}
    asked = {"rounds": options.rounds, "calls": options.calls, "threads": options.threads, "side": options.side}
    return {"conditions": conditions() | asked, "macs": work, "rows": rows, "chain": _median(chains)}


def _plain(bundle: Path, row: Row) -> Path:
    """The model file for that many items: a variant of its own where the bundle has one."""
    suffix = row.recipe.split("-")[0]
    variant = bundle.parent / f"model-{row.items}.{suffix}"
    return variant if variant.exists() else bundle.parent / f"model.{suffix}"


def _macs(bundle: Path) -> int:
    from edgekit_converters.workload import read_workload

    read = read_bundle(bundle)
    return sum(op.macs for op in read_workload("onnx", read.blob(read.artifact().blob), "float32").ops)


def _median(runs: list[Json]) -> Json:
    first = runs[0]
    figures = {key for key, value in first.items() if isinstance(value, float)}
    spread = {f"{key}_runs": [run[key] for run in runs] for key in ("p50_ms", "total") if key in figures}
    return {
        key: statistics.median(run[key] for run in runs) if key in figures else first[key] for key in first
    } | spread


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
        f"{asked['cores']} cores, load {asked['load']}; medians of {asked['rounds']} processes with {asked['calls']} "
        "calls each.\n",
        "| row | guides, on a T4 | edgekit: ms of a call | items/s | resident MiB | the engine alone: ms | items/s | "
        "resident MiB | file MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        ours, raw = row["edgekit"], row["raw"]
        figures = [f"{one['p50_ms']:.1f} | {one['per_s']:.1f} | {one['resident_mb']:.0f}" for one in (ours, raw)]
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
            pair.append(rows[prefix + slow]["raw"]["p50_ms"] / rows[fast_title]["raw"]["p50_ms"])
        lines.append(f"| {claim} | {pair[0]:.2f}x | {pair[1]:.2f}x |")
    ratio = found["macs"]["resnet50"] / found["macs"]["student"]
    lines.append(f"\nThe student has {ratio:.0f} times fewer products. Ratios are of the engines alone.\n")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
