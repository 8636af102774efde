"""Each engine of a GPU beside PyTorch eager, on this machine's GPU: golden answers first, then a network of ResNet-50's
shape in float16, at batch 1 and 8. At most 20 minutes; where there is no GPU it says so and exits 0.

    CUDA_VISIBLE_DEVICES=0 python benchmarks/fallback/gpu.py --json gpu.json

It needs `onnx`, ONNX Runtime for the processor, and those of the engines that are to be measured; for eager and
`torch-cuda` also `onnx2pytorch`, one wheel of 134 kB (`pip install --no-deps`), beside torch and torchvision.
Weights are random, drawn once: speed does not depend on them. Parity is against ONNX Runtime on the processor.

Columns: p50 and p99 of the wall clock of one `run`, copies to and from the GPU included, in milliseconds; `x eager` is
p50 by that of eager; `load` is building, loading and the first run, in seconds; cosine is the least of the items.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "runtime"), str(ROOT)]

from edgekit_runtime.engines import cuda
from edgekit_runtime.engines.registry import ENGINES, EngineSetup, load_with, on_gpu, version_of_engine
from edgekit_runtime.system.errors import EdgekitError

BATCHES = (1, 8)
RUNS, WARM_UP = 500, 30
MOST_S = 20.0
"""Of one engine at one batch."""
LEAST_COSINE = 0.999
Array = NDArray[Any]


@dataclass
class Row:
    """One way at one batch. why: the reason why there is no figure."""

    path: str
    version: str | None
    batch: int
    load_s: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    cosine: float | None = None
    same_best: bool | None = None
    why: str = ""


def resnet(blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, side: int = 224, half: bool = True) -> bytes:
    """An ONNX file of ResNet-50's shape: float32 at its ends, float16 inside, a free batch axis."""
    from onnx import TensorProto, helper, numpy_helper

    draw, dtype = np.random.default_rng(0), np.float16 if half else np.float32
    nodes: list[Any] = []
    constants: list[Any] = []

    def weight(*shape: int) -> str:
        name = f"w{len(constants)}"
        spread = np.sqrt(2 / max(1, int(np.prod(shape[1:]))))
        constants.append(numpy_helper.from_array((draw.normal(size=shape) * spread).astype(dtype), name))
        return name

    def node(kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or f"t{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def conv(x: str, into: int, out: int, kernel: int, stride: int = 1, relu: bool = True) -> str:
        pad = kernel // 2
        sizes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
        bias = f"b{len(constants)}"
        constants.append(numpy_helper.from_array(np.zeros(out, dtype), bias))
        y = node("Conv", x, weight(out, into, kernel, kernel), bias, **sizes)
        return node("Relu", y) if relu else y

    x = node("Cast", "image", to=TensorProto.FLOAT16 if half else TensorProto.FLOAT)
    x = conv(x, 3, width, 7, 2)
    x = node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    into = width
    for stage, count in enumerate(blocks):
        inner = width << stage
        for index in range(count):
            stride = 2 if index == 0 and stage else 1
            y = conv(conv(conv(x, into, inner, 1), inner, inner, 3, stride), inner, 4 * inner, 1, relu=False)
            beside = conv(x, into, 4 * inner, 1, stride, relu=False) if index == 0 else x
            # A random network of 50 layers would leave float16's range: each sum is halved.
            half_name = f"h{len(constants)}"
            constants.append(numpy_helper.from_array(np.array(0.5, dtype), half_name))
            x = node("Relu", node("Mul", node("Add", y, beside), half_name))
            into = 4 * inner
    x = node("Flatten", node("GlobalAveragePool", x))
    constants.append(numpy_helper.from_array(np.zeros(1000, dtype), "fc"))
    x = node("Gemm", x, weight(1000, into), "fc", transB=1)
    node("Cast", x, output="logits", to=TensorProto.FLOAT)
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, side, side])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 1000])
    graph = helper.make_graph(nodes, "resnet", [image], [logits], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(made.SerializeToString())


def items(batch: int, side: int) -> Array:
    return np.random.default_rng(batch).random((batch, 3, side, side), np.float32)


def golden(data: bytes, side: int) -> dict[int, Array]:
    """Batch -> the answers of ONNX Runtime on the processor."""
    with load_with("onnxruntime", "onnx", data, EngineSetup(threads=4)) as engine:
        return {batch: engine.run([items(batch, side)])[0] for batch in BATCHES}


def timed(run: Callable[[], object], most_s: float = MOST_S) -> tuple[float, float]:
    """p50 and p99 in milliseconds, after a warm-up."""
    for _ in range(WARM_UP):
        run()
    taken: list[float] = []
    end = time.perf_counter() + most_s
    while len(taken) < RUNS and time.perf_counter() < end:
        start = time.perf_counter()
        run()
        taken.append((time.perf_counter() - start) * 1e3)
    return float(np.percentile(taken, 50)), float(np.percentile(taken, 99))


def judged(row: Row, got: Array, wanted: Array) -> Row:
    """With how far its answers are from those of the processor."""
    cosines = [
        float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-30)) for a, b in zip(got, wanted, strict=True)
    ]
    row.cosine = min(cosines) if np.isfinite(got).all() else float("nan")
    row.same_best = bool((got.argmax(1) == wanted.argmax(1)).all())
    return row


def engine_rows(name: str, data: bytes, side: int, wanted: dict[int, Array]) -> list[Row]:
    """One engine at every batch: loaded once, its answers first."""
    version, start = version_of_engine(name), time.perf_counter()
    try:
        with load_with(name, "onnx", data, EngineSetup(keep=False)) as engine:
            engine.run([items(1, side)])
            load_s, rows = time.perf_counter() - start, []
            for batch in BATCHES:
                given = items(batch, side)
                row = judged(Row(name, version, batch, load_s), engine.run([given])[0], wanted[batch])
                row.p50_ms, row.p99_ms = timed(lambda given=given: engine.run([given]))  # type: ignore[misc]
                rows.append(row)
            return rows
    except EdgekitError as error:
        return [Row(name, version, batch, why=error.what) for batch in BATCHES]


def eager_rows(data: bytes, side: int, wanted: dict[int, Array]) -> list[Row]:
    """PyTorch's operators one after another, in float16, as a person would first try it."""
    try:
        import onnx
        import torch
        from onnx2pytorch import ConvertModel

        net = ConvertModel(onnx.load_model_from_string(data)).eval().to("cuda", memory_format=torch.channels_last)
        rows = []
        for batch in BATCHES:
            given = items(batch, side)

            def run(given: Array = given) -> Array:
                with torch.inference_mode():
                    answer: Array = net(torch.from_numpy(given).to("cuda")).cpu().numpy()
                return answer

            row = judged(Row("torch eager", torch.__version__, batch), run(), wanted[batch])
            row.p50_ms, row.p99_ms = timed(run)
            rows.append(row)
    except Exception as error:  # noqa: BLE001 - the other rows are worth as much
        return [Row("torch eager", None, batch, why=f"{type(error).__name__}: {error}"[:300]) for batch in BATCHES]
    return rows


def table(rows: list[Row]) -> str:
    eager = {row.batch: row.p50_ms for row in rows if row.path == "torch eager"}
    lines = [
        "| path | batch | p50 ms | p99 ms | x eager | load s | cosine | same best |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row.p50_ms is None or row.p99_ms is None or row.cosine is None:
            lines.append(f"| {row.path} {row.version or ''} | {row.batch} | {row.why} | | | | | |")
            continue
        base = eager.get(row.batch)
        ratio = "" if not base else f"{row.p50_ms / base:.2f}"
        load = "" if row.load_s is None else f"{row.load_s:.1f}"
        figures = f"{row.p50_ms:.3f} | {row.p99_ms:.3f} | {ratio} | {load} | {row.cosine:.5f} | {row.same_best}"
        lines.append(f"| {row.path} {row.version or ''} | {row.batch} | {figures} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--side", type=int, default=224, help="pixels of the input")
    parser.add_argument(
        "--blocks", type=int, nargs=4, default=(3, 4, 6, 3), help="of each stage; 1 1 1 1 for a short try"
    )
    asked = parser.parse_args(arguments)
    if why := cuda.absent():
        print(f"no GPU: {why}")
        return 0
    data = resnet(tuple(asked.blocks), side=asked.side)
    wanted = golden(data, asked.side)
    rows = eager_rows(data, asked.side, wanted)
    for name in filter(on_gpu, ENGINES):
        found = engine_rows(name, data, asked.side, wanted)
        print(table(found).splitlines()[-1], file=sys.stderr, flush=True)
        rows += found
    print(f"{cuda.identity()}\n\n{table(rows)}")
    if asked.json is not None:
        told = {
            "device": cuda.identity(),
            "bytes": len(data),
            "side": asked.side,
            "rows": [asdict(row) for row in rows],
        }
        asked.json.write_text(json.dumps(told, indent=1) + "\n")
    apart = [row.path for row in rows if row.cosine is not None and not row.cosine >= LEAST_COSINE]
    if apart:
        print(f"answers differ: {', '.join(apart)}", file=sys.stderr)
    return int(bool(apart))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
