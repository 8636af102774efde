"""Others' client against our server, and our client against others' servers, all real and each in its own environment.

The downloads are large (tritonclient 165 MB, nvidia-pytriton 370 MB, mlserver 320 MB unpacked); uv keeps them for the
next time. Without an index these tests are left out on a laptop, and fail in CI.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tiny
from parts import missing
from refusing import has_code
from served import Serving

from edgekit_runtime.errors import HostError
from edgekit_runtime.remote.client import HostClient

HERE = Path(__file__).parent
LONG = 30.0
STARTS_IN_S = 90.0
SYSTEM_PYTHON = Path("/usr/bin/python3")
X = {"x": np.linspace(-3, 3, 6, dtype=np.float32).reshape(1, 6)}

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(sys.platform != "linux", reason="Triton has wheels for Linux only"),
]


def environment(folder: Path, python: str | Path, *packages: str) -> Path:
    """A virtual environment with these packages; its python. Skips (in CI: fails) where they cannot be had."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        missing("uv", "pip install uv")
    target = folder / "venv"
    for command in (
        [uv, "venv", "--quiet", "--python", python, target],
        [uv, "pip", "install", "--quiet", "--python", target / "bin" / "python", *packages],
    ):
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=500)
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            missing(f"{' '.join(packages)} ({said[-1] if said else 'uv failed'})", f"pip install {' '.join(packages)}")
    return target / "bin" / "python"


class Started:
    """A server in a process of its own, until the end of the `with`; ready once our client says so."""

    def __init__(self, command: list, model: str, log: Path, port: int, **options):
        self.url, self.log, self._model = f"http://127.0.0.1:{port}", log, model
        self._command, self._options = [str(part) for part in command], options

    def __enter__(self):
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, **self._options
            )
        until = time.monotonic() + STARTS_IN_S
        with HostClient(self.url, model=self._model) as client:
            while True:
                try:
                    if client.ready(1.0):
                        return self
                except HostError:
                    pass
                if self._process.poll() is not None or time.monotonic() > until:
                    self.__exit__()
                    pytest.fail(f"the server did not start\n{self.log.read_text()[-3000:]}")
                time.sleep(0.1)  # another program's start can only be polled for

    def __exit__(self, *_):
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait(20)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


# Their client, our server.


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What tritonclient found out about our server."""
    folder = tmp_path_factory.mktemp("tritonclient")
    python = environment(folder, sys.executable, "tritonclient[http]>=2.50")
    np.save(folder / "x.npy", np.stack([tiny.RED, tiny.BLUE]))
    with Serving(tiny.bundle(folder)) as host:
        done = subprocess.run(
            [python, HERE / "asked_by_tritonclient.py", f"127.0.0.1:{host.port}", folder / "x.npy"],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        wanted = [host.model.predict(picture).outputs["probs"].tolist() for picture in (tiny.RED, tiny.BLUE)]
    return json.loads(done.stdout), wanted


def test_tritonclient_finds_our_server_healthy_and_described(told):
    found, _ = told
    assert [found[key] for key in ("live", "ready", "model_ready", "version_ready", "other_ready")] == [True] * 4 + [
        False
    ]
    assert found["server"]["extensions"] == ["binary_tensor_data"]
    assert found["model"]["inputs"] == [{"name": "image", "datatype": "UINT8", "shape": [-1, 8, 8, 3]}]
    assert found["index"] == [{"name": "tiny", "version": "1", "state": "READY", "reason": ""}]


@pytest.mark.parametrize("form", ["binary", "json", "mixed"])
def test_tritonclient_gets_our_answers_in_every_form(told, form):
    found, wanted = told
    assert found[form] == {"probs": wanted, "id": form}
    assert found["async"] == wanted


def test_tritonclient_is_told_what_was_wrong(told):
    found, _ = told
    assert [status for status, _ in found["errors"]] == ["404", "400", "400", "503", "404", "404"]
    assert found["errors"][0][1] == "there is no model 'other'; models: tiny"
    assert "[-1, 8, 8, 3] is taken" in found["errors"][2][1]


# Our client, their servers.


@pytest.fixture(scope="module")
def triton(tmp_path_factory):
    """The real Triton that comes in nvidia-pytriton, on the CPU. It is linked against Debian 12's own Python 3.11."""
    folder = tmp_path_factory.mktemp("triton")
    version = [SYSTEM_PYTHON, "-c", "import sys; print(sys.version_info[:2] == (3, 11))"]
    if not SYSTEM_PYTHON.exists() or subprocess.run(version, capture_output=True).stdout.strip() != b"True":
        missing("Debian 12's Python 3.11, against which Triton's Python backend is linked", "apt-get install python3")
    if ctypes.util.find_library("python3.11") is None:
        missing("libpython3.11, against which Triton's Python backend is linked", "apt-get install libpython3.11")
    bin_folder = environment(folder, SYSTEM_PYTHON, "nvidia-pytriton==0.7.0").parent
    (server,) = (folder / "venv").glob("lib/python3.11/site-packages/pytriton/tritonserver")
    stub = "triton_python_backend_stub"
    shutil.copy(server / "python_backend_stubs" / "3.11" / stub, server / "backends" / "python" / stub)
    repository(folder / "repository")
    port = free_port()
    command = [
        server / "bin" / "tritonserver", f"--model-repository={folder / 'repository'}",
        f"--backend-directory={server / 'backends'}", "--http-address=127.0.0.1", f"--http-port={port}",
        "--allow-grpc=false", "--allow-metrics=false", "--exit-timeout-secs=3",
    ]  # fmt: skip
    # Its Python backend takes whatever python3 is first on PATH.
    own = {"PATH": f"{bin_folder}:/usr/bin:/bin", "VIRTUAL_ENV": str(bin_folder.parent)}
    with Started(command, "dbl", folder / "log", port, env=own) as started:
        yield started


def repository(folder: Path) -> None:
    (folder / "dbl" / "1").mkdir(parents=True)
    shutil.copy(HERE / "triton_model.py", folder / "dbl" / "1" / "model.py")
    (folder / "dbl" / "config.pbtxt").write_text(
        'name: "dbl" backend: "python" max_batch_size: 8\n'
        "input [{name: 'x' data_type: TYPE_FP32 dims: [-1]}]\n"
        "output [{name: 'y' data_type: TYPE_FP32 dims: [-1]}]\n"
        "instance_group [{kind: KIND_CPU}]\n"
        "dynamic_batching {default_queue_policy {max_queue_size: 1 default_timeout_microseconds: 5000000 "
        "allow_timeout_override: true}}\n"
    )


def test_a_real_triton_answers_our_client_in_binary(triton):
    with HostClient(triton.url, model="dbl") as client:
        found = client.metadata(LONG)
        assert (found.server, found.binary, found.edgekit) == ("triton", True, None)
        assert [(i.name, i.datatype, i.shape) for i in found.inputs] == [("x", "FP32", (-1, -1))]
        for count in (1, 8):
            x = np.random.default_rng(count).normal(size=(count, 50_000)).astype(np.float32)
            np.testing.assert_array_equal(client.infer({"x": x}, LONG).outputs["y"], 2 * x)
        answer = client.infer(X, LONG)
        assert (answer.queue_ms, answer.infer_ms) == (None, None)
        assert client.ping(LONG) > 0


def test_a_real_triton_answers_our_client_in_json(triton):
    with HostClient(triton.url, model="dbl") as client:
        client.infer(X, LONG)
        client._known = type(client._known)(binary=False)
        np.testing.assert_array_equal(client.infer(X, LONG).outputs["y"], 2 * X["x"])


def test_a_real_tritons_refusals_are_typed(triton):
    with HostClient(triton.url, model="nobody") as client:
        assert client.ready(LONG) is False
        with pytest.raises(HostError, match="nobody", check=has_code("host-refused")):
            client.infer(X, LONG)
    with HostClient(triton.url, model="dbl") as client:
        with pytest.raises(HostError, match="400 ", check=has_code("host-refused")):
            client.infer({"z": X["x"]}, LONG)
        with pytest.raises(HostError, match="400 ", check=has_code("host-refused")):
            client.infer({"x": X["x"].astype(np.float64)}, LONG)


def test_a_slow_triton_is_late_and_a_full_one_busy(triton):
    slow = {"x": np.array([[0.6]], np.float32)}
    clients = [HostClient(triton.url, model="dbl") for _ in range(8)]
    start = time.monotonic()
    with pytest.raises(HostError, check=has_code("host-late")):
        clients[0].infer(slow, 0.1)
    assert time.monotonic() - start < 0.6  # when its answer comes
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(client.infer, slow, LONG) for client in clients]
        failures = [getattr(f.exception(LONG), "code", None) for f in futures]
    assert "host-busy" in failures
    assert set(failures) <= {"host-busy", None}
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def mlserver(tmp_path_factory):
    """MLServer has no binary tensors and says so by hanging up."""
    folder = tmp_path_factory.mktemp("mlserver")
    python = environment(folder, sys.executable, "mlserver==1.7.1")
    port = free_port()
    ports = {"http_port": port, "grpc_port": free_port(), "metrics_port": free_port()}
    (folder / "settings.json").write_text(json.dumps({"host": "127.0.0.1", "parallel_workers": 0, **ports}))
    (folder / "model-settings.json").write_text(json.dumps({"name": "dbl", "implementation": "served_model.Dbl"}))
    (folder / "served_model.py").write_text(
        "import numpy as np\n"
        "from mlserver import MLModel\n"
        "from mlserver.codecs import NumpyCodec\n"
        "from mlserver.types import InferenceResponse\n\n\n"
        "class Dbl(MLModel):\n"
        "    async def predict(self, payload):\n"
        "        x = NumpyCodec.decode_input(payload.inputs[0])\n"
        "        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output('y', 2 * x)])\n"
    )
    command = [python.with_name("mlserver"), "start", folder]
    with Started(command, "dbl", folder / "log", port, cwd=folder) as started:
        yield started


def test_a_real_mlserver_answers_our_client_in_json_after_one_probe(mlserver):
    with HostClient(mlserver.url, model="dbl") as client:
        assert not client.metadata(LONG).binary
        for _ in range(3):
            np.testing.assert_array_equal(client.infer(X, LONG).outputs["y"], 2 * X["x"])
        assert client._known.binary is False
    with HostClient(mlserver.url, model="nobody") as client:
        assert client.ready(LONG) is False
        with pytest.raises(HostError, check=has_code("host-refused", "host-unreachable")):
            client.infer(X, LONG)
