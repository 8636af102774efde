"""The roofline: where the time of one inference goes on a core whose sustained rates were fitted.

The formula and its constants stand in `roofline.toml`, with what they were fitted to; what is known of engines stands in
`engines.toml`. Rules: a core, precision or kind of operation without a fitted rate is refused, never replaced by a
neighbour's; the time of a network is the sum of its operations' times, so that a table of layers adds up to the whole.

    terms = predict(Machine("cortex-a72", 1.5, 12.8, threads=4), mobilenet_v1("int8"), "int8", "xnnpack")
    sum(terms.values())                         # milliseconds, here about 23
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgekit_profiles.errors import CannotEstimateError
from edgekit_profiles.schema import parse_toml
from edgekit_profiles.workload import Op, Workload

__all__ = ["MEASURE", "Machine", "constants", "op_terms", "predict"]

MEASURE = "Measure it on the board instead: edgekit bench BUNDLE -o RECORD.json there"


@dataclass(frozen=True)
class Machine:
    """core: type as in `roofline.toml`. bandwidth_gbps: nominal, of the memory."""

    core: str
    clock_ghz: float
    bandwidth_gbps: float
    threads: int


@functools.cache
def constants() -> dict[str, Any]:
    """`roofline.toml` and `engines.toml` as one table, read once."""
    found: dict[str, Any] = {}
    for name in ("roofline.toml", "engines.toml"):
        found |= parse_toml((importlib.resources.files("edgekit_profiles") / name).read_text(encoding="utf-8"))
    return found


def predict(
    machine: Machine, workload: Workload, precision: str, framework: str, fitted: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Milliseconds by term: each kind of operation's arithmetic, `memory` for traffic, `overhead` for dispatch.

    precision: of the arithmetic (`float32`, `float16`, `int8`), whatever the workload says. fitted: constants other than
    `roofline.toml`'s, in its shape. Raises CannotEstimateError.
    """
    pace = _pace(machine, precision, framework, constants() if fitted is None else fitted)
    terms: dict[str, float] = {}
    for op in workload.ops:
        for term, ms in pace.terms(op).items():
            terms[term] = terms.get(term, 0.0) + ms
    return terms


def op_terms(machine: Machine, workload: Workload, precision: str, framework: str) -> list[dict[str, float]]:
    """As `predict`, of each operation alone."""
    pace = _pace(machine, precision, framework, constants())
    return [pace.terms(op) for op in workload.ops]


@dataclass(frozen=True)
class _Pace:
    """Milliseconds of one multiply-accumulate of each kind, of one element moved, and of one operation begun."""

    mac_ms: Mapping[str, float]
    element_ms: float
    operation_ms: float

    def terms(self, op: Op) -> dict[str, float]:
        elements = op.activation_elements + op.weight_elements
        found = {"memory": elements * self.element_ms, "overhead": self.operation_ms}
        if op.macs:
            if op.kind not in self.mac_ms:
                raise CannotEstimateError(f"no speed was fitted for operations of kind '{op.kind}'", do=MEASURE)
            found[op.kind] = op.macs * self.mac_ms[op.kind]
        return found


def _pace(machine: Machine, precision: str, framework: str, fitted: Mapping[str, Any]) -> _Pace:
    core = fitted["cores"].get(machine.core, {})
    if precision not in core:
        raise CannotEstimateError(f"no {precision} rate was fitted for {machine.core} cores", do=MEASURE)
    kernels = fitted["frameworks"][framework]
    parallel = machine.threads ** fitted["machine"]["thread_exponent"][precision]
    base = core[precision] * machine.clock_ghz * 1e9 * parallel
    speeds = fitted["speeds"][core["generation"]][precision]
    per_second = machine.bandwidth_gbps * 1e9 * core["bandwidth_efficiency"]
    return _Pace(
        {kind: 1e3 / (base * speed * kernels[precision][kind]) for kind, speed in speeds.items()},
        1e3 * fitted["machine"]["bytes"][precision] / per_second,
        1e-3 * core["overhead_us"] * kernels["overhead"] / machine.clock_ghz,
    )
