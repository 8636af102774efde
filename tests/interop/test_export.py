"""What `edgekit host export` writes is what a real Triton reads and serves, and a device falls back to it."""

from __future__ import annotations

import http.client
import json
import subprocess
from urllib.parse import urlsplit

import numpy as np
import pytest
import tiny
from heated import heat, wait_for
from others import Triton

from edgekit.host.export import Export, export
from edgekit_runtime import Host, open_bundle
from edgekit_runtime.bundle.manifest import Target
from edgekit_runtime.bundle.reader import read_bundle

BUDGET_MS = 2000.0
ON_GPU = Target("host-gpu", "x86_64", threads=1)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return Triton(tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="module")
def exported(program, tmp_path_factory):
    """(the bundle, what was written for the Python backend, the Triton that serves it)."""
    folder = tmp_path_factory.mktemp("exported")
    bundle = read_bundle(tiny.bundle(folder, "onnx-f32", target=ON_GPU))
    made = export(bundle, folder / "repository", Export(backend="python", gpu=False))
    with program.serve(folder / "repository", made.model) as server:
        yield bundle, made, server


def get(url, path):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    told = json.loads(answer.read())
    connection.close()
    return told


def test_triton_reads_the_configuration_as_it_was_meant(exported):
    _, made, server = exported
    told = get(server.url, f"/v2/models/{made.model}/config")
    assert (told["name"], told["backend"], told["max_batch_size"]) == ("tiny", "python", 32)
    assert told["input"][0]["dims"] == [3, 8, 8]
    assert [(one["count"], one["kind"]) for one in told["instance_group"]] == [(1, "KIND_CPU")]
    batching = told["dynamic_batching"]
    assert batching["preferred_batch_size"] == [8, 16, 32]
    assert int(batching["max_queue_delay_microseconds"]) == 0
    assert batching["default_queue_policy"]["allow_timeout_override"] is True
    assert [one["batch_size"] for one in told["model_warmup"]] == [1, 8, 16, 32, 1]


def test_its_instances_were_warmed_up_with_every_example_and_batch(exported):
    stats = get(exported[2].url, "/v2/models/tiny/stats")["model_stats"][0]
    assert stats["inference_count"] >= 1 + 8 + 16 + 32 + 1
    assert stats["inference_stats"]["fail"]["count"] == 0


def test_a_device_falls_back_to_it_and_gets_the_golden_answers(exported):
    bundle, made, server = exported
    host = eval(made.host_line(server.url), {"Host": Host})
    assert host == Host(server.url, model="tiny")
    with open_bundle(bundle.path, hosts=[host], cache=False) as model:
        wait_for(lambda: model.describe()["hosts"][0]["p90_ms"] is not None)
        at_home = {name: model.predict(getattr(tiny, name)).outputs["probs"] for name in ("RED", "GREEN", "BLUE")}
        heat(model, BUDGET_MS)
        answers = {name: model.predict(getattr(tiny, name), budget_ms=BUDGET_MS) for name in at_home}
    for colour, answer in answers.items():
        assert (answer.source, answer.top(1)[0].label) == ("host", colour.lower())
        np.testing.assert_allclose(answer.outputs["probs"], at_home[colour], atol=1e-5)


@pytest.mark.parametrize(("gpu", "more"), [(True, ""), (False, ""), (False, "no_such_field: 1")])
def test_the_configuration_for_the_onnxruntime_backend_is_one_that_triton_parses(program, tmp_path, gpu, more):
    """This Triton has no such backend: it reads the configuration, and then misses the library."""
    bundle = read_bundle(tiny.bundle(tmp_path, "onnx-f32", target=ON_GPU))
    made = export(bundle, tmp_path / "repository", Export(gpu=gpu))
    with (tmp_path / "repository" / made.model / "config.pbtxt").open("a") as config:
        config.write(more)
    server = program.serve(tmp_path / "repository", made.model)
    done = subprocess.run(server._command, capture_output=True, text=True, timeout=90, **server._options)
    parsed = "unable to find backend library for backend 'onnxruntime'" in done.stdout + done.stderr
    assert parsed == (not more)
