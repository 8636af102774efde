"""A device falls back to a real Triton, MLServer and KServe that serve an artifact of its own build."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tiny
from heated import heat, wait_for
from refusing import has_code

from edgekit_runtime import Host, open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.loading.replay import clearest_example
from edgekit_runtime.remote.remote_model import RemoteModel
from edgekit_runtime.system.errors import HostError

BUDGET_MS = 2000.0


@pytest.fixture(params=["triton", "mlserver", "kserve"])
def server(request):
    return request.getfixturevalue(request.param)


def test_a_device_that_would_be_late_is_answered_by_the_server(server, tmp_path):
    with open_bundle(tiny.bundle(tmp_path), hosts=[Host(server.url, model="tiny")], cache=False) as model:
        wait_for(lambda: model.describe()["hosts"][0]["p90_ms"] is not None)
        at_home = {name: model.predict(getattr(tiny, name)).outputs["probs"] for name in ("RED", "GREEN", "BLUE")}
        heat(model, BUDGET_MS)
        answers = {name: model.predict(getattr(tiny, name), budget_ms=BUDGET_MS) for name in at_home}
    for colour, answer in answers.items():
        assert (answer.source, answer.top(1)[0].label) == ("host", colour.lower())
        np.testing.assert_allclose(answer.outputs["probs"], at_home[colour], atol=0.05)  # float32 there, int8 here


def test_a_server_with_another_model_is_found_out(server, tmp_path):
    bundle = read_bundle(tiny.bundle(tmp_path))
    example = clearest_example(bundle)
    other = replace(example, answers=[{"probs": np.roll(answer["probs"], 1)} for answer in example.answers])
    model = RemoteModel(Host(server.url, model="tiny"), bundle.manifest, other)
    with pytest.raises(
        HostError,
        match="golden example differs, so it is of another model: the best class is",
        check=has_code("host-golden"),
    ):
        model.prove(30.0)
    assert not model.proven
    model.close()


def test_the_metadata_of_the_server_says_what_travels(server, tmp_path):
    bundle = read_bundle(tiny.bundle(tmp_path))
    model = RemoteModel(
        Host(server.url, model="tiny", inputs={"image": "x"}), bundle.manifest, clearest_example(bundle)
    )
    with pytest.raises(HostError, match="no input 'x'", check=has_code("host-refused")) as caught:
        model.prove(30.0)
    assert "image FP32 [-1, 3, 8, 8]" in caught.value.do
    model.close()
