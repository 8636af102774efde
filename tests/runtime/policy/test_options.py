"""What makes no sense as an option is one ValueError that names it, before anything is loaded."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import get_args

import pytest
import tiny

from edgekit_runtime import CacheOptions, ModelLimits, OptionError, TelemetryOptions, open_bundle
from edgekit_runtime.engines.registry import ANY_GPU, ENGINES, available
from edgekit_runtime.policy.budget import PRESETS_MS, Use
from edgekit_runtime.policy.options import EngineName
from edgekit_runtime.system.memory import MemoryBudget
from edgekit_runtime.telemetry.metrics import serve_metrics

HUGE = 10**400
NO_NUMBERS = ("5", b"5", [5], {}, object(), True, HUGE)
NO_PATHS = (5, True, b"file", [5], {}, object(), "", "nul\0l")
NO_MODELS = (5, "5", b"5", [5], {}, object(), True)
NONSENSE = {
    open_bundle: {
        "path": (*NO_PATHS, None),
        "trust": (5, True, b"file", [5], object(), None, ["nul\0l"]),
        "allow_unsigned": (5, "yes", None),
        "engine": (5, b"litert", [5], {}, object(), True, "nul\0l"),
        "threads": (*NO_NUMBERS, 0, 1.5),
        "delegate": (5, b"lib.so", [5], object(), True, "nul\0l"),
        "pin": (5, "fastest"),
        "isolate": (5, "yes", None),
        "budget_ms": (*NO_NUMBERS, 0, float("nan")),
        "use": (5, [5], {}, object(), "fun"),
        "cache": (5, 64, {}, None),
        "limits": (5, {}, True),
        "hosts": (5, "http://a", b"http://a", [5], object(), True),
        "telemetry": (5, "mqtt://a", True),
    },
    CacheOptions: {
        "memory_mb": (*NO_NUMBERS, None, -1, float("inf"), float("nan")),
        "ttl_s": (*NO_NUMBERS, 0, float("nan")),
        "disk": (*NO_PATHS, Path(), "."),
        "disk_mb": (*NO_NUMBERS, None, 0),
        "similar": (*NO_NUMBERS, -1),
        "semantic": NO_MODELS,
    },
    ModelLimits: {
        "queue": (*NO_NUMBERS[:-1], None, 0),
        "batching": (5, "yes", object()),
        "hang_s": (*NO_NUMBERS, 0, -1, float("inf"), float("nan"), 1e10),
        "memory": (*NO_MODELS, 400),
    },
    TelemetryOptions: {"spool": (5, b"file", [5], object(), True, "nul\0l", "")},
}
GOOD = {TelemetryOptions: {"broker": "mqtt://h", "device": "porch-1"}}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny.bundle_for(min(available()), tmp_path_factory.mktemp("options"))


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [(owner, name, value) for owner in NONSENSE for name, values in NONSENSE[owner].items() for value in values],
    ids=lambda one: getattr(one, "__name__", f"{one!r:.12}"),
)
def test_nonsense_is_an_option_error_that_names_the_option_and_its_owner(path, owner, name, value):
    given = GOOD.get(owner, {"path": path} if owner is open_bundle else {})
    with pytest.raises(OptionError, match="must be") as caught:
        owner(**given | {name: value})
    assert (caught.value.option, caught.value.owner) == (name, owner.__name__)
    assert caught.value.code == "option"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_no_hosts_may_be_none(path):
    with open_bundle(path, hosts=None) as model:
        assert "hosts" not in model.describe() or not model.describe()["hosts"]


def test_a_secret_that_is_none_is_refused_too(path):
    with pytest.raises(ValueError, match="secret must be"):
        open_bundle(path, secret=5)


def test_the_types_name_what_there_is():
    assert set(get_args(EngineName)) == {*ENGINES, ANY_GPU}
    assert set(get_args(Use)) == set(PRESETS_MS)


def test_open_bundle_has_few_options():
    assert len(inspect.signature(open_bundle).parameters) - 1 <= 15


@pytest.mark.parametrize("isolate", [False, True])
def test_the_longest_time_to_hang_may_be_asked_for(path, monkeypatch, isolate):
    monkeypatch.setenv("EDGEKIT_TUNE", "off")
    with open_bundle(path, limits=ModelLimits(hang_s=86_400), isolate=isolate) as model:
        assert model.submit(tiny.RED).result(60).top(1)[0].label == "red"


def test_so_is_what_a_model_is_asked_later(path, monkeypatch):
    monkeypatch.setenv("EDGEKIT_TUNE", "off")
    with open_bundle(path) as model:
        for value in ("5", None, [], HUGE, -1):
            with pytest.raises(ValueError, match="delay_ms"):
                model.throttle(value)
        with pytest.raises(ValueError, match="path"):
            model.swap(5)
        with pytest.raises(ValueError, match="timeout_s"):
            model.swap(path, timeout_s="5")
        for port in ("9", None, 9.5, True):
            with pytest.raises(ValueError, match="port must be a whole number"):
                serve_metrics(model, port=port)
        with pytest.raises(ValueError, match="of must be a model"):
            serve_metrics("model")
        assert model.predict(tiny.RED, budget_ms=HUGE).met_budget is None, "as long as it takes"


@pytest.mark.parametrize("value", ["5", None, [], HUGE, True, 0, float("nan"), float("inf")])
def test_a_budget_of_memory_is_a_number(value):
    with pytest.raises(ValueError, match="total_mb"):
        MemoryBudget(value)
