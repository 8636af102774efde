"""Needs and a runtime -> what stands between them. A pure function of facts that were measured or reported.

    for barrier in barriers(read_needs("tflite", data), Runtime("tflite-runtime", "2.14.0", "aarch64")):
        print(barrier.code, barrier.what)

Rules: an operator's version is held against what each runtime's own registration was found to know (`registered.toml`);
a runtime older than any that was asked is held against the file's claim; faults that load and answer wrongly are listed
one by one, with the versions that have them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from edgekit_converters.needs.asked import Needs, Use
from edgekit_converters.needs.kernels import missing
from edgekit_converters.needs.registered import known_custom, limits, onnx_limits, parts
from edgekit_runtime.modelfile.check import DELEGATED

__all__ = ["Barrier", "BarrierCode", "Remedy", "Runtime", "barriers"]

BarrierCode = Literal[
    "op-version",
    "op-unknown",
    "op-custom",
    "op-flex",
    "wrong-dense-hybrid",
    "wrong-dense-int8",
    "wrong-matmul",
    "crash-attention",
    "onnx-ir",
    "onnx-opset",
    "illegal-instruction",
    "empty-tensor",
    "op-kernel",
    "op-delegate",
    "external-data",
]

Remedy = Literal["per-tensor", "float-layers"]
"""What the converter can do about it: one scale for a dense layer's kernel, or some layers in float."""

ARMV8_0 = ("cortex-a35", "cortex-a53", "cortex-a57", "cortex-a72", "cortex-a73")
"""Cores without the atomics and dot products of later revisions of the architecture."""


@dataclass(frozen=True)
class Runtime:
    """engine: as edgekit's runtime calls it. arch: of the board, "" for any. core: of the board, "" for any. delegate: a
    library that it is given, "" for none."""

    engine: str
    version: str
    arch: str = ""
    core: str = ""
    delegate: str = ""

    def __str__(self) -> str:
        return f"{self.engine} {self.version}"

    def within(self, low: str, high: str) -> bool:
        """Whether the version lies in low..high; the part of a version that a bound leaves out is any."""
        own, first, last = parts(self.version), parts(low), parts(high)
        return own[: len(first)] >= first and own[: len(last)] <= last


@dataclass(frozen=True)
class Barrier:
    """what: a sentence's beginning that names operator, layer and runtime. layers: those it is about. remedy: None where the
    converter has none but another format."""

    code: BarrierCode
    what: str
    layers: tuple[str, ...] = ()
    remedy: Remedy | None = None


def barriers(needs: Needs, runtime: Runtime) -> tuple[Barrier, ...]:
    """In the order of what a runtime would stumble over first."""
    rules = _onnx if needs.format == "onnx" else _tflite
    return (*_empty(needs), *rules(needs, runtime))


def _empty(needs: Needs) -> Iterator[Barrier]:
    if needs.empty:
        yield Barrier("empty-tensor", f"'{needs.empty[0]}' has an axis of length 0", needs.empty)


def _tflite(needs: Needs, runtime: Runtime) -> Iterator[Barrier]:
    yield from _custom(needs.custom, runtime)
    old = list(_versions(needs, runtime))
    yield from old
    dense_refused = any(barrier.remedy == "per-tensor" for barrier in old)
    if runtime.engine == "tflite-runtime":
        if needs.hybrid_dense and not dense_refused:
            yield _wrong(
                "wrong-dense-hybrid",
                needs.hybrid_dense,
                "weights with a scale a channel beside float activations",
                runtime,
            )
        if needs.per_channel_dense and runtime.within("0", "2.9"):
            yield _wrong("wrong-dense-int8", needs.per_channel_dense, "int8 weights with a scale a channel", runtime)
        if needs.int8_matmul and runtime.arch == "aarch64":
            what = f"{runtime} crashes on aarch64 in int8 attention, the product of two computed tensors: {_named(needs.int8_matmul)}"
            yield Barrier("crash-attention", what, needs.int8_matmul, "float-layers")
    if runtime.engine == "litert" and needs.int8_matmul and runtime.within("2.0", "2.1.2"):
        what = f"{runtime} answers wrongly, and says nothing, for int8 BATCH_MATMUL in {_named(needs.int8_matmul)}"
        yield Barrier("wrong-matmul", what, needs.int8_matmul, "float-layers")


def _custom(uses: Sequence[Use], runtime: Runtime) -> Iterator[Barrier]:
    flex = [use for use in uses if use.op.startswith("Flex")]
    if flex:
        ops = ", ".join(dict.fromkeys(use.op.removeprefix("Flex") for use in flex))
        yield Barrier(
            "op-flex",
            f"it needs TensorFlow itself for {ops} in '{_short(flex[0].layer)}'",
            tuple(u.layer for u in flex),
        )
    for use in uses:
        if use.op in DELEGATED:
            if not runtime.delegate:
                what = f"'{_short(use.layer)}' is {use.op}, which only the delegate {DELEGATED[use.op]} runs"
                yield Barrier("op-delegate", what, (use.layer,))
        elif use not in flex and use.op not in known_custom():
            yield Barrier("op-custom", f"'{_short(use.layer)}' is the custom operator {use.op}", (use.layer,))


def _versions(needs: Needs, runtime: Runtime) -> Iterator[Barrier]:
    most = limits(runtime.engine, runtime.version)
    claim_is_newer = needs.claimed is not None and parts(needs.claimed) > parts(runtime.version)
    if most is None:
        if runtime.engine == "tflite-runtime" and claim_is_newer:  # its versions are TensorFlow's
            yield Barrier(
                "op-version", f"the file says that it needs TensorFlow Lite {needs.claimed}, and this is {runtime}"
            )
        return
    for use in needs.ops:
        known = most.get(use.op, 0)
        if known == 0:
            yield Barrier(
                "op-unknown", f"{runtime} has no operator {use.op}, which '{_short(use.layer)}' is", (use.layer,)
            )
        elif use.version > known:
            dense = use.op == "FULLY_CONNECTED" and needs.hybrid_dense
            what = f"{use.op} version {use.version} in '{_short(use.layer)}' is newer than version {known}, the last that {runtime} has"
            yield Barrier("op-version", what, (use.layer,), "per-tensor" if dense else None)


def _onnx(needs: Needs, runtime: Runtime) -> Iterator[Barrier]:
    faulty = (runtime.engine, runtime.version, runtime.arch) == ("onnxruntime", "1.21.0", "aarch64")
    if faulty and runtime.core in ARMV8_0:
        what = f"importing onnxruntime 1.21.0 is an illegal instruction on {runtime.core} cores"
        yield Barrier("illegal-instruction", what)
    for use in needs.custom:
        yield Barrier("op-custom", f"'{_short(use.layer)}' is the operator {use.op} of another domain", (use.layer,))
    if needs.external:
        more = f" and {len(needs.external) - 1} more" if len(needs.external) > 1 else ""
        yield Barrier("external-data", f"the numbers of '{needs.external[0]}'{more} lie in another file")
    for node in needs.nodes:
        reason = missing(runtime.version, node)
        if reason:
            yield Barrier("op-kernel", f"{runtime} cannot compute '{_short(node.layer)}': {reason}", (node.layer,))
    most = onnx_limits(runtime.version)
    if most is None:
        return
    if needs.ir is not None and needs.ir > most.ir:
        yield Barrier("onnx-ir", f"it is written in IR version {needs.ir}, and {runtime} reads up to {most.ir}")
    opset = needs.opsets.get("", 0)
    quantizes = bool({use.op for use in needs.ops} & {"QuantizeLinear", "DequantizeLinear"})
    if opset > most.opset:
        yield Barrier("onnx-opset", f"it is written in opset {opset}, and {runtime} knows up to {most.opset}")
    elif quantizes and opset > most.quantize:
        what = f"{runtime} has no kernel for QuantizeLinear of opset {opset}: its last is {most.quantize}"
        yield Barrier("onnx-opset", what)


def _wrong(code: BarrierCode, layers: tuple[str, ...], what: str, runtime: Runtime) -> Barrier:
    told = f"{runtime} answers wrongly, and says nothing, for a dense layer that has {what}: {_named(layers)}"
    return Barrier(code, told, layers, "per-tensor")


def _named(layers: Sequence[str]) -> str:
    more = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
    return f"'{_short(layers[0])}'{more}"


def _short(layer: str) -> str:
    """TensorFlow calls what it fused by all its parts, one after another."""
    return layer.split(";")[0]
