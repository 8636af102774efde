"""A device that is slow on purpose, and waiting for what comes true by itself."""

from __future__ import annotations

import time

import tiny

LONG_S = 60.0


def wait_for(condition):
    until = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.005)


def heat(model, budget_ms: float):
    """Make the device slower than the budget, and let it find out."""
    model.throttle(1.25 * budget_ms)
    while (model.stats().device_p90_ms or 0) < budget_ms:
        model.predict(tiny.RED, budget_ms=1e6)
