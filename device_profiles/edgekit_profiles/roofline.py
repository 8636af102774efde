"""The roofline: where the time of one inference goes on a core whose sustained rates were fitted.

The formula and its constants stand in `roofline.toml`, with what they were fitted to. Rules: a core, precision or
kind of operation without a fitted rate is refused, never replaced by a neighbour's.

    terms = predict(Machine("cortex-a72", 1.5, 12.8, threads=4), mobilenet_v1("int8"), "int8", "xnnpack")
    sum(terms.values())                         # milliseconds, here about 25
"""

from __future__ import annotations

import functools
import importlib.resources
import tomllib
from dataclasses import dataclass
from typing import Any

from edgekit_profiles.errors import CannotEstimateError
from edgekit_profiles.workload import Workload

__all__ = ["Machine", "constants", "predict"]

MEASURE = "Measure it on the board instead"


@dataclass(frozen=True)
class Machine:
    """core: type as in `roofline.toml`. bandwidth_gbps: nominal, of the memory."""

    core: str
    clock_ghz: float
    bandwidth_gbps: float
    threads: int


@functools.cache
def constants() -> dict[str, Any]:
    """`roofline.toml`, read once."""
    text = (importlib.resources.files("edgekit_profiles") / "roofline.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def predict(machine: Machine, workload: Workload, precision: str, framework: str) -> dict[str, float]:
    """Milliseconds by term: each kind of operation's arithmetic, `memory` for traffic, `overhead` for dispatch.

    precision: `float32` or `int8`, whatever the workload says. Raises CannotEstimateError.
    """
    fitted = constants()
    rate = fitted["rates"].get(machine.core, {}).get(precision)
    if rate is None:
        raise CannotEstimateError(f"no {precision} rate was fitted for {machine.core} cores", do=MEASURE)
    speeds = fitted["speeds"][precision]
    parallel = machine.threads ** fitted["machine"]["thread_exponent"][precision]
    base = rate * fitted["frameworks"][framework][precision] * machine.clock_ghz * 1e9 * parallel
    terms: dict[str, float] = {}
    for op in workload.ops:
        if op.macs:
            if op.kind not in speeds:
                raise CannotEstimateError(f"no speed was fitted for operations of kind '{op.kind}'", do=MEASURE)
            terms[op.kind] = terms.get(op.kind, 0.0) + 1e3 * op.macs / (base * speeds[op.kind])
    elements = sum(op.activation_elements + op.weight_elements for op in workload.ops)
    moved = elements * fitted["machine"]["bytes"][precision]
    terms["memory"] = 1e3 * moved / (machine.bandwidth_gbps * 1e9 * fitted["machine"]["bandwidth_efficiency"])
    terms["overhead"] = 1e-3 * len(workload.ops) * fitted["machine"]["overhead_us"] / machine.clock_ghz
    return terms
