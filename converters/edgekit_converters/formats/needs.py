"""What an artifact asks of a runtime, and what of that the runtime lacks. Pure functions.

    for barrier in barriers(read_needs("tflite", data), Runtime("tflite-runtime", "2.14.0", "aarch64")):
        print(barrier.code, barrier.what)
    limits("tflite-runtime", "2.14.0")["FULLY_CONNECTED"]         # 10, from `registered.toml`
    missing("1.23.2", OnnxNode("", "Conv", 11, {"T": "int8"}))        # "it has no kernel for Conv in int8"

Rules:
- an operator's version is compared with what each runtime registers (`registered.toml`), in ONNX its element types too,
  with the kernels of the CPU provider (`onnx_kernels.json`);
- a version between two known ones counts as the older of them, a newer one as the newest; one older than all is
  compared with the file's claim;
- a kernel that names a last version serves every version of the operator up to it, any other its own alone;
- an unknown type matches every kernel, and float16 counts as float too, because the engine inserts casts;
- faults that load and answer wrongly are listed one by one, with the versions that have them.
"""

from __future__ import annotations

import functools
import importlib.resources
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from edgekit_converters.formats import tflite_file as tflite
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_profiles.schema import parse_toml
from edgekit_profiles.wheels import version_parts
from edgekit_runtime.modelfile.check import DELEGATED
from edgekit_runtime.system.errors import MissingExtraError
from edgekit_runtime.system.strict_json import load_json

_OPEN = 2**31 - 1


@dataclass(frozen=True)
class OnnxNode:
    """One kind of node.
    domain: "" for ONNX's own.
    since: the operator's version.
    types: element types, by the schema's type parameters and by the names of inputs and outputs.
    function: its schema says how other operators compute it; body names these, as far as they are known.
    layer: a name for people."""

    domain: str
    op: str
    since: int
    types: dict[str, str] = field(default_factory=dict, hash=False)
    function: bool = False
    body: tuple[OnnxNode, ...] = ()
    layer: str = ""


def missing(version: str, node: OnnxNode) -> str:
    """Say why that version of ONNX Runtime has no CPU kernel for the operator, or ""."""
    versions = kernel_versions()
    known = [place for place, one in enumerate(versions) if version_parts(one) <= version_parts(version)]
    if (
        not known or version_parts(version) > version_parts(versions[-1]) or node.op == "Constant"
    ):  # a constant is not a computation
        return ""
    reason = _reason(known[-1], node)
    if reason and node.function:
        return next(filter(None, (missing(version, one) for one in node.body)), "") and reason
    return reason


def _reason(place: int, node: OnnxNode) -> str:
    name = f"{node.domain}:{node.op}" if node.domain else node.op
    rows = [row for row in _kernel_facts()["kernels"].get(name, []) if row[3] <= place <= row[4]]
    if not rows:
        return f"it has no kernel for {name}"
    since = node.since
    of_version = [
        row for row in rows if node.domain or since == row[0] or (row[0] < since <= row[1] and row[1] != _OPEN)
    ]
    if not of_version:
        return f"it has no kernel for {name} of opset {node.since}"
    for row in of_version:
        pairs = [(node.types.get(parameter, ""), kinds.split()) for parameter, kinds in row[2].items()]
        if all(not kind or kind in kinds or (kind == "float16" and "float" in kinds) for kind, kinds in pairs):
            return ""
    kinds = dict.fromkeys(kind for name, kind in node.types.items() if any(name in row[2] for row in of_version))
    return f"it has no kernel for {name} in {', '.join(kinds)}"


def kernel_versions() -> tuple[str, ...]:
    """Return the table's versions, oldest first."""
    return tuple(_kernel_facts()["versions"])


@functools.cache
def _kernel_facts() -> dict[str, Any]:
    text = (importlib.resources.files("edgekit_converters.formats") / "onnx_kernels.json").read_text(encoding="utf-8")
    found: dict[str, Any] = load_json(text)
    return found


@dataclass(frozen=True)
class Use:
    """An operator, the version that the file asks for (in ONNX its opset), and its first layer."""

    op: str
    version: int
    layer: str


@dataclass(frozen=True)
class Needs:
    """What an artifact requires of its runtime. Layers are in the file's order.
    ops: each operator once a version.
    custom: operators that are not built in, by the names they go by.
    per_channel_dense: dense layers in int8 with a scale a channel.
    hybrid_dense: dense layers with float activations and 8-bit weights with a scale a channel.
    int8_matmul: products of two computed int8 tensors, as in attention.
    free_axes: tensors with an axis other than the batch that is only known at run time.
    empty: tensors with an axis of length 0.
    claimed: the `min_runtime_version` of a .tflite.
    ir, opsets: of ONNX; domain -> version.
    nodes: of ONNX's main graph, each kind once.
    external: constants that are in another file."""

    format: str
    ops: tuple[Use, ...] = ()
    custom: tuple[Use, ...] = ()
    per_channel_dense: tuple[str, ...] = ()
    hybrid_dense: tuple[str, ...] = ()
    int8_matmul: tuple[str, ...] = ()
    free_axes: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    claimed: str | None = None
    ir: int | None = None
    opsets: dict[str, int] = field(default_factory=dict, hash=False)
    nodes: tuple[OnnxNode, ...] = ()
    external: tuple[str, ...] = ()

    def version(self, op: str) -> int:
        """Return the highest version of an operator in use, 0 if unused."""
        return max((use.version for use in self.ops if use.op == op), default=0)


def limits(engine: str, version: str) -> Mapping[str, int] | None:
    """Return TFLite operator -> highest version that the engine has."""
    rows = _facts()["tflite"]["asked"]
    places = [place for place, (name, _) in enumerate(rows) if name == engine]
    known = [place for place in places if version_parts(rows[place][1]) <= version_parts(version)]
    if not known:
        return None
    last = known[-1]
    return {op: versions[last] for op, versions in _facts()["tflite"]["operators"].items() if versions[last]}


def known_custom() -> frozenset[str]:
    """Return custom TFLite operators that every runtime has."""
    return frozenset(_facts()["tflite"]["custom"])


def onnx_limits(version: str) -> Mapping[str, Any] | None:
    """Return the highest `ir` and `opset` that load, and the last to `quantize`."""
    known = [row for row in _facts()["onnx"] if version_parts(row["version"]) <= version_parts(version)]
    return known[-1] if known else None


def known_versions(engine: str) -> tuple[str, ...]:
    """Return an engine's versions in the table, oldest first."""
    if engine == "onnxruntime":
        return tuple(row["version"] for row in _facts()["onnx"])
    return tuple(version for name, version in _facts()["tflite"]["asked"] if name == engine)


@functools.cache
def _facts() -> dict[str, Any]:
    text = (importlib.resources.files("edgekit_converters.formats") / "registered.toml").read_text(encoding="utf-8")
    return parse_toml(text)


BarrierCode = Literal[
    "op-version", "op-unknown", "op-custom", "op-flex", "wrong-dense-hybrid", "wrong-dense-int8", "wrong-matmul",
    "crash-attention", "onnx-ir", "onnx-opset", "illegal-instruction", "empty-tensor", "op-kernel", "op-delegate",
    "external-data",
]  # fmt: skip

Remedy = Literal["per-tensor", "float-layers"]
"""What the converter can do about it: one scale for a dense layer's kernel, or some layers in float."""

ARMV8_0 = ("cortex-a35", "cortex-a53", "cortex-a57", "cortex-a72", "cortex-a73")
"""Cores without the atomics and dot products of later revisions of the architecture."""


@dataclass(frozen=True)
class Runtime:
    """An engine's version on a board.
    engine: as edgekit's runtime calls it.
    arch, core: of the board, "" for any.
    delegate: a library that it is given, "" for none."""

    engine: str
    version: str
    arch: str = ""
    core: str = ""
    delegate: str = ""

    def __str__(self) -> str:
        return f"{self.engine} {self.version}"

    def within(self, low: str, high: str) -> bool:
        """Whether low <= version <= high; a bound's missing parts match anything."""
        own, first, last = version_parts(self.version), version_parts(low), version_parts(high)
        return own[: len(first)] >= first and own[: len(last)] <= last


@dataclass(frozen=True)
class Barrier:
    """A reason why a runtime cannot run an artifact.
    what: a sentence's beginning that names operator, layer and runtime.
    layers: those it is about.
    remedy: None if only another format helps."""

    code: BarrierCode
    what: str
    layers: tuple[str, ...] = ()
    remedy: Remedy | None = None


def barriers(needs: Needs, runtime: Runtime) -> tuple[Barrier, ...]:
    """List what stops the runtime, in the order in which it would fail."""
    rules = _onnx if needs.format == "onnx" else _tflite
    found = list(rules(needs, runtime))
    if needs.empty:
        found.insert(0, Barrier("empty-tensor", f"'{needs.empty[0]}' has an axis of length 0", needs.empty))
    return tuple(found)


def _tflite(needs: Needs, runtime: Runtime) -> Iterator[Barrier]:
    yield from _custom(needs.custom, runtime)
    old = list(_versions(needs, runtime))
    yield from old
    dense_refused = any(barrier.remedy == "per-tensor" for barrier in old)
    if runtime.engine == "tflite-runtime":
        if needs.hybrid_dense and not dense_refused:
            weights = "weights with a scale a channel beside float activations"
            yield _wrong("wrong-dense-hybrid", needs.hybrid_dense, weights, runtime)
        if needs.per_channel_dense and runtime.within("0", "2.9"):
            yield _wrong("wrong-dense-int8", needs.per_channel_dense, "int8 weights with a scale a channel", runtime)
        if needs.int8_matmul and runtime.arch == "aarch64":
            what = f"{runtime} crashes on aarch64 in int8 attention, the product of two computed tensors"
            named = _named(needs.int8_matmul)
            yield Barrier("crash-attention", f"{what}: {named}", needs.int8_matmul, "float-layers")
    if runtime.engine == "litert" and needs.int8_matmul and runtime.within("2.0", "2.1.2"):
        what = f"{runtime} answers wrongly, and says nothing, for int8 BATCH_MATMUL in {_named(needs.int8_matmul)}"
        yield Barrier("wrong-matmul", what, needs.int8_matmul, "float-layers")


def _custom(uses: Sequence[Use], runtime: Runtime) -> Iterator[Barrier]:
    flex = [use for use in uses if use.op.startswith("Flex")]
    if flex:
        ops = ", ".join(dict.fromkeys(use.op.removeprefix("Flex") for use in flex))
        what = f"it needs TensorFlow itself for {ops} in '{_short(flex[0].layer)}'"
        yield Barrier("op-flex", what, tuple(use.layer for use in flex))
    for use in uses:
        if use.op in DELEGATED:
            if not runtime.delegate:
                what = f"'{_short(use.layer)}' is {use.op}, which only the delegate {DELEGATED[use.op]} runs"
                yield Barrier("op-delegate", what, (use.layer,))
        elif use not in flex and use.op not in known_custom():
            yield Barrier("op-custom", f"'{_short(use.layer)}' is the custom operator {use.op}", (use.layer,))


def _versions(needs: Needs, runtime: Runtime) -> Iterator[Barrier]:
    most = limits(runtime.engine, runtime.version)
    claim_is_newer = needs.claimed is not None and version_parts(needs.claimed) > version_parts(runtime.version)
    if most is None:
        if runtime.engine == "tflite-runtime" and claim_is_newer:  # its versions are TensorFlow's
            what = f"the file says that it needs TensorFlow Lite {needs.claimed}, and this is {runtime}"
            yield Barrier("op-version", what)
        return
    for use in needs.ops:
        known = most.get(use.op, 0)
        if known == 0:
            what = f"{runtime} has no operator {use.op}, which '{_short(use.layer)}' is"
            yield Barrier("op-unknown", what, (use.layer,))
        elif use.version > known:
            dense = use.op == "FULLY_CONNECTED" and needs.hybrid_dense
            what = f"{use.op} version {use.version} in '{_short(use.layer)}' is newer than version {known}"
            remedy: Remedy | None = "per-tensor" if dense else None
            yield Barrier("op-version", f"{what}, the last that {runtime} has", (use.layer,), remedy)


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
    if needs.ir is not None and needs.ir > most["ir"]:
        yield Barrier("onnx-ir", f"it has IR version {needs.ir}, and {runtime} reads up to {most['ir']}")
    opset = needs.opsets.get("", 0)
    quantizes = bool({use.op for use in needs.ops} & {"QuantizeLinear", "DequantizeLinear"})
    if opset > most["opset"]:
        yield Barrier("onnx-opset", f"it has opset {opset}, and {runtime} knows up to {most['opset']}")
    elif quantizes and opset > most["quantize"]:
        what = f"{runtime} has no kernel for QuantizeLinear of opset {opset}: its last is {most['quantize']}"
        yield Barrier("onnx-opset", what)


def _wrong(code: BarrierCode, layers: tuple[str, ...], weights: str, runtime: Runtime) -> Barrier:
    what = f"{runtime} answers wrongly, and says nothing, for a dense layer that has {weights}: {_named(layers)}"
    return Barrier(code, what, layers, "per-tensor")


def _named(layers: Sequence[str]) -> str:
    more = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
    return f"'{_short(layers[0])}'{more}"


def _short(layer: str) -> str:
    """Return the first part of a fused layer's name."""
    return layer.split(";")[0]


_BYTES = frozenset({"INT8", "UINT8", "INT4", "UINT4"})


def read(data: bytes) -> Needs:
    """Collect what every subgraph of a .tflite file requires.
    A dense layer's kernel counts as per channel if it has more than one scale, whatever version the operator claims; an
    axis is empty if something is computed into it, so that optional inputs without a tensor do not count.
    Raises ConversionError for other bytes."""
    file = tflite.read(data)
    ops: dict[tuple[str, int], Use] = {}
    custom: dict[str, Use] = {}
    per_channel, hybrid, matmul, computed = list[str](), list[str](), list[str](), list[tflite.Tensor]()
    for graph in file.subgraphs:
        computed += [graph.tensors[index] for index in graph.inputs]
        for operator in graph.operators:
            inputs = [graph.tensors[index] if index >= 0 else None for index in operator.inputs]
            outputs = [graph.tensors[index] for index in operator.outputs]
            computed += outputs
            layer = outputs[0].name if outputs else operator.op
            use = Use(operator.op, operator.version, layer)
            if operator.custom:
                custom.setdefault(operator.op, use)
            else:
                ops.setdefault((operator.op, operator.version), use)
            types = [tensor.dtype if tensor is not None else "" for tensor in inputs[:2]]
            if operator.op == "FULLY_CONNECTED":
                affine = inputs[1].affine if len(inputs) > 1 and inputs[1] is not None else None
                if affine is not None and affine.scale.size > 1 and types[1] in _BYTES:
                    if types[0] in _BYTES:
                        per_channel.append(layer)
                    elif types[0] == "FLOAT32":
                        hybrid.append(layer)
            elif operator.op == "BATCH_MATMUL" and types == ["INT8", "INT8"]:
                matmul.append(layer)
    return Needs(
        "tflite",
        ops=tuple(ops.values()),
        custom=tuple(custom.values()),
        per_channel_dense=tuple(per_channel),
        hybrid_dense=tuple(hybrid),
        int8_matmul=tuple(matmul),
        free_axes=tuple(dict.fromkeys(tensor.name for tensor in computed if not tensor.fixed)),
        empty=tuple(dict.fromkeys(tensor.name for tensor in computed if 0 in tensor.shape)),
        claimed=file.claimed,
    )


READERS = {
    "tflite": "edgekit_converters.formats.needs:read",
    "onnx": "edgekit_converters.formats.onnx_needs:read",
    "ncnn": "edgekit_converters.formats.ncnn_file:read_needs",
    "gguf": "edgekit_converters.formats.gguf_file:read_needs",
}


def read_needs(format: str, data: bytes) -> Needs:  # noqa: A002
    """Read what a model file requires. format: `tflite` or `onnx`.
    Raises ConversionError for bytes that are not such a model, MissingExtraError if the tools that read them are
    missing."""
    target = READERS.get(format)
    if target is None:
        raise ConversionError(f"cannot read what the format '{format}' asks for", do=f"Known: {', '.join(READERS)}")
    try:
        needs: Needs = pkgutil.resolve_name(target)(data)
    except ImportError as error:
        raise MissingExtraError("convert", f"reading what {format} artifacts ask for") from error
    return needs
