"""The roofline's unknowns, what is expected of them before a latency is seen, and the constants that a fit gives.

    everything = Fit(read())
    constants = everything.constants(everything.solve(everything.all))       # in the shape of roofline.toml

Every unknown is a factor; what several cores or frameworks share is one unknown, and what sets one apart is another
that is held near 1 unless the rows say otherwise. So a core of which little is known behaves like those of its
generation.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from additive import Additive, Array, Term
from networks import workload
from published import Row

PRECISIONS = ("float32", "float16", "int8")
KINDS = ("pw", "c3", "cx", "dw", "fc")
FRAMEWORKS = ("paddle", "tengine", "tflite", "xnnpack")
BYTES = {"float32": 4, "float16": 2, "int8": 1}
# Peak multiply-accumulates a cycle: float32 128-bit lanes times pipes; int8 through SMLAL, or SDOT with `dotprod`
# (Arm's software optimization guides). Half of it is what a 1x1 convolution is expected to reach.
PEAK = {
    "cortex-a7": (2, 4), "cortex-a53": (4, 8), "cortex-a55": (4, 16), "cortex-a57": (4, 8), "cortex-a72": (4, 8),
    "cortex-a73": (4, 8), "cortex-a75": (8, 8), "cortex-a76": (8, 32), "cortex-a77": (8, 32), "cortex-a78ae": (8, 32),
    "cortex-a720": (8, 32), "cortex-x3": (16, 64), "cortex-x4": (16, 64),
}  # fmt: skip
_PLAIN = {"cortex-a7", "cortex-a53", "cortex-a57", "cortex-a72", "cortex-a73"}
GENERATION = {core: "plain" if core in _PLAIN else "dotprod" for core in PEAK}

# The deviations are of logarithms: 0.3 is a factor of 1.35 either way.
_DEVIATION = {
    "rate": 0.5, "half": 0.2, "half core": 0.1, "kind": 0.7, "kind generation": 0.3, "framework": 0.3,
    "framework kind": 0.2, "threads": 0.15, "bandwidth": 0.7, "bandwidth core": 0.3, "overhead": 1.0,
    "overhead core": 0.4, "overhead framework": 0.4,
}  # fmt: skip


class Fit:
    """rows: all there are; solve() takes the places of those that it may see. given: priors instead of the usual."""

    def __init__(self, rows: Sequence[Row], given: Callable[[Hashable], tuple[float, float]] | None = None) -> None:
        self.rows = rows
        self.all = np.arange(len(rows))
        self._sum = Additive([_terms(row) for row in rows], np.array([row.ms / 1e3 for row in rows]), given or prior)
        self.names = self._sum.names

    def solve(self, chosen: Array, start: Array | None = None) -> Array:
        """Every board and framework counts alike, however many rows it has."""
        count = collections.Counter((self.rows[i].site, self.rows[i].framework) for i in chosen)
        weight = [5 / math.sqrt(count[self.rows[i].site, self.rows[i].framework]) for i in chosen]
        return self._sum.fit(chosen, np.array(weight), start)

    def ms(self, x: Array, chosen: Array) -> Array:
        """As the product's roofline with `constants(x)`, all rows at once."""
        return np.asarray(1e3 * np.exp(self._sum.log_times(x, chosen)))

    def constants(self, x: Array) -> dict[str, Any]:
        """In the shape of roofline.toml, without its bands."""
        found = dict(zip(self.names, x, strict=True))
        return {
            "machine": {
                "thread_exponent": {p: found["threads", p] for p in PRECISIONS},
                "bytes": BYTES,
            },
            "cores": {
                core: self.core(core, found)
                for core in sorted({row.machine.core for row in self.rows}, key=[*PEAK].index)
            },
            "speeds": {g: {p: _speeds(found, g, p) for p in PRECISIONS} for g in ("plain", "dotprod")},
            "frameworks": {name: _framework(found, name) for name in ("ncnn", *FRAMEWORKS)},
        }

    def core(self, core: str, found: Mapping[Hashable, float]) -> dict[str, Any]:
        seen = {row.precision for row in self.rows if row.machine.core == core}
        rates = {p: math.exp(_rate(found, core, p)) for p in PRECISIONS if p in seen}
        inferred = "float32" not in seen and "float16" in seen
        if inferred:
            rates["float32"] = math.exp(_rate(found, core, "float32"))
        return {
            "generation": GENERATION[core],
            **{p: rates[p] for p in PRECISIONS if p in rates},
            "inferred": ["float32"] if inferred else [],
            "bandwidth_efficiency": math.exp(found["bandwidth",] + found.get(("bandwidth core", core), 0.0)),
            "overhead_us": 1e6 * math.exp(found["overhead",] + found.get(("overhead core", core), 0.0)),
        }


def _rate(found: Mapping[Hashable, float], core: str, precision: str) -> float:
    """float16 stands on float32, so that a core with one of the two tells of the other."""
    if precision != "float16":
        return found["rate", core, precision]
    return found["rate", core, "float32"] + found["half",] + found.get(("half core", core), 0.0)


def _speeds(found: Mapping[Hashable, float], generation: str, precision: str) -> dict[str, float]:
    def speed(kind: str) -> float:
        return found.get(("kind", kind, precision), 0.0) + found.get(
            ("kind generation", kind, precision, generation), 0.0
        )

    return {kind: math.exp(speed(kind)) if kind != "pw" else 1.0 for kind in KINDS}


def _framework(found: Mapping[Hashable, float], name: str) -> dict[str, Any]:
    def factor(precision: str, kind: str) -> float:
        common = found.get(("framework", name, precision), 0.0)
        return math.exp(common + (found.get(("framework kind", kind, name), 0.0) if kind != "pw" else 0.0))

    table: dict[str, Any] = {p: {kind: factor(p, kind) for kind in KINDS} for p in PRECISIONS}
    return table | {"overhead": math.exp(found.get(("overhead framework", name), 0.0))}


def _terms(row: Row) -> list[Term]:
    """Seconds. The roofline's formula, with a name for every factor that is not known."""
    machine, precision, core = row.machine, row.precision, row.machine.core
    clock = math.log(machine.clock_ghz * 1e9)
    arithmetic: list[tuple[Hashable, float]] = [(("threads", precision), -math.log(machine.threads))]
    arithmetic.append((("rate", core, "int8" if precision == "int8" else "float32"), -1.0))
    if precision == "float16":
        arithmetic += [(("half",), -1.0), (("half core", core), -1.0)]
    foreign = row.framework != "ncnn"
    if foreign:
        arithmetic.append((("framework", row.framework, precision), -1.0))
    found: list[Term] = []
    ops = workload(row.network).ops
    for kind in KINDS:
        macs = sum(op.macs for op in ops if op.kind == kind)
        own: list[tuple[Hashable, float]] = []
        if kind != "pw":
            own = [(("kind", kind, precision), -1.0), (("kind generation", kind, precision, GENERATION[core]), -1.0)]
            own += [(("framework kind", kind, row.framework), -1.0)] if foreign else []
        if macs:
            found.append((math.log(macs) - clock, [*arithmetic, *own]))
    moved = sum(op.activation_elements + op.weight_elements for op in ops) * BYTES[precision]
    traffic = math.log(moved / (machine.bandwidth_gbps * 1e9))
    found.append((traffic, [(("bandwidth",), -1.0), (("bandwidth core", core), -1.0)]))
    dispatch: list[tuple[Hashable, float]] = [(("overhead",), 1.0), (("overhead core", core), 1.0)]
    dispatch += [(("overhead framework", row.framework), 1.0)] if foreign else []
    found.append((math.log(len(ops) / machine.clock_ghz), dispatch))
    return found


def prior(name: Hashable) -> tuple[float, float]:
    assert isinstance(name, tuple)
    kind = name[0]
    deviation = _DEVIATION[kind]
    if kind == "rate":
        return math.log(PEAK[name[1]][name[2] == "int8"] / 2), deviation
    if kind == "kind":
        return (math.log(0.3) if name[1] == "dw" else 0.0), deviation
    means = {"half": math.log(1.9), "threads": 0.85, "bandwidth": math.log(0.5), "overhead": math.log(5e-6)}
    return means.get(kind, 0.0), deviation
