"""What becomes of a request on its way: tiers, budgets, queues, and those that wait together."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import tiny

from edgekit_runtime import BudgetExceeded, CacheOptions, ModelLimits, QueueFull, open_bundle
from edgekit_runtime.cache.identity import identify
from edgekit_runtime.engines.registry import available
from edgekit_runtime.serving.request import Request
from edgekit_runtime.system.errors import ClosedError

ENGINE = min(available())
LONG = 30


@pytest.fixture
def path(tmp_path):
    return tiny.bundle(tmp_path, tiny.RECIPE_OF_ENGINE[ENGINE], engine=ENGINE)


def noisy(picture, by=1):
    return np.clip(picture.astype(np.int16) + by, 0, 255).astype(np.uint8)


def test_what_looks_alike_gets_the_earlier_answer_and_says_so(path):
    with open_bundle(path, cache=CacheOptions(similar=3.0)) as model:
        first = model.predict(tiny.RED)
        again = model.predict(noisy(tiny.RED))
        other = model.predict(tiny.BLUE)
    assert (first.source, again.source, other.source) == ("device", "similar", "device")
    assert 0 < again.distance <= 3.0
    assert first.distance is None
    assert np.array_equal(again.outputs["probs"], first.outputs["probs"])


def test_a_similar_answer_is_never_kept_as_the_exact_one(path):
    with open_bundle(path, cache=CacheOptions(similar=3.0)) as model:
        model.predict(tiny.RED)
        sources = [model.predict(noisy(tiny.RED)).source for _ in range(2)]
    assert sources == ["similar", "similar"]


def test_the_disk_tier_answers_after_a_restart(path, tmp_path):
    file = tmp_path / "answers.db"
    with open_bundle(path, cache=CacheOptions(disk=file)) as model:
        model.throttle(50)  # what takes no time is not worth a card's wear
        first = model.predict(tiny.RED)
    with open_bundle(path, cache=CacheOptions(disk=file)) as model:
        again = model.predict(tiny.RED)
        assert model.stats().cache.disk.hits == 1
    assert again.source == "cache"
    assert np.array_equal(again.outputs["probs"], first.outputs["probs"])


def test_an_answer_past_its_time_is_better_than_none_where_the_caller_says_so(path):
    with open_bundle(path, cache=CacheOptions(ttl_s=0.001)) as model:
        model.throttle(100)
        kept = model.predict(tiny.RED)
        time.sleep(0.002)
        with pytest.raises(BudgetExceeded):
            model.predict(tiny.RED, budget_ms=20)
        stale = model.predict(tiny.RED, budget_ms=20, stale_ok=True)
        with pytest.raises(BudgetExceeded):
            model.predict(tiny.BLUE, budget_ms=20, stale_ok=True)  # nothing is known of it
    assert stale.source == "stale"
    assert np.array_equal(stale.outputs["probs"], kept.outputs["probs"])


def test_the_budget_of_the_bundle_or_of_its_use_holds_where_a_request_names_none(path):
    with open_bundle(path, use="vehicle", cache=False) as model:
        assert model.predict(tiny.RED).met_budget is not None
        assert model.predict(tiny.RED, budget_ms=float("inf")).met_budget is None
    with pytest.raises(ValueError, match="use must be one of voice"):
        open_bundle(path, use="toaster")


def test_who_joins_a_request_is_not_refused_for_its_budget(path):
    """The first of two identical requests has no time, the second has."""
    with open_bundle(path) as model:
        model.throttle(60)
        model.predict(tiny.DARK)
        watch = model._journey.device.watch
        joined = []

        def refusing(items):  # the leader is being refused: now the other one comes
            joined.append(model.submit(tiny.RED))
            watch(items)

        model._journey.device.watch = refusing
        with pytest.raises(BudgetExceeded):
            model.predict(tiny.RED, budget_ms=5)
        model._journey.device.watch = watch
        answer = joined[0].result(LONG)
    assert answer.top(1)[0].label == "red"
    assert answer.source == "device"


def test_who_joins_a_request_that_takes_an_answer_past_its_time_gets_one_of_its_own(path):
    with open_bundle(path, cache=CacheOptions(ttl_s=0.001)) as model:
        model.throttle(60)
        model.predict(tiny.RED)
        time.sleep(0.002)
        watch = model._journey.device.watch
        joined = []

        def refusing(items):
            joined.append(model.submit(tiny.RED))
            watch(items)

        model._journey.device.watch = refusing
        leader = model.predict(tiny.RED, budget_ms=5, stale_ok=True)
        model._journey.device.watch = watch
        assert (leader.source, joined[0].result(LONG).source) == ("stale", "device")


def test_only_a_request_that_leads_parts_from_those_that_joined_it_and_only_once(path):
    with open_bundle(path) as model:
        journey = model._journey
        one = Request(key=identify({"image": tiny.RED}, model.kept_form.namespace)[0])
        _, one.leads = journey.flights.join(one.key)
        journey._part(Request(key=one.key), BudgetExceeded("x"))  # another request, which does not lead
        flight, leads = journey.flights.join(one.key)
        assert not leads
        journey._part(one, BudgetExceeded("no time"))
        assert flight.exception(LONG).what == "no time"
        assert not one.leads
        assert journey.flights.join(one.key)[1]  # the next one leads


def test_those_that_joined_say_where_the_answer_came_from(path):
    with open_bundle(path, cache=CacheOptions(similar=3.0)) as model:
        model.predict(tiny.RED)
        model.throttle(50)
        futures = [model.submit(tiny.GREEN) for _ in range(3)]
        assert {future.result(LONG).source for future in futures} == {"device"}
        assert model.stats().meter.answers["device"] == 4
        assert sum(model.stats().batching.batches.values()) == 2


def test_a_request_that_may_well_be_late_is_counted(path):
    """The last inference would fit the budget, the 90th percentile would not."""
    with open_bundle(path, cache=False) as model:
        model.throttle(500)
        model.predict(tiny.RED)
        model.throttle(0)
        model.predict(tiny.RED)
        assert model.stats().predicted_late == 0
        model.predict(tiny.RED, budget_ms=250)
        model.predict(tiny.RED, budget_ms=2000)
        assert model.stats().predicted_late == 1


def test_a_full_queue_refuses_at_once(path):
    with open_bundle(path, limits=ModelLimits(queue=2), cache=False) as model:
        model.throttle(50)
        taken, refused = [], 0
        for fill in range(20):
            try:
                taken.append(model.submit(tiny.colour(fill, fill, fill)))
            except QueueFull:
                refused += 1
        assert refused
        assert all(future.result(LONG).top(1) for future in taken)
        assert model.stats().meter.errors["queue-full"] == refused


def test_a_withdrawn_request_is_not_run(path):
    with open_bundle(path, cache=False) as model:
        model.throttle(30)
        futures = [model.submit(tiny.colour(fill, 0, 0)) for fill in range(6)]
        withdrawn = [future.cancel() for future in futures[3:]]
        assert [future.result(LONG).top(1)[0].index for future in futures[:3]]
        assert all(withdrawn)
        assert model.stats().batching.cancelled == 3
        assert sum(model.stats().batching.batches.values()) <= 3


def test_the_more_urgent_goes_first(path):
    order, lock = [], threading.Lock()
    with open_bundle(path, cache=False, limits=ModelLimits(batching=False)) as model:
        model.throttle(20)

        def note(name):
            def done(_):
                with lock:
                    order.append(name)

            return done

        futures = []
        for name, priority in (("first", 0), ("second", 0), ("urgent", 5)):
            future = model.submit(tiny.RED, priority=priority)
            future.add_done_callback(note(name))
            futures.append(future)
        for future in futures:
            future.result(LONG)
    assert order.index("urgent") < order.index("second")


def test_closing_fails_what_is_left_with_a_typed_error(path):
    model = open_bundle(path, cache=False, limits=ModelLimits(batching=False))
    model.throttle(200)
    futures = [model.submit(tiny.colour(fill, 0, 0)) for fill in range(8)]
    model.close(timeout_s=0.3)
    ends = [future.exception(LONG) for future in futures]
    assert ends[0] is None
    assert isinstance(ends[-1], ClosedError)
    assert all(end is None or isinstance(end, ClosedError) for end in ends)


def test_a_model_without_state_has_no_sessions_and_says_what_to_call(path):
    with open_bundle(path) as model, pytest.raises(Exception, match=r"model\.predict"):
        model.session()
