"""One row in a process of its own: time and memory of one artifact, through edgekit or through the engine alone.

    python benchmarks/tutorial_table/measure.py edgekit net.ekb --items 1 --calls 50 --threads 1
    python benchmarks/tutorial_table/measure.py raw net.tflite --items 1 --calls 50 --threads 1

Prints one JSON object: ms of a call (least, p50, p99, and the least of processor time), items a second by the least,
resident memory in MiB (after the last call, and its peak). items: at once; edgekit gets them from as many callers,
whose requests it joins, the engine as one batch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

WARM_UP = 3


def through_edgekit(path: Path, items: int, threads: int) -> tuple[Callable[[], Any], dict[str, Any]]:
    from edgekit_runtime import open_bundle

    model = open_bundle(path, cache=False, threads=threads, allow_unsigned=True, settled=True)  # built here
    [spec] = model.contract.inputs
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(spec.shape).astype(np.float32) for _ in range(items)]
    said = model.describe()
    about = {"recipe": said["recipe"], "engine": said["engine"]["name"], "version": said["engine"]["version"]}
    if items == 1:
        return lambda: model.predict(inputs[0]), about
    callers = ThreadPoolExecutor(items)
    return lambda: list(callers.map(model.predict, inputs)), about


def through_the_engine(path: Path, items: int, threads: int) -> tuple[Callable[[], Any], dict[str, Any]]:
    rng = np.random.default_rng(0)
    if path.suffix == ".onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        [spec] = session.get_inputs()
        shape = [items, *spec.shape[1:]]
        dtype = {"tensor(float)": np.float32, "tensor(float16)": np.float16}[spec.type]
        feed = {spec.name: rng.standard_normal(shape).astype(dtype)}
        return lambda: session.run(None, feed), {"engine": "onnxruntime", "version": onnxruntime.__version__}
    import ai_edge_litert
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=threads)
    detail = interpreter.get_input_details()[0]
    if items != detail["shape"][0]:
        interpreter.resize_tensor_input(detail["index"], [items, *detail["shape"][1:]])
    interpreter.allocate_tensors()
    values = rng.standard_normal([items, *detail["shape"][1:]]).astype(np.float32)
    if detail["dtype"] == np.int8:
        scale, zero = detail["quantization"]
        values = np.clip(np.round(values / scale + zero), -128, 127)
    out = interpreter.get_output_details()[0]["index"]

    def call() -> Any:
        interpreter.set_tensor(detail["index"], values.astype(detail["dtype"]))
        interpreter.invoke()
        return interpreter.get_tensor(out)

    return call, {"engine": "litert", "version": getattr(ai_edge_litert, "__version__", "")}


def memory_mb() -> dict[str, float]:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {"resident_mb": int(lines["VmRSS"].split()[0]) / 1024, "peak_mb": int(lines["VmHWM"].split()[0]) / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("way", choices=("edgekit", "raw"))
    parser.add_argument("path", type=Path)
    parser.add_argument("--items", type=int, default=1)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    make = through_edgekit if options.way == "edgekit" else through_the_engine
    call, about = make(options.path, options.items, options.threads)
    for _ in range(WARM_UP):
        call()
    taken, worked = [], []
    for _ in range(options.calls):
        began, before = time.perf_counter(), time.process_time()
        call()
        worked.append((time.process_time() - before) * 1e3)
        taken.append((time.perf_counter() - began) * 1e3)
    figures = {
        "min_ms": min(taken),
        "cpu_ms": min(worked),
        "p50_ms": statistics.median(taken),
        "p99_ms": sorted(taken)[int(0.99 * (len(taken) - 1))],
        "per_s": options.items * 1e3 / min(taken),
    }
    print(json.dumps(about | figures | memory_mb()))


if __name__ == "__main__":
    main()
