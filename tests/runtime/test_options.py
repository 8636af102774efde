"""What makes no sense as an option is one ValueError that names it, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny

from edgekit_runtime import open_bundle
from edgekit_runtime.engines import available
from edgekit_runtime.memory import MemoryBudget
from edgekit_runtime.metrics import serve_metrics

HUGE = 10**400
NO_NUMBERS = ("5", b"5", [5], {}, object(), True, HUGE)
NO_PATHS = (5, True, b"file", [5], {}, object(), "", "nul\0l")
NO_MODELS = (5, "5", b"5", [5], {}, object(), True)
NONSENSE = {
    "path": (*NO_PATHS, None),
    "allow_unsigned": (5, "yes", None),
    "trust": (5, True, b"file", [5], object(), None, ["nul\0l"]),
    "cache_mb": (*NO_NUMBERS, None, -1, float("inf"), float("nan")),
    "ttl_s": (*NO_NUMBERS, 0, float("nan")),
    "threads": (*NO_NUMBERS, 0, 1.5),
    "engine": (5, b"litert", [5], {}, object(), True, "nul\0l"),
    "budget_ms": (*NO_NUMBERS, 0, float("nan")),
    "use": (5, [5], {}, object(), "fun"),
    "batching": (5, "yes", object()),
    "queue_limit": (*NO_NUMBERS[:-1], None, 0),
    "disk_cache": (*NO_PATHS, Path(), "."),
    "disk_cache_mb": (*NO_NUMBERS, None, 0),
    "similar": (*NO_NUMBERS, -1),
    "semantic": NO_MODELS,
    "delegate": (5, b"lib.so", [5], object(), True, "nul\0l"),
    "isolate": (5, "yes", None),
    "memory": (*NO_MODELS, 400),
    "hang_s": (*NO_NUMBERS, 0, -1, float("inf"), float("nan"), 1e10),
    "hosts": (5, "http://a", b"http://a", [5], object(), True, None),
    "spool": (5, b"file", [5], object(), True, "nul\0l", ""),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny.bundle_for(min(available()), tmp_path_factory.mktemp("options"))


@pytest.mark.filterwarnings("ignore:open_bundle")
@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in NONSENSE.items() for value in values],
    ids=lambda one: one if type(one) is str and one in NONSENSE else f"{one!r:.12}",
)
def test_nonsense_is_a_value_error_that_names_the_option(path, name, value):
    options = {"path": path, name: value}
    with pytest.raises(ValueError, match=name):
        open_bundle(options.pop("path"), **options)


@pytest.mark.parametrize("isolate", [False, True])
def test_the_longest_time_to_hang_may_be_asked_for(path, monkeypatch, isolate):
    monkeypatch.setenv("EDGEKIT_TUNE", "off")
    with open_bundle(path, hang_s=86_400, isolate=isolate) as model:
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
