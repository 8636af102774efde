"""The structure of an .onnx file, from its bytes: what ONNX Runtime would follow, open or allocate.

    facts = check(data, MAX_TENSOR_BYTES)

Rules, beside those of `protobuf`, `onnx_messages`, `onnx_constants` and `onnx_types`:
- operators come from `DOMAINS`; those that run other files' code (EPContext) do not; functions, training and models for
  another loader (ORT format) are refused, none of which edgekit writes;
- what a constant asks an operator to make (ConstantOfShape, Expand) stays within what one tensor may have, and what a kernel
  divides by is at least 1;
- graphs lie in one another no deeper than `MAX_DEPTH`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edgekit_runtime.modelfile.facts import ModelFacts, bytes_of, refused
from edgekit_runtime.modelfile.onnx_constants import Constants
from edgekit_runtime.modelfile.onnx_messages import Messages
from edgekit_runtime.modelfile.onnx_types import MAX_DEPTH, Types
from edgekit_runtime.modelfile.protobuf import VARINT, signed, varints

__all__ = ["DOMAINS", "check"]

DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"})
"""com.microsoft: what ONNX Runtime's quantizer and optimizer write (QLinearAdd, DynamicQuantizeMatMul, FusedConv)."""
MAX_OPSET, MAX_IR = 1000, 100
_LOADS_FILES = frozenset({"com.microsoft:EPContext", "com.microsoft:PyOp"})
_ONCE_MODEL, _ONCE_ATTRIBUTE = frozenset({1, 7}), frozenset({1, 2, 3, 4, 5, 6, 20, 21, 22})
_ONCE_NODE = frozenset({3, 4, 7})
_POSITIVE = {
    "strides": ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool", "LpPool"),
    "dilations": ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool", "LpPool"),
    "kernel_shape": ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool", "LpPool"),
    "group": ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv"),
    "blocksize": ("SpaceToDepth", "DepthToSpace"),
    "num_outputs": ("Split",),
    "num_groups": ("GroupNormalization",),
    "block_size": ("MatMulNBits",),
}
"""Attributes that kernels divide by."""
_MAKES = {"ConstantOfShape": 0, "Expand": 1}
"""Operators whose output is as large as a constant input says."""


@dataclass
class _Found:
    """What was seen so far."""

    ops: set[str] = field(default_factory=set)
    operators: int = 0
    graphs: int = 0
    tensors: int = 0


def check(data: bytes, max_tensor_bytes: int) -> ModelFacts:
    """Raises ModelFileError, which says what is wrong and with which part."""
    if data[4:8] == b"ORTM":
        raise refused("it is a model in ONNX Runtime's own format, which is not looked into")
    return _Walk(data, max_tensor_bytes).model()


class _Walk:
    def __init__(self, data: bytes, max_tensor_bytes: int) -> None:
        self._most = max_tensor_bytes
        self._messages = Messages(data)
        self._constants, self._types = Constants(self._messages, self._most), Types(self._messages, self._most)
        self._found = _Found()

    def model(self) -> ModelFacts:
        parts = self._messages.fields(0, len(self._messages.data), _ONCE_MODEL, "the model")
        ir, graph = 0, None
        opsets: dict[str, int] = {}
        for number, kind, value, end in parts:
            if number == 1 and kind == VARINT:
                ir = value
            elif number == 7:
                graph = self._messages.span(kind, value, end, "the graph")
            elif number == 8:
                domain, version = self._opset(*self._messages.span(kind, value, end, "an opset"))
                if opsets.setdefault(domain, version) != version:
                    raise refused(f"it asks for two opsets of '{domain or 'ai.onnx'}'")
            elif number == 20:
                raise refused("it carries training, which a board does not do")
            elif number == 25:
                raise refused("it defines functions of its own, which are not looked into")
        if graph is None or not 1 <= ir <= MAX_IR:
            raise refused("this is not an ONNX model" if graph is None else f"its IR version is {ir}")
        if not opsets:
            raise refused("it says of no operator set which version it asks for")
        self._graph(*graph, 0, {})
        found = self._found
        if not found.operators:
            raise refused("it computes nothing")
        return ModelFacts(
            "onnx",
            f"IR {ir}, opset {opsets.get('', next(iter(opsets.values())))}",
            tuple(sorted(found.ops)),
            found.operators,
            found.graphs,
            found.tensors,
            self._constants.bytes,
            self._types.largest,
        )

    def _graph(self, start: int, stop: int, depth: int, outer: dict[str, tuple[int, ...]]) -> None:
        if depth > MAX_DEPTH:
            raise refused(f"its graphs lie more than {MAX_DEPTH} deep in one another")
        self._found.graphs += 1
        parts = self._messages.fields(start, stop, frozenset(), "a graph")
        numbers = dict(outer)
        for number, kind, value, end in parts:
            if number == 5:
                tensor = self._constants.tensor(*self._messages.span(kind, value, end, "a constant"))
                self._found.tensors += 1
                if tensor.numbers is not None:
                    numbers[tensor.name] = tensor.numbers
            elif number == 15:
                self._constants.sparse(*self._messages.span(kind, value, end, "a sparse constant"))
        for number, kind, value, end in parts:
            if number == 1:
                self._node(*self._messages.span(kind, value, end, "a node"), depth, numbers)
            elif number in (11, 12, 13):
                self._found.tensors += 1
                self._types.value(*self._messages.span(kind, value, end, "a value"))

    def _node(self, start: int, stop: int, depth: int, numbers: dict[str, tuple[int, ...]]) -> None:
        inputs: list[str] = []
        outputs: list[str] = []
        op = domain = ""
        attributes: list[tuple[int, int]] = []
        for number, kind, value, end in self._messages.fields(start, stop, _ONCE_NODE, "a node"):
            if number == 1:
                inputs.append(self._messages.text(kind, value, end))
            elif number == 2:
                outputs.append(self._messages.text(kind, value, end))
            elif number == 4:
                op = self._messages.text(kind, value, end)
            elif number == 7:
                domain = self._messages.text(kind, value, end)
            elif number == 5:
                attributes.append(self._messages.span(kind, value, end, "an attribute"))
        if domain not in DOMAINS:
            raise refused(f"it uses {domain}:{op}, and would need a library that is no part of the bundle")
        name = f"{domain or 'ai.onnx'}:{op}"
        if not op or name in _LOADS_FILES:
            raise refused(f"it uses {name}, which runs what is no part of the file")
        self._found.ops.add(name)
        self._found.operators += 1
        for attribute in attributes:
            constant = self._attribute(*attribute, op, depth, numbers)
            if constant is not None and op == "Constant" and outputs:
                numbers[outputs[0]] = constant
        place = _MAKES.get(op)
        if place is not None and place < len(inputs) and inputs[place] in numbers:
            wanted = numbers[inputs[place]]
            bytes_of(tuple(max(side, 0) for side in wanted), 8, f"what {name} makes", self._most)

    def _attribute(
        self, start: int, stop: int, op: str, depth: int, numbers: dict[str, tuple[int, ...]]
    ) -> tuple[int, ...] | None:
        """Whole numbers that it holds, where it is the value of a constant."""
        name, ints = "", []
        constant: tuple[int, ...] | None = None
        for number, kind, value, end in self._messages.fields(start, stop, _ONCE_ATTRIBUTE, "an attribute"):
            if number == 1:
                name = self._messages.text(kind, value, end)
            elif number in (3, 8):
                ints += (
                    [signed(value)]
                    if kind == VARINT
                    else varints(self._messages.data, *self._messages.span(kind, value, end, "ints"))
                )
            elif number in (5, 10):
                constant = self._constants.tensor(*self._messages.span(kind, value, end, "a constant")).numbers
            elif number in (6, 11):
                self._graph(*self._messages.span(kind, value, end, "a graph"), depth + 1, numbers)
            elif number in (22, 23):
                self._constants.sparse(*self._messages.span(kind, value, end, "a sparse constant"))
        if ints and op in _POSITIVE.get(name, ()) and min(ints) < 1:
            raise refused(f"{op} has {name} {ints}, which would be divided by")
        return tuple(ints) if name in ("value_int", "value_ints") else constant

    def _opset(self, start: int, stop: int) -> tuple[str, int]:
        domain, version = "", 0
        for number, kind, value, end in self._messages.fields(start, stop, frozenset({1, 2}), "an opset"):
            if number == 1:
                domain = self._messages.text(kind, value, end)
            elif number == 2 and kind == VARINT:
                version = value
        if not 1 <= version <= MAX_OPSET:
            raise refused(f"it asks for opset {version} of '{domain or 'ai.onnx'}'")
        return ("" if domain == "ai.onnx" else domain), version
