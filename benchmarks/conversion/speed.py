"""Is INT8 faster than float?

MobileNetV2 224 with seeded random weights, one thread, every engine in turns in one process.

    python benchmarks/conversion/speed.py --cache FOLDER

edgekit's artifacts run beside float and beside what TensorFlow and ONNX Runtime make of the net themselves, in LiteRT
and ONNX Runtime; OpenVINO runs the float and NNCF's ONNX. Only speed is looked at: the weights mean nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import photos
from cells import Bench
from environment import peers_python
from models import Case, Examples

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from side_by_side import Figures, report
from wanted import put_between

from edgekit.bench.conditions import conditions

_TOOLS = ("tf-int8", "ort-defaults", "ort-minmax-all", "nncf", "edgekit-tflite", "edgekit-onnx")


def _model(cache: Path, folder: Path) -> Path:
    import keras

    keras.utils.set_random_seed(0)
    path = folder / "mobilenet_v2.keras"
    keras.applications.MobileNetV2(weights=None, input_shape=(224, 224, 3)).save(path)
    return path


def _examples(cache: Path) -> Examples:
    images = photos.pictures(photos.crops("calibrate"), cache).astype(np.float32) / 127.5 - 1
    return Examples(images, {"x": images[:20]}, images[:20])


MOBILENET = Case("mobilenet_v2", "classification", "speed only", None, _model, _examples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--docs", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/conversion_speed.json"))
    options = parser.parse_args()
    bench = Bench(options.cache)
    folder = bench.folder(MOBILENET)
    cells = {tool: bench.cell(MOBILENET, tool) for tool in _TOOLS}
    ways = {"LiteRT, float": f"{folder}/float.tflite", "ONNX Runtime, float": f"{folder}/float.onnx"}
    names = {
        "tf-int8": "LiteRT, INT8 by TensorFlow",
        "ort-defaults": "ONNX Runtime, INT8 by quantize_static, nothing set",
        "ort-minmax-all": "ONNX Runtime, INT8 by quantize_static, per channel",
        "nncf": "ONNX Runtime, INT8 by NNCF",
        "edgekit-tflite": "LiteRT, INT8 by edgekit",
        "edgekit-onnx": "ONNX Runtime, INT8 by edgekit",
    }
    ways |= {names[tool]: str(bench.artifact(MOBILENET, tool)) for tool, cell in cells.items() if "reason" not in cell}
    ways["OpenVINO, float"] = f"openvino:{folder}/float.onnx"
    if "reason" not in cells["nncf"]:
        ways["OpenVINO, INT8 by NNCF"] = f"openvino:{bench.artifact(MOBILENET, 'nncf')}"
    if "reason" not in cells["edgekit-onnx"]:
        ways["OpenVINO, INT8 by edgekit (ONNX)"] = f"openvino:{bench.artifact(MOBILENET, 'edgekit-onnx')}"
    timed = _timed(options.cache, folder, ways, options.rounds)
    for name, reason in timed["failed"].items():
        print(f"{name}: {reason}", file=sys.stderr)
    rows = [Figures(**figures) for figures in timed["figures"]]
    title = "INT8 against float: MobileNetV2 1.0 224, random weights, one thread; ratio to LiteRT's float"
    report(title, {"a run": rows}, conditions() | verdict(rows), options.output)
    if options.docs:
        put_between(options.docs, "speed", markdown(rows))


def markdown(rows: list[Figures]) -> str:
    lines = [f"MobileNetV2 1.0 224, one thread, on {conditions()['cpu']}, all in turns in one process.", ""]
    lines += ["| | median, ms | least, ms | to LiteRT's float |", "|---|---|---|---|"]
    lines += [f"| {row.name} | {row.p50_us / 1e3:.2f} | {row.min_us / 1e3:.2f} | {row.ratio:.2f}x |" for row in rows]
    said = "; ".join(f"{caption} {figure}" for caption, figure in verdict(rows).items())
    return "\n".join([*lines, "", f"From the least times: {said}."] if said else lines)


def verdict(rows: list[Figures]) -> dict[str, Any]:
    """How much faster, and how far from the engines' own best, from the least disturbed times."""
    least = {row.name: row.min_us for row in rows}
    ours = [us for name, us in least.items() if name.endswith("INT8 by edgekit") and "OpenVINO" not in name]
    floats = [us for name, us in least.items() if name.endswith("float") and "OpenVINO" not in name]
    theirs = [
        us for name, us in least.items() if "INT8 by" in name and "edgekit" not in name and "OpenVINO" not in name
    ]
    if not ours or not theirs:
        return {}
    return {
        "float / edgekit's best": round(min(floats) / min(ours), 2),
        "edgekit's best / their best": round(min(ours) / min(theirs), 3),
    }


def _timed(cache: Path, folder: Path, ways: dict[str, str], rounds: int) -> dict[str, Any]:
    """In the peers' environment, which has all three engines."""
    command = [str(peers_python(cache)), str(Path(__file__).with_name("engines.py")), str(folder), str(rounds)]
    done = subprocess.run(command, input=json.dumps(ways), capture_output=True, text=True, timeout=500, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
