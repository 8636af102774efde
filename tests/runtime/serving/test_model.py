"""The facade's promises, with real engines on a real, tiny bundle."""

from __future__ import annotations

import asyncio
import re
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import get_type_hints

import numpy as np
import pytest
import tiny
from PIL import Image

from edgekit_runtime import BudgetExceeded, CacheOptions, open_bundle
from edgekit_runtime.engines.registry import available
from edgekit_runtime.serving.describe_and_stats import EngineDescription, ModelDescription
from edgekit_runtime.serving.request import Request
from edgekit_runtime.system.errors import BundleError, ClosedError, InputError

LONG = 30


@pytest.fixture(scope="module", params=sorted(available()))
def path(request, tmp_path_factory):
    return tiny.bundle_for(request.param, tmp_path_factory.mktemp("model")), request.param


@pytest.fixture
def model(path):
    with open_bundle(path[0], engine=path[1]) as opened:
        yield opened


PICTURES = {"red": tiny.RED, "green": tiny.GREEN, "blue": tiny.BLUE, "dark": tiny.DARK}


@pytest.mark.parametrize("label", PICTURES)
def test_names_what_it_sees(model, label):
    best = model.predict(PICTURES[label]).top(1)[0]
    assert best.label == label
    assert 0.5 < best.score <= 1.0


def test_takes_a_picture_in_every_form(model, tmp_path):
    picture = Image.fromarray(np.full((40, 60, 3), (20, 230, 20), np.uint8))
    picture.save(tmp_path / "g.png")
    forms = [
        tmp_path / "g.png",
        str(tmp_path / "g.png"),
        (tmp_path / "g.png").read_bytes(),
        picture,
        np.asarray(picture),
        (tiny.GREEN / 255).astype(np.float32),
        {"image": picture},
    ]
    assert {model.predict(form).top(1)[0].label for form in forms} == {"green"}


def test_a_model_and_an_answer_show_themselves_in_a_line(model):
    answer = model.predict(tiny.GREEN)
    assert re.fullmatch(r"<Model tiny version 1: \S+ on \S+ \S+, ready>", repr(model))
    assert re.fullmatch(
        r"<Answer green [\d.]+, \w+ \S+, \w+ \S+; from the device in [\d.e-]+ ms with \S+ on \S+ \S+>", repr(answer)
    )
    model.close()
    assert repr(model).endswith(", closed>")


def test_every_field_of_the_description_is_typed(model):
    described = model.describe()
    assert described.keys() == get_type_hints(ModelDescription).keys()
    assert described["telemetry"] is None
    assert described["engine"].keys() == get_type_hints(EngineDescription).keys()


def test_an_answer_says_where_it_came_from_and_how_long_each_stage_took(model):
    answer = model.predict(tiny.RED, budget_ms=60_000)
    assert (answer.source, answer.met_budget) == ("device", True)
    assert set(answer.timings) == {"identify", "decode", "adapt", "queue", "engine", "finish", "total"}
    assert answer.timings["total"] >= answer.timings["engine"] > 0
    assert answer.outputs["probs"].shape == (4,)


def test_a_missed_budget_is_told_and_counted(model):
    model.throttle(100)  # it does not know that yet
    answer = model.predict(tiny.RED, budget_ms=50)
    assert answer.met_budget is False
    assert model.stats().meter.over_budget == 1


def test_what_cannot_be_met_is_refused_at_once_and_known_again_when_the_device_recovers(model):
    model.throttle(100)
    model.predict(tiny.RED)
    with pytest.raises(BudgetExceeded, match="within 50 ms"):
        model.predict(tiny.BLUE, budget_ms=50)
    model.throttle(0)
    deadline = time.monotonic() + 30
    while True:
        try:
            assert model.predict(tiny.GREEN, budget_ms=50).source == "device"
            break
        except BudgetExceeded:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_the_same_picture_comes_from_the_cache_bit_for_bit(model):
    first, second = model.predict(tiny.RED), model.predict(tiny.RED.copy())
    assert (first.source, second.source) == ("device", "cache")
    np.testing.assert_array_equal(first.outputs["probs"], second.outputs["probs"])
    assert model.stats().cache.hits == 1


def test_one_pixel_more_is_never_answered_from_the_cache(model):
    other = tiny.RED.copy()
    other[3, 3, 1] ^= 1
    model.predict(tiny.RED)
    assert model.predict(other).source == "device"


def test_outputs_are_read_only(model):
    with pytest.raises(ValueError, match="read-only"):
        model.predict(tiny.RED).outputs["probs"][0] = 1.0


def test_flushing_the_cache_asks_the_device_again(model):
    model.predict(tiny.RED)
    model.flush_cache()
    assert model.predict(tiny.RED).source == "device"


def test_a_cache_of_no_bytes_is_off(path):
    with open_bundle(path[0], engine=path[1], cache=False) as model:
        assert [model.predict(tiny.RED).source for _ in range(2)] == ["device", "device"]
        assert model.stats().cache is None


def test_the_frame_may_be_reused_once_submit_has_returned(model):
    frame = tiny.RED.copy()
    futures = []
    for picture in (tiny.RED, tiny.GREEN, tiny.BLUE, tiny.DARK):
        frame[:] = picture
        futures.append(model.submit(frame))
        frame[:] = 0
    assert [f.result(LONG).top(1)[0].label for f in futures] == ["red", "green", "blue", "dark"]


def test_a_ready_tensor_may_be_reused_too(model):
    adapted = np.ascontiguousarray(model._journey.device.adapt(Request(), {"image": tiny.RED})[0][0])
    if adapted.dtype == np.float32:
        adapted = (tiny.RED / 255).astype(np.float32)
    future = model.submit(adapted)
    adapted[:] = 0
    assert future.result(LONG).top(1)[0].label == "red"


def test_many_threads_each_get_their_own_answer(model):
    rng = np.random.default_rng(0)
    pictures = [
        np.clip(base.astype(int) + rng.integers(0, 20, base.shape), 0, 255).astype(np.uint8)
        for base in PICTURES.values()
        for _ in range(25)
    ]
    wanted = [label for label in PICTURES for _ in range(25)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(model.predict, pictures))
    assert [answer.top(1)[0].label for answer in answers] == wanted
    assert model.stats().meter.requests == 100


def test_identical_requests_in_flight_share_one_inference(model):
    gate, entered, runs = threading.Event(), threading.Event(), []
    engine_run = model._journey.device.engine.run

    def slow(tensors):
        runs.append(1)
        entered.set()
        assert gate.wait(LONG)
        return engine_run(tensors)

    model._journey.device.engine.run = slow
    leader = model.submit(tiny.RED)
    assert entered.wait(LONG)
    followers = [model.submit(tiny.RED.copy()) for _ in range(5)]
    gate.set()
    assert {f.result(LONG).top(1)[0].label for f in [leader, *followers]} == {"red"}
    assert len(runs) == 1
    assert all("joined" in f.result().timings for f in followers)


def test_an_engine_failure_reaches_the_leader_and_its_followers_and_the_next_request_works(model):
    gate, entered = threading.Event(), threading.Event()
    engine_run = model._journey.device.engine.run

    def broken(tensors):
        entered.set()
        assert gate.wait(LONG)
        raise RuntimeError("a cosmic ray")

    model._journey.device.engine.run = broken
    leader = model.submit(tiny.RED)
    assert entered.wait(LONG)
    follower = model.submit(tiny.RED.copy())
    gate.set()
    for future in (leader, follower):
        with pytest.raises(RuntimeError, match="a cosmic ray"):
            future.result(LONG)
    model._journey.device.engine.run = engine_run
    assert model.predict(tiny.RED).top(1)[0].label == "red"
    assert model.stats().meter.errors == {"RuntimeError": 2}


def test_a_cancelled_future_leaves_the_others_alone(model):
    futures = [model.submit(picture) for picture in PICTURES.values()]
    futures[1].cancel()
    assert futures[3].result(LONG).top(1)[0].label == "dark"


def test_answers_can_be_awaited(model):
    async def ask():
        return await asyncio.gather(*(model.apredict(picture) for picture in PICTURES.values()))

    assert [answer.top(1)[0].label for answer in asyncio.run(ask())] == list(PICTURES)


@pytest.mark.parametrize("ask", ["predict", "submit"])
def test_bad_input_raises_at_once_and_frees_the_key(model, ask):
    for _ in range(2):  # the second would wait for ever for a flight that nobody landed
        with pytest.raises(InputError):
            getattr(model, ask)(b"not a picture")
    assert model.predict(tiny.RED).top(1)[0].label == "red"
    assert model.stats().meter.errors["input"] == 2


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"picture": tiny.RED}, "unknown input 'picture'"),
        ({}, "'image' is missing"),
        ({"image": tiny.RED, "more": 1}, "unknown input 'more'"),
    ],
)
def test_wrong_names_are_told_with_the_right_ones(model, inputs, why):
    with pytest.raises(InputError, match=f"{why}.*Inputs: image"):
        model.predict(inputs)


def test_a_closed_model_refuses_new_requests(path):
    model = open_bundle(path[0], engine=path[1])
    model.close()
    with pytest.raises(ClosedError):
        model.predict(tiny.RED)
    model.close()


def test_closing_leaves_no_thread_behind(path):
    before = set(threading.enumerate())
    with open_bundle(path[0], engine=path[1]) as model:
        model.submit(tiny.RED).result(LONG)
    assert set(threading.enumerate()) <= before


def test_describe_tells_what_answers_here(model, path):
    described = model.describe()
    assert described["engine"]["name"] == path[1]
    assert described["selftest"]["examples"] == 2
    assert described["inputs"] == {"image": "xor" if tiny.RECIPE_OF_ENGINE[path[1]] == "tflite-int8" else "float"}


def test_an_engine_that_cannot_run_it_is_a_typed_error(path):
    other = "onnxruntime" if tiny.RECIPE_OF_ENGINE[path[1]] == "tflite-int8" else "litert"
    with pytest.raises(BundleError, match=f"nothing in it runs on {other}"):
        open_bundle(path[0], engine=other)


def test_a_callers_change_never_reaches_the_next_caller(model):
    first = model.predict(tiny.RED)
    with pytest.raises(TypeError):
        first.outputs["probs"] = np.zeros(4)
    with pytest.raises(ValueError, match="WRITEABLE"):
        first.outputs["probs"].setflags(write=True)
    assert model.predict(tiny.RED).top(1)[0].label == "red"


def test_a_callback_may_ask_for_what_is_already_on_its_way(model):
    entered, gate, answers = threading.Event(), threading.Event(), []
    engine_run = model._journey.device.engine.run

    def slow(tensors):
        entered.set()
        assert gate.wait(LONG)
        return engine_run(tensors)

    model._journey.device.engine.run = slow
    first = model.submit(tiny.RED)
    first.add_done_callback(lambda done: answers.append(model.predict(tiny.BLUE)))
    assert entered.wait(LONG)
    second = model.submit(tiny.BLUE)
    gate.set()
    assert second.result(LONG).top(1)[0].label == "blue"
    assert model.predict(tiny.DARK).top(1)[0].label == "dark"
    assert [answer.top(1)[0].label for answer in answers] == ["blue"]


@pytest.mark.parametrize(
    "options", [{"threads": 0}, {"threads": -3}, {"threads": 10**6}, {"threads": 1.5}, {"isolate": "yes"},
        {"cache": 64},
                {"limits": 16}, {"hosts": "http://box:1"}],
)  # fmt: skip
def test_impossible_options_are_the_callers_bug(path, options):
    with pytest.raises(ValueError, match="must be"):
        open_bundle(path[0], engine=path[1], **options)


def test_a_bound_without_a_disk_is_warned_of_where_it_was_written(tmp_path):
    with pytest.warns(UserWarning, match="disk_mb has no effect without disk=") as caught:
        CacheOptions(disk_mb=16)
    assert [one.filename for one in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CacheOptions(disk=tmp_path / "answers", disk_mb=16)


@pytest.mark.parametrize("budget_ms", [0, -1, float("nan"), "5", True, [5], np.array([5, 6])])
@pytest.mark.parametrize("ask", ["predict", "submit"])
def test_an_impossible_budget_is_the_callers_bug(model, ask, budget_ms):
    with pytest.raises(ValueError, match="budget_ms must be a number of milliseconds above 0, not "):
        getattr(model, ask)(tiny.RED, budget_ms=budget_ms)


@pytest.mark.parametrize("budget_ms", [10_000, 1e4, np.float32(1e4), np.int64(10_000), float("inf")])
def test_a_budget_is_any_number(model, budget_ms):
    assert model.predict(tiny.RED, budget_ms=budget_ms).met_budget is (None if budget_ms == float("inf") else True)


@pytest.mark.parametrize("priority", ["x", 1.5, None, 10**6])
@pytest.mark.parametrize("ask", ["predict", "submit"])
def test_an_impossible_priority_is_the_callers_bug(model, ask, priority):
    with pytest.raises(ValueError, match="priority must be a whole number from -1000 to 1000, not "):
        getattr(model, ask)(tiny.RED, priority=priority)


def test_a_closed_model_answers_nothing_from_its_cache_either(path):
    model = open_bundle(path[0], engine=path[1])
    model.predict(tiny.RED)
    model.close()
    with pytest.raises(ClosedError):
        model.predict(tiny.RED)


@pytest.mark.parametrize("k", [0, -1, "a", 1.5, None])
def test_top_of_nothing_is_the_callers_bug(model, k):
    with pytest.raises(ValueError, match="k must be a whole number of at least 1"):
        model.predict(tiny.RED).top(k)


@pytest.mark.parametrize(
    "value",
    [np.array(["2020-01-01"], "M8[D]"), np.array(["cat"]), {1: 2, "a": 3}],
    ids=["dates", "words", "mixed keys"],
)
def test_whatever_is_given_the_error_is_ours(model, value):
    with pytest.raises(InputError):
        model.predict(value)
