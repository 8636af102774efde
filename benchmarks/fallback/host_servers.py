"""Our server beside a real Triton and a real MLServer on the CPU: the same ONNX file, 16 callers, in turn.

    .venv/bin/python benchmarks/fallback/host_servers.py --rounds 5

Each server runs the file with ONNX Runtime, the others with its default threads, and is asked in its best form: binary
tensors, and JSON for MLServer, which has no other. Triton serves what `edgekit host export --backend python` wrote,
with dynamic batching, as one instance and as two. In each round the servers are loaded one after another, the others
idle; medians count. Beside other work the processor time a request is the fairer figure: that of the server and all
its children.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from host_load import closed, cpu_s, encoded
from host_model import SHAPE, bundle, network

from edgekit.bench.conditions import conditions
from edgekit_runtime.remote.client import HostClient
from edgekit_runtime.remote.oip import encode_request

TESTS = Path(__file__).parents[2] / "tests"
sys.path.insert(0, str(TESTS))
EDGEKIT = [sys.executable, "-c", "from edgekit.cli import main; main()", "host"]


@dataclass(frozen=True)
class Server:
    url: str
    pid: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/fallback/host_servers.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, data = Path(name), network()
        path = bundle(folder, data)
        servers = {
            "edgekit": ours(path, folder, stack, threads=1),
            "edgekit, 2 engine threads": ours(path, folder, stack, threads=2),
            "edgekit, 2 instances": ours(path, folder, stack, threads=1, instances=2),
            **triton(path, folder, stack),
            "MLServer": mlserver(data, folder, stack),
        }
        x = np.random.default_rng(1).normal(size=(1, *SHAPE)).astype(np.float32)
        check(servers, x)
        rows = measure(servers, x, options)
    value = {"conditions": conditions(), "callers": options.callers, "rounds": options.rounds,
             "seconds": options.seconds, "servers": rows}  # fmt: skip
    print(json.dumps(value["servers"], indent=2))
    options.output.write_text(json.dumps(value, indent=2) + "\n")


def ours(path: Path, folder: Path, stack: ExitStack, *, threads: int, instances: int = 1) -> Server:
    from others import Started
    from ports import free_port

    port = free_port()
    engines = ["--threads", threads, "--instances", instances]
    command = [*EDGEKIT, "serve", path, "--listen", f"127.0.0.1:{port}", "--cache-mb", "0", *engines]
    return _entered(stack, Started(command, "net", folder / f"edgekit-{threads}-{instances}.log", port))


def triton(path: Path, folder: Path, stack: ExitStack) -> dict[str, Server]:
    """As `host export` writes it, with one instance, and with two."""
    from others import Triton

    installed, servers = Triton(folder), {}
    for name, count in (("Triton", 1), ("Triton, 2 instances", 2)):
        exported = folder / f"repository-{count}"
        command = [
            *EDGEKIT,
            "export",
            path,
            "--for",
            "triton",
            "--backend",
            "python",
            "--device",
            "cpu",
            "-o",
            exported,
        ]
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
        config = exported / "net" / "config.pbtxt"
        config.write_text(config.read_text().replace("count: 1", f"count: {count}"))
        servers[name] = _entered(stack, installed.serve(exported, "net"))
    return servers


def mlserver(data: bytes, folder: Path, stack: ExitStack) -> Server:
    from others import Started, environment
    from ports import free_port

    own, port = folder / "mlserver", free_port()
    (own / "models" / "net").mkdir(parents=True)
    (own / "net.onnx").write_bytes(data)
    python = environment(own, sys.executable, "mlserver==1.7.1", "onnxruntime")
    shutil.copy(TESTS / "interop" / "served" / "mlserver_models.py", own / "models")
    ports = {"http_port": port, "grpc_port": free_port(), "metrics_port": free_port()}
    (own / "models" / "settings.json").write_text(json.dumps({"host": "127.0.0.1", "parallel_workers": 0, **ports}))
    model = {"name": "net", "implementation": "mlserver_models.Onnx", "parameters": {"uri": str(own / "net.onnx")},
             "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, *SHAPE]}]}  # fmt: skip
    (own / "models" / "net" / "model-settings.json").write_text(json.dumps(model))
    command = [python.with_name("mlserver"), "start", own / "models"]
    return _entered(stack, Started(command, "net", own / "log", port, cwd=own / "models"))


def _entered(stack: ExitStack, started: Any) -> Server:
    running = stack.enter_context(started)
    return Server(running.url, running.process.pid)


def check(servers: dict[str, Server], x: np.ndarray) -> None:
    """All give the same answer."""
    answers = {}
    for name, server in servers.items():
        with HostClient(server.url, model="net") as client:
            answers[name] = client.infer({"x": x}, 60.0).outputs["y"]
    for name, answer in answers.items():
        np.testing.assert_allclose(answer, answers["edgekit"], rtol=1e-3, atol=1e-4, err_msg=name)


def measure(servers: dict[str, Server], x: np.ndarray, options: argparse.Namespace) -> dict[str, dict[str, object]]:
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
    for _ in range(options.rounds):
        for name, server in servers.items():
            wire = encode_request({"x": x}, binary=name != "MLServer")
            request = encoded("/v2/models/net/infer", wire.headers, wire.body())
            host, port = server.url.removeprefix("http://").split(":")
            before = cpu_s(server.pid)
            outcome = closed((host, int(port)), request, callers=options.callers, seconds=options.seconds, warm_s=0)
            assert set(outcome.latencies_ms) == {200}, (name, outcome.broken, list(outcome.latencies_ms))
            rounds[name].append(
                {
                    "a second": outcome.rate(),
                    "p50 ms": outcome.quantile(200, 0.5) or 0,
                    "p99 ms": outcome.quantile(200, 0.99) or 0,
                    "CPU ms a request": (cpu_s(server.pid) - before) * 1e3 / len(outcome.latencies_ms[200]),
                    "load": os.getloadavg()[0],
                }
            )
            print(name, {key: round(figure, 1) for key, figure in rounds[name][-1].items()}, file=sys.stderr)
    ours = {name: found for name, found in rounds.items() if name.startswith("edgekit")}
    return {name: _row(found, ours) for name, found in rounds.items()}


def _row(found: list[dict[str, float]], ours: dict[str, list[dict[str, float]]]) -> dict[str, object]:
    """Medians, and the medians of what each way of edgekit reached in the same round by it."""
    row: dict[str, object] = {key: statistics.median(one[key] for one in found) for key in found[0]}
    for name, own in ours.items():
        row[f"{name}, by it"] = {
            key: statistics.median(a[key] / b[key] for a, b in zip(own, found, strict=True))
            for key in ("a second", "p99 ms", "CPU ms a request")
        }
    return {**row, "rounds": found}


if __name__ == "__main__":
    main()
