"""What one inference asks of a processor, and the roofline that predicts its time.

    work = Workload("int8", (Op("pw", macs=32 * 64 * 112 * 112, activation_elements=..., weight_elements=32 * 64),))
    terms = predict(CoreModel("cortex-a72", 1.5, 12.8, threads=4), mobilenet_v1("int8"), "int8", "xnnpack")
    sum(terms.values())                         # milliseconds, here about 23

Rules: `roofline.toml` has the formula and its fitted constants, `engines.toml` the engines; a core, precision or kind
of operation without a fitted rate is refused; a network's time is the sum of its operations' times.
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from edgekit_profiles.errors import CannotEstimateError
from edgekit_profiles.schema import parse_toml

OpKind = Literal["pw", "c3", "cx", "dw", "fc", "ew"]
Precision = Literal["float32", "float16", "int8", "dynamic"]


@dataclass(frozen=True)
class Op:
    """One operation as the engine runs it, with its activation function fused in.

    kind: `pw` 1x1 convolution; `c3` 3x3 convolution of stride and dilation 1; `cx` other dense convolutions; `dw`
        depthwise; `fc` dense; `ew` moves or transforms elements (additions, pooling, quantize, transpose).
    macs: multiply-accumulates.
    activation_elements: read plus written.
    weight_elements: of the kernel.
    computed: both factors are, as in attention, so that there is no kernel.
    recurrent: each step waits for the one before.
    dispatches: of the engine, more than one in a loop.
    eight_bit: whether it multiplies integers; activation: the type of what it multiplies, if known. No time follows.
    """

    kind: OpKind
    macs: int
    activation_elements: int
    weight_elements: int
    name: str = ""
    computed: bool = False
    recurrent: bool = False
    dispatches: int = 1
    eight_bit: bool = field(default=False, compare=False)
    activation: str = field(default="", compare=False)


@dataclass(frozen=True)
class Workload:
    """What one inference computes.
    precision: of the artifact's recipe.
    unknown: operation names that could not be counted, or shapes known only at run time; estimates refuse them.
    batch: items at once.
    """

    precision: Precision
    ops: tuple[Op, ...]
    unknown: tuple[str, ...] = ()
    batch: int = 1

    @property
    def macs(self) -> int:
        return sum(op.macs for op in self.ops)

    @property
    def computed_macs(self) -> int:
        """In products of two computed tensors."""
        return sum(op.macs for op in self.ops if op.computed)

    @property
    def recurrent_macs(self) -> int:
        return sum(op.macs for op in self.ops if op.recurrent)

    @property
    def weights(self) -> int:
        return sum(op.weight_elements for op in self.ops)


def mobilenet_v1(precision: Precision) -> Workload:
    """Return the anchors' model: MobileNetV1 1.0 at 224x224 (569 million MACs)."""
    side, channels = 112, 32
    ops = [Op("cx", side * side * 3 * 32 * 9, 224 * 224 * 3 + side * side * 32, 3 * 32 * 9, "stem")]
    plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for index, (width, stride) in enumerate(plan, start=1):
        out = side // stride
        area_in, area = side * side, out * out
        ops.append(Op("dw", area * channels * 9, (area_in + area) * channels, channels * 9, f"depthwise {index}"))
        ops.append(Op("pw", area * channels * width, area * (channels + width), channels * width, f"pointwise {index}"))
        side, channels = out, width
    ops.append(Op("ew", 0, side * side * channels + channels, 0, "pool"))
    ops.append(Op("fc", channels * 1000, channels + 1000, channels * 1000, "classifier"))
    return Workload(precision, tuple(ops))


MEASURE = "Measure it on the board instead: edgekit bench BUNDLE -o RECORD.json there"


@dataclass(frozen=True)
class CoreModel:
    """The processor of an estimate.
    core: type as in `roofline.toml`.
    bandwidth_gbps: nominal, of the memory.
    """

    core: str
    clock_ghz: float
    bandwidth_gbps: float
    threads: int


@functools.cache
def constants() -> dict[str, Any]:
    """Return `roofline.toml` and `engines.toml` as one table."""
    found: dict[str, Any] = {}
    for name in ("roofline.toml", "engines.toml"):
        found |= parse_toml((importlib.resources.files("edgekit_profiles") / name).read_text(encoding="utf-8"))
    return found


def predict(
    machine: CoreModel, workload: Workload, precision: str, framework: str, fitted: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Predict milliseconds by term: each kind of arithmetic, `memory`, `overhead`.

    precision: of the arithmetic (`float32`, `float16`, `int8`), whatever the workload's.
    fitted: other constants in the shape of `roofline.toml`.

    Raises CannotEstimateError.
    """
    pace = _pace(machine, precision, framework, constants() if fitted is None else fitted)
    terms: dict[str, float] = {}
    for op in workload.ops:
        for term, ms in pace.terms(op).items():
            terms[term] = terms.get(term, 0.0) + ms
    return terms


def op_terms(machine: CoreModel, workload: Workload, precision: str, framework: str) -> list[dict[str, float]]:
    """Predict each operation alone."""
    pace = _pace(machine, precision, framework, constants())
    return [pace.terms(op) for op in workload.ops]


@dataclass(frozen=True)
class _Pace:
    """Milliseconds per MAC of each kind, per element moved, and per operation."""

    mac_ms: Mapping[str, float]
    element_ms: float
    operation_ms: float

    def terms(self, op: Op) -> dict[str, float]:
        elements = op.activation_elements + op.weight_elements
        found = {"memory": elements * self.element_ms, "overhead": op.dispatches * self.operation_ms}
        if op.macs:
            if op.kind not in self.mac_ms:
                raise CannotEstimateError(f"no speed was fitted for operations of kind '{op.kind}'", do=MEASURE)
            found[op.kind] = op.macs * self.mac_ms[op.kind]
        return found


def _pace(machine: CoreModel, precision: str, framework: str, fitted: Mapping[str, Any]) -> _Pace:
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
