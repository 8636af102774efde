"""What an artifact answers to the test items, and how long it takes beside float: in a process of its own.

    python benchmarks/conversion/answers.py ARTIFACT CASE_FOLDER OUTPUTS.npz

One thread. The float model of the same format (float.tflite, float.onnx of the case) runs in the same engine, in turns
with the artifact. Outputs are in real units, the largest first. The last line on stdout is JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "benchmarks"), str(_ROOT / "runtime")]  # the peers' environment has no edgekit
from peers.feeding import turned
from side_by_side import compare

from edgekit_runtime.system.board import cpu

_Array = NDArray[Any]
_BLOCK_US = 60_000
NOTES: list[str] = []


def main(artifact: Path, folder: Path, target: Path) -> None:
    test = np.load(folder / "test.npy", mmap_mode="r")
    answer, run = opened(artifact, test[:1])
    parts = [answer(test[i : i + 1]) for i in range(len(test))]
    outputs = [np.concatenate([part[i] for part in parts]) for i in range(len(parts[0]))]
    np.savez(target, *sorted(outputs, key=lambda array: -array[0].size))
    said: dict[str, Any] = {"bytes": artifact.stat().st_size, "notes": NOTES}
    reference = folder / f"float{artifact.suffix}"
    if reference.exists():
        _, run_float = opened(reference, test[:1])
        said |= {"float_bytes": reference.stat().st_size} | beside(run_float, run)
    print("\n" + json.dumps(said), flush=True)


def beside(run_float: Callable[[], Any], run: Callable[[], Any], rounds: int = 11) -> dict[str, float]:
    """Milliseconds, and the median over the rounds of the ratio of medians. Blocks of about 60 ms, in turns."""
    once = compare({"float": lambda n: run_float(), "artifact": lambda n: run()}, rounds=1, block=5, warm_up=5)
    block = max(3, min(400, int(_BLOCK_US / max(figures.min_us for figures in once))))
    ways = {"float": lambda n: run_float(), "artifact": lambda n: run()}
    reference, figures = compare(ways, rounds=rounds, block=block, warm_up=2)
    return {
        "float_p50_ms": reference.p50_us / 1e3, "float_min_ms": reference.min_us / 1e3, "p50_ms": figures.p50_us / 1e3,
        "min_ms": figures.min_us / 1e3, "ratio": figures.ratio, "min_ratio": figures.min_us / reference.min_us,
    }  # fmt: skip


def opened(path: Path, example: _Array) -> tuple[Callable[[_Array], list[_Array]], Callable[[], Any]]:
    """(one item in real units -> its outputs in real units, one bare run), each of one thread."""
    return _tflite(path, example) if path.suffix == ".tflite" else _onnx(path, example)


def _tflite(path: Path, example: _Array) -> tuple[Callable[[_Array], list[_Array]], Callable[[], Any]]:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=1)
    given = interpreter.get_input_details()[0]
    if tuple(given["shape"])[:1] != (1,):
        interpreter.resize_tensor_input(given["index"], [1, *given["shape"][1:]])
    interpreter.allocate_tensors()
    wanted = interpreter.get_output_details()

    def answer(item: _Array) -> list[_Array]:
        interpreter.set_tensor(given["index"], _stored(turned(np.asarray(item), given["shape"]), given))
        interpreter.invoke()
        return [_real(interpreter.get_tensor(detail["index"]), detail) for detail in wanted]

    answer(example)
    return answer, interpreter.invoke


def _stored(array: _Array, detail: Any) -> _Array:
    scale, zero = detail["quantization"]
    kind = np.dtype(detail["dtype"])
    if not scale or array.dtype.kind != "f":
        return array.astype(kind)
    limits = np.iinfo(kind)
    return np.asarray(np.clip(np.round(array / scale) + zero, limits.min, limits.max).astype(kind))


def _real(array: _Array, detail: Any) -> _Array:
    scale, zero = detail["quantization"]
    return (array.astype(np.float32) - zero) * np.float32(scale) if scale else array.astype(np.float32)


def _onnx(path: Path, example: _Array) -> tuple[Callable[[_Array], list[_Array]], Callable[[], Any]]:
    from onnxruntime import GraphOptimizationLevel

    try:
        return _session(path, example, GraphOptimizationLevel.ORT_ENABLE_ALL)
    except Exception as error:  # noqa: BLE001 - its optimizer makes of some graphs what its kernels refuse
        print(f"only with basic optimization: {error}", file=sys.stderr)
        opened_ = _session(path, example, GraphOptimizationLevel.ORT_ENABLE_BASIC)
        NOTES.append("fails in ONNX Runtime as it is; here with basic optimization only")
        return opened_


def _session(path: Path, example: _Array, level: Any) -> tuple[Callable[[_Array], list[_Array]], Callable[[], Any]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.x64quantprecision", "1" if cpu().lacks_vnni else "0")  # what ARM computes
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    given = session.get_inputs()[0]
    kind = {"tensor(float)": np.float32, "tensor(int32)": np.int32, "tensor(int64)": np.int64}[given.type]

    def feed(item: _Array) -> dict[str, _Array]:
        return {given.name: turned(np.asarray(item), given.shape).astype(kind, copy=False)}

    def answer(item: _Array) -> list[_Array]:
        return [np.asarray(out, np.float32) for out in session.run(None, feed(item))]

    ready = feed(example)
    answer(example)
    return answer, lambda: session.run(None, ready)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
