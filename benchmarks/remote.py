"""What our client costs over http.client by hand, and JSON over binary tensors: 600 kB over loopback.

    .venv/bin/python benchmarks/remote.py

The server is `edgekit host serve` in a process of its own, with the cache off and a network that only takes a mean, so
that what is timed is the way there and back. The baseline is what a person writes by hand for the same request: one
kept connection, the JSON and the tensor's bytes joined, one float32 picture of 224 x 224 x 3 (602 kB) in, its outputs
read with np.frombuffer. It has no deadline, checks nothing and takes no second connection.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
from side_by_side import compare, report

from edgekit.bench.conditions import conditions
from edgekit.packaging.assemble import BundleContent, assemble
from edgekit.packaging.writer import write_bundle
from edgekit_converters.recipe.artifact import Artifact, Recipe
from edgekit_runtime.bundle.manifest import Target
from edgekit_runtime.contract.spec import Contract, InputContract, OutputContract, TensorSpec
from edgekit_runtime.remote.client import HostClient

SHAPE = (224, 224, 3)
SERVE = [
    sys.executable,
    "-c",
    "from edgekit.cli import main; main()",
    "host",
    "serve",
    "--listen",
    "127.0.0.1:0",
    "--json",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/remote.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bundle = mean_bundle(Path(folder))
        server = subprocess.Popen(
            [*SERVE, bundle, "--cache-mb", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            url = json.loads(server.stdout.readline())["listening"]
            figures, forms = measure(url, options.rounds)
        finally:
            server.terminate()
            server.wait(20)
    report(
        f"a float32 tensor of {4 * np.prod(SHAPE) / 1e3:.0f} kB to a host over loopback and back",
        {"the client against http.client by hand, binary": figures, "binary against JSON, the client": forms},
        conditions(),
        options.output,
    )


def measure(url: str, rounds: int):
    x = np.random.default_rng(0).normal(size=(1, *SHAPE)).astype(np.float32)
    raw = HTTPConnection(*url.removeprefix("http://").split(":"))
    with HostClient(url, model="mean") as binary, HostClient(url, model="mean") as as_json:

        def by_hand(number: int) -> np.ndarray:
            x.flat[0] = number
            tensor = {"name": "x", "shape": x.shape, "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
            head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
            body = head + x.tobytes()
            raw.request("POST", "/v2/models/mean/infer", body, {"Inference-Header-Content-Length": str(len(head))})
            response = raw.getresponse()
            data = response.read()
            end = int(response.headers["Inference-Header-Content-Length"])
            (output,) = json.loads(data[:end])["outputs"]
            return np.frombuffer(data, np.float32, offset=end).reshape(output["shape"])

        def ask(client: HostClient):
            def infer(number: int) -> np.ndarray:
                x.flat[0] = number
                return client.infer({"x": x}, 60.0).outputs["mean"]

            return infer

        np.testing.assert_array_equal(by_hand(1), ask(binary)(1))
        as_json.infer({"x": x}, 60.0)
        as_json._known = replace(as_json._known, binary=False)  # as if the server had refused binary
        np.testing.assert_allclose(ask(as_json)(1), ask(binary)(1), rtol=1e-6)
        figures = compare(
            {"http.client by hand": by_hand, "HostClient.infer": ask(binary)}, rounds=rounds, block=30, warm_up=30
        )
        forms = compare({"binary": ask(binary), "JSON": ask(as_json)}, rounds=7, block=5, warm_up=2)
    raw.close()
    return figures, forms


def mean_bundle(folder: Path) -> Path:
    """A bundle whose network takes the mean of each channel."""
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1, 2], keepdims=0)],
        "mean",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *SHAPE])],
        [helper.make_tensor_value_info("mean", TensorProto.FLOAT, ["n", 3])],
    )
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10).SerializeToString()
    inputs = (TensorSpec("x", "x", "float32", (-1, *SHAPE), "NHWC"),)
    outputs = (TensorSpec("mean", "mean", "float32", (-1, 3)),)
    content = BundleContent(
        name="mean",
        version="1",
        model_id="0" * 64,
        contract=Contract("raw", (InputContract("x", SHAPE, "float32"),), (OutputContract("mean", (3,), "float32"),)),
        target=Target("host-cpu", "x86_64", threads=1),
        artifact=Artifact(Recipe("onnx-f32", "onnx", "float32"), data, inputs, outputs, 0.0, 0.0, {}),
        golden=[{"x": np.ones(SHAPE, np.float32)}],
    )
    path = folder / "mean.ekb"
    write_bundle(path, *assemble(content), [])
    return path


if __name__ == "__main__":
    main()
