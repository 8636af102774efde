"""How much memory calibration takes: 10,000 images against 100, by each method for ranges.

MobileNetV2 224, seeded.

    python benchmarks/conversion/memory.py

The images are made one by one from a seed while they are read. Every figure is of a process of its own, which opens the
float model, runs the images, asks for the ranges of all four methods (they read the same statistics, so one pass serves
them all) and says the largest resident size it had (VmHWM). Pass --counts 100 1000 for a quicker look: the ratio must
hold for every pair.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from wanted import put_between

from edgekit.bench.conditions import conditions
from edgekit_converters.recipe.artifact import RangeMethod

FORMATS = ("tflite", "onnx")
METHODS: tuple[RangeMethod, ...] = ("minmax", "percentile", "entropy", "mse")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--counts", type=int, nargs=2, default=[100, 10_000])
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/memory.json"))
    parser.add_argument("--docs", type=Path)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_child(*options.child)))
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = _rows(options, Path(folder))
    value = {"title": "peak memory of calibration, MobileNetV2 224", "conditions": conditions(), "rows": rows}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(value, indent=2) + "\n")
    print(f"\nwritten to {options.output}", file=sys.stderr)
    if options.docs:
        put_between(options.docs, "memory", _markdown(rows, options.counts))


def _markdown(rows: list[dict[str, Any]], counts: list[int]) -> str:
    few, many = counts
    lines = [f"| | {few} images | {many:,} images | ratio | an image |", "|---|---|---|---|---|"]
    for row in rows:
        peaks = " | ".join(f"{row['mib'][count]:.0f} MiB" for count in counts)
        lines.append(
            f"| {row['format']}, {', '.join(row['methods'])} | {peaks} | {row['ratio']:.2f} | {row['ms_an_image']} ms |"
        )
    return "\n".join(lines)


def _rows(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    few, many = options.counts
    print(f"{'':22} {few:>7} images {many:>7} images {'ratio':>7} {'ms an image':>12}")
    rows = []
    for form in options.formats:
        model = folder / f"mobilenet_v2.{form}"
        _process("write", form, str(model), "0")
        small, large = (_process("calibrate", form, str(model), str(count)) for count in (few, many))
        row = {
            "format": form,
            "methods": list(METHODS),
            "mib": {few: small["mib"], many: large["mib"]},
            "ratio": round(large["mib"] / small["mib"], 3),
            "ms_an_image": round(1000 * large["seconds"] / many, 1),
        }
        rows.append(row)
        peaks = f"{small['mib']:>10.0f} MiB {large['mib']:>10.0f} MiB"
        print(f"{form:22} {peaks} {row['ratio']:>7} {row['ms_an_image']:>12}", flush=True)
    return rows


def _process(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", *arguments]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def _child(what: str, form: str, model: str, count: str) -> dict[str, Any]:
    start = perf_counter()
    if what == "write":
        _write(form, Path(model))
    else:
        _calibrate(form, Path(model), int(count))
    return {"mib": _peak_mib(), "seconds": perf_counter() - start}


def _write(form: str, path: Path) -> None:
    import keras

    from edgekit_converters.sources.load import load
    from edgekit_converters.targets.workspace import Workspace

    keras.utils.set_random_seed(0)
    network = path.with_suffix(".keras")
    keras.applications.MobileNetV2(weights=None, input_shape=(224, 224, 3)).save(network)
    path.write_bytes(Workspace(load(network)).float_model(form).data)


def _calibrate(form: str, path: Path, count: int) -> None:
    from edgekit_converters.data.statistics import observe
    from edgekit_converters.formats.graph import open_graph

    shape = (1, 3, 224, 224) if form == "onnx" else (1, 224, 224, 3)
    statistics = observe(open_graph(form, path.read_bytes()), _images(shape, count), count)
    assert statistics.samples == count
    for method in METHODS:
        statistics.ranges(method)


def _images(shape: tuple[int, ...], count: int) -> Iterator[list[np.ndarray[Any, Any]]]:
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield [rng.uniform(-1, 1, shape).astype(np.float32)]


def _peak_mib() -> float:
    """The largest resident size of this process. The kernel's figure for a child that waits would hold its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
