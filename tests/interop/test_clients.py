"""Others' client against our server, and our client against others' servers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
from others import environment, is_ready
from refusing import has_code
from served import Serving

from edgekit_runtime.remote.client import HostClient
from edgekit_runtime.system.errors import HostError

HERE = Path(__file__).parent
LONG = 30.0
X = {"x": np.linspace(-3, 3, 6, dtype=np.float32).reshape(1, 6)}


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
    assert found["errors"][0][1] == "unknown model 'other'; models: tiny"
    assert "expected [-1, 8, 8, 3]" in found["errors"][2][1]


# Our client, their servers.


def test_a_real_triton_answers_our_client_in_binary(triton):
    with HostClient(triton.url, model="dbl") as client:
        found = client.greet(LONG)
        assert (found.binary, found.edgekit) == (True, None)
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
        client._known = replace(client._known, binary=False)
        np.testing.assert_array_equal(client.infer(X, LONG).outputs["y"], 2 * X["x"])


def test_a_real_tritons_refusals_are_typed(triton):
    with HostClient(triton.url, model="nobody") as client:
        assert not is_ready(triton.url, "nobody")
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


def test_a_real_mlserver_answers_our_client_in_json_after_one_probe(mlserver):
    with HostClient(mlserver.url, model="dbl") as client:
        assert not client.greet(LONG).binary
        for _ in range(3):
            np.testing.assert_array_equal(client.infer(X, LONG).outputs["y"], 2 * X["x"])
        assert client._known.binary is False
    with HostClient(mlserver.url, model="nobody") as client:
        assert not is_ready(mlserver.url, "nobody")
        with pytest.raises(HostError, check=has_code("host-refused", "host-unreachable")):
            client.infer(X, LONG)
