"""Some hundred requests while a host fails in each way, over real sockets: every caller hears in time, each is counted.

The device takes longer than the budget, so the host is the only one that can answer; a proxy before a real host makes
it hang, cut its answers, refuse, slow down, trickle or die for a while, and be well again.
"""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
import tiny
from fault_proxy import FAULTS, FaultProxy
from heated import heat, wait_for

from edgekit_runtime import BudgetExceeded, open_bundle
from edgekit_runtime.engines.registry import available

served = pytest.importorskip("served")

pytestmark = pytest.mark.skipif("litert" not in available(), reason="the host's engine here is LiteRT")
BUDGET_MS = 100.0
MARGIN_MS = 3000.0
"""For two busy cores, and all in one process: a fault lasts longer. benchmarks/fallback measures the real margin."""
CALLERS, EACH = 8, 12


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    with (
        served.Serving(tiny.bundle(tmp_path_factory.mktemp("host")), cache=False) as host,
        FaultProxy(host.port) as proxy,
    ):
        yield proxy


@pytest.mark.parametrize("fault", FAULTS)
def test_every_caller_hears_within_its_budget_and_is_counted_once(fault, proxy, tmp_path):
    proxy.fault = "none"
    outcomes, late = Counter(), []

    def ask(model, number):
        for at in range(EACH):
            if at == EACH // 4:
                proxy.fault = fault
            elif at == 3 * EACH // 4:
                proxy.fault = "none"
            start = time.perf_counter()
            try:
                answer = model.predict(tiny.colour(number, at, 200))
                outcomes[answer.source] += 1
                assert answer.top(1)[0].label == "blue"
            except BudgetExceeded:
                outcomes["refused"] += 1
            took_ms = (time.perf_counter() - start) * 1e3
            if took_ms > BUDGET_MS + MARGIN_MS:
                late.append(took_ms)
            time.sleep(0.02)  # callers that ask now and then

    with open_bundle(tiny.bundle(tmp_path), hosts=[proxy.url], cache=False, budget_ms=BUDGET_MS) as model:
        wait_for(lambda: model.describe()["hosts"][0]["p90_ms"] is not None)
        heat(model, BUDGET_MS)
        before = model.stats().meter
        callers = [threading.Thread(target=ask, args=(model, number)) for number in range(CALLERS)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(60)
            assert not caller.is_alive()
        after = model.stats().meter
        assert late == []
        assert sum(outcomes.values()) == CALLERS * EACH == after.requests - before.requests
        assert outcomes["host"] >= 1  # before the fault; how many, the load decides
        for source in ("host", "device"):
            assert after.answers.get(source, 0) - before.answers.get(source, 0) == outcomes[source]
        assert after.errors.get("budget", 0) - before.errors.get("budget", 0) == outcomes["refused"]
        well = time.perf_counter()
        while True:  # the host is asked again soon
            try:
                if model.predict(tiny.BLUE).source == "host":
                    break
            except BudgetExceeded:
                assert time.perf_counter() - well < 60.0
                time.sleep(0.02)
