"""Models that keep state: what becomes of each, and how much of it is in 8 bits.

A table of agreement says nothing of them.

    python benchmarks/conversion/stateful.py --cache FOLDER

- silero_vad: ONNX with If and LSTM, its state goes in and comes out; beside edgekit, onnxruntime's quantize_dynamic;
- okay_nabu: TFLite that is INT8 already and keeps its state inside.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from environment import peers_python
from packages import Package, unpacked

SILERO = Package("pip", "silero-vad", "6.2.3", "MIT")
NABU = Package("pip", "pymicro-wakeword", "2.5.0", "Apache-2.0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/conversion_stateful.json"))
    options = parser.parse_args()
    silero = next(unpacked(SILERO, options.cache).rglob("silero_vad.onnx"))
    nabu = next(unpacked(NABU, options.cache).rglob("okay_nabu.tflite"))
    found = {
        "silero_vad, quantize_dynamic": _dynamic(options.cache, silero),
        **{
            f"silero_vad, edgekit {name}": _ours(silero, name)
            for name in ("onnx-f32", "onnx-int8-dynamic", "tflite-f32")
        },
        "okay_nabu, edgekit": _ours(nabu, "tflite-int8"),
        "okay_nabu, edgekit tflite-as-is": _ours(nabu, "tflite-as-is"),
    }
    for name, said in found.items():
        print(f"{name:40} {said}")
    options.output.write_text(json.dumps({"title": "models that keep state", "found": found}, indent=1) + "\n")


def _dynamic(cache: Path, model: Path) -> dict[str, Any]:
    """What the file weighs, and how much of it is in 8 bits."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "int8.onnx"
        code = "import sys; from onnxruntime.quantization import quantize_dynamic as q; q(sys.argv[1], sys.argv[2])"
        command = [str(peers_python(cache)), "-c", code, str(model), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            return {"reason": done.stderr.strip().splitlines()[-1][:200]}
        return _weighed(model, out.read_bytes())


def _ours(model: Path, name: str) -> dict[str, Any]:
    from edgekit_converters.recipe.artifact import recipe
    from edgekit_converters.sources.load import load
    from edgekit_converters.sources.load_options import LoadOptions
    from edgekit_converters.targets.workspace import Workspace
    from edgekit_runtime.system.errors import EdgekitError

    options = LoadOptions(as_is=name.endswith("as-is"))
    if model.suffix == ".onnx":
        options = LoadOptions(shapes={"input": (1, 512 + 64)}, constants={"sr": 16000})
    try:
        source = load(model, options)
        artifact = Workspace(source).make(recipe(name))
    except EdgekitError as error:
        return {"reason": error.what[:300]}
    return {"state": getattr(source, "state", None)} | _weighed(model, artifact.data)


def _weighed(model: Path, data: bytes) -> dict[str, Any]:
    from edgekit_converters.formats.workload import quantized_fraction

    macs, weights = quantized_fraction(model.suffix[1:], data)
    size = round(len(data) / model.stat().st_size, 3)
    return {"size": size, "macs in 8 bits": round(macs, 3), "weights in 8 bits": round(weights, 3)}


if __name__ == "__main__":
    sys.exit(main())
