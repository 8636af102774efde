"""Times models in turns in one process: {name: path or openvino:path} as JSON on stdin, figures as JSON on stdout.

python benchmarks/conversion/engines.py CASE_FOLDER ROUNDS < ways.json          # in the peers' environment
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from answers import opened
from peers.feeding import turned

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from side_by_side import compare


def main(folder: Path, rounds: int) -> None:
    example = np.load(folder / "test.npy", mmap_mode="r")[:1]
    ways: dict[str, Callable[[int], Any]] = {}
    failed: dict[str, str] = {}
    for name, path in json.load(sys.stdin).items():
        try:
            run = (
                _openvino(path.split(":", 1)[1], example)
                if path.startswith("openvino:")
                else opened(Path(path), example)[1]
            )
        except Exception as error:  # noqa: BLE001 - an engine that refuses a model is a line of the table
            failed[name] = str(error).splitlines()[0][:200]
            continue
        ways[name] = lambda n, run=run: run()
    figures = compare(ways, rounds=rounds, block=20, warm_up=10)
    print("\n" + json.dumps({"figures": [asdict(row) for row in figures], "failed": failed}))


def _openvino(path: str, example: Any) -> Callable[[], Any]:
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
    model = core.read_model(path)
    shape = [side.get_length() if side.is_static else 1 for side in model.input(0).get_partial_shape()]
    model.reshape(shape)
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    request.set_input_tensor(openvino.Tensor(turned(np.asarray(example), shape)))
    return request.infer


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
