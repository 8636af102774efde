"""The structure of a .tflite file: what an interpreter would follow unchecked.

    facts = check(data, MAX_TENSOR_BYTES)

Rules, besides those of `flatbuffer` and `tflite_rules`:
- every index (of a tensor, a buffer, an operator code, a graph, in signatures and metadata too) is in range;
- a constant has as many bytes as its shape and type say; a buffer behind the flatbuffer lies inside the file;
- a computed tensor stays within the limit of one tensor; no side is negative;
- an operator reads constants, inputs and what came before it, and never writes a constant or what it reads
  (CVE-2020-15210); graphs call one another without a circle (CVE-2021-29591);
- the operators are TFLite's own, the few custom ones of every runtime, or those of a known delegate (`DELEGATED`);
  none is TensorFlow's (Flex).
"""

from __future__ import annotations

import struct

from edgekit_runtime.modelfile import tflite_schema as schema
from edgekit_runtime.modelfile.check import DELEGATED, ModelFacts, bytes_of, refusal
from edgekit_runtime.modelfile.flatbuffer import Table, VectorSpan, read
from edgekit_runtime.modelfile.tflite_rules import (
    BITS,
    CheckedTensor,
    OperatorNode,
    check_node,
    check_quantization,
    check_sparsity,
    check_strings,
    integers,
    slots,
)

KNOWN_CUSTOM = frozenset({"AudioSpectrogram", "Mfcc", "NumericVerify", "TFLite_Detection_PostProcess"})
"""Custom operators that every runtime registers, by benchmarks/registered.py."""
_NEVER = frozenset({"DELEGATE", "PLACEHOLDER_FOR_GREATER_OP_CODES", "-"})
_UNIONS = {
    "BuiltinOptions": schema.BUILTIN_OPTIONS,
    "BuiltinOptions2": schema.BUILTIN_OPTIONS2,
    "QuantizationDetails": schema.QUANTIZATION_DETAILS,
    "SparseIndexVector": schema.SPARSE_INDEX_VECTOR,
}


def check(data: bytes, max_tensor_bytes: int) -> ModelFacts:
    """Raises ModelFileError, which says what is wrong and with which part."""
    model = read(data, b"TFL3", "Model", schema.TABLES, _UNIONS)
    if (version := model[_MODEL["Version"]]) != 3:
        raise refusal(f"its schema is version {version or 0}; TFLite files have version 3")
    walk = _TFLiteWalk(data, model, max_tensor_bytes)
    for number, graph in enumerate(walk.graphs):
        walk.graph(number, graph)
    walk.signatures()
    _check_calls(walk.calls)
    ops, covered = tuple(sorted(walk.ops)), _covered_bytes([span for span in walk.buffers if span is not None])
    counts = (walk.operators, len(walk.graphs), sum(map(len, walk.tensors)))
    return ModelFacts("tflite", "schema 3", ops, *counts, covered, walk.largest)


def _covered_bytes(spans: list[VectorSpan]) -> int:
    """Bytes of the file that lie in any of them: buffers may share bytes."""
    total = behind = 0
    for start, length in sorted(spans):
        total += max(start + length - max(start, behind), 0)
        behind = max(behind, start + length)
    return total


class _TFLiteWalk:
    """The lists that indices point into."""

    def __init__(self, data: bytes, model: Table, max_tensor_bytes: int) -> None:
        self.data, self._model, self._most = data, model, max_tensor_bytes
        self.codes = [_operator_name(data, code) for code in model[_MODEL["OperatorCodes"]] or ()]
        self.buffers = [_buffer(data, n, buffer) for n, buffer in enumerate(model[_MODEL["Buffers"]] or ())]
        self.graphs: list[Table] = model[_MODEL["Subgraphs"]] or []
        self.ops: set[str] = set()
        self.operators = self.largest = 0
        self.calls: list[set[int]] = []
        self.tensors: list[list[CheckedTensor]] = []
        if not self.graphs:
            raise refusal("it has no graph")
        if model[_MODEL["ExternalBuffers"]] or model[_MODEL["ExternalBufferGroups"]]:
            raise refusal("its weights are in other files, which a bundle does not have")
        for entry in model[_MODEL["Metadata"]] or ():
            _check_index(entry[_METADATA["Buffer"]] or 0, len(self.buffers), "a metadata entry's buffer")
        for index in integers(data, model[_MODEL["MetadataBuffer"]]):
            _check_index(index, len(self.buffers), "a metadata buffer")

    def graph(self, number: int, graph: Table) -> None:
        where = f"graph {number}"
        tables = graph[_GRAPH["Tensors"]] or []
        tensors = [self._tensor(f"tensor {n} of {where}", table) for n, table in enumerate(tables)]
        self.tensors.append(tensors)
        self.calls.append(set())
        inputs = self._indices(graph[_GRAPH["Inputs"]], len(tensors), f"an input of {where}")
        outputs = self._indices(graph[_GRAPH["Outputs"]], len(tensors), f"an output of {where}")
        known = set(inputs)  # readable without having been computed: an input, a constant, a state, nothing at all
        known.update([n for n, one in enumerate(tensors) if one.data is not None or one.variable or 0 in one.shape])
        for index in inputs:
            if tensors[index].data is not None:
                raise refusal(f"input {index} of {where} is a constant")
        for place, table in enumerate(graph[_GRAPH["Operators"]] or ()):
            node = self._node(table, len(tensors), f"operator {place} of {where}")
            what = f"operator {place} ({node.op}) of {where}"
            for index in node.inputs:
                if index >= 0 and index not in known:
                    raise refusal(f"{what} reads tensor {index}, which nothing before it has computed")
            for index in node.outputs:
                if tensors[index].data is not None:
                    raise refusal(f"{what} writes tensor {index}, which is a constant")
                if index in node.inputs:
                    raise refusal(f"{what} writes tensor {index}, which it reads")
            check_node(self.data, node, tensors, what)
            self._note_calls(number, node, what)
            known.update(node.outputs)
        for index in outputs:
            if index not in known:
                raise refusal(f"output {index} of {where} is never computed")

    def signatures(self) -> None:
        for entry in self._model[_MODEL["SignatureDefs"]] or ():
            graph = entry[_SIGNATURE["SubgraphIndex"]] or 0
            _check_index(graph, len(self.graphs), "a signature's graph")
            for name in ("Inputs", "Outputs"):
                for pair in entry[_SIGNATURE[name]] or ():
                    _check_index(pair[_MAP["TensorIndex"]] or 0, len(self.tensors[graph]), "a signature's tensor")

    def _tensor(self, what: str, table: Table) -> CheckedTensor:
        number, buffer = table[_TENSOR["Type"]] or 0, table[_TENSOR["Buffer"]] or 0
        if not 0 <= number < len(schema.TENSOR_TYPES):
            raise refusal(f"the type of {what} is number {number}, and there are {len(schema.TENSOR_TYPES)}")
        if buffer >= len(self.buffers):
            raise refusal(f"the buffer of {what} is number {buffer}, and there are {len(self.buffers)}")
        kind = schema.TENSOR_TYPES[number]
        shape = integers(self.data, table[_TENSOR["Shape"]])
        span = self.buffers[buffer] if buffer else None
        if table[_TENSOR["ExternalBuffer"]]:
            raise refusal(f"{what} keeps its data in another file, which a bundle does not have")
        size = bytes_of(shape, BITS.get(kind, 0), what, self._most if span is None else None)
        if span is None:
            self.largest = max(self.largest, size)
        elif table[_TENSOR["Sparsity"]] is None and kind in BITS and size != span.length:
            raise refusal(f"{what} is {kind} {list(shape)}, {size:,} bytes, and its buffer has {span.length:,}")
        tensor = CheckedTensor(kind, shape, span, bool(table[_TENSOR["IsVariable"]]), table)
        if table[_TENSOR["Quantization"]] is not None:
            check_quantization(self.data, tensor, what)
        if span is not None and kind == "STRING":
            check_strings(self.data, tensor, what)
        if table[_TENSOR["Sparsity"]] is not None:
            check_sparsity(self.data, tensor, what)
        return tensor

    def _node(self, table: Table, tensors: int, what: str) -> OperatorNode:
        code = table[_OPERATOR["OpcodeIndex"]] or 0
        _check_index(code, len(self.codes), f"the code of {what}")
        inputs = self._indices(table[_OPERATOR["Inputs"]], tensors, f"an input of {what}", optional=True)
        outputs = self._indices(table[_OPERATOR["Outputs"]], tensors, f"an output of {what}")
        self._indices(table[_OPERATOR["Intermediates"]], tensors, f"an intermediate of {what}", optional=True)
        self.ops.add(self.codes[code])
        self.operators += 1
        bounds = (table[_OPERATOR["LargeCustomOptionsOffset"]] or 0, table[_OPERATOR["LargeCustomOptionsSize"]] or 0)
        if sum(bounds) > len(self.data):
            raise refusal(f"the options of {what} lie outside the file")
        options = None
        for name, members in (("BuiltinOptions", schema.BUILTIN_OPTIONS), ("BuiltinOptions2", schema.BUILTIN_OPTIONS2)):
            if (found := table[_OPERATOR[name]]) is not None:
                options = (members[table[_OPERATOR[f"{name}Type"]]], found)
        return OperatorNode(self.codes[code], inputs, outputs, options)

    def _note_calls(self, number: int, node: OperatorNode, what: str) -> None:
        """The graphs that an operator runs."""
        name, table = node.options or ("", [])
        for place in _CALLS.get(name, ()):
            value = table[place]
            for index in integers(self.data, value) if isinstance(value, VectorSpan) else (value or 0,):
                _check_index(index, len(self.graphs), f"a graph that {what} runs")
                self.calls[number].add(index)

    def _indices(self, span: VectorSpan | None, most: int, what: str, *, optional: bool = False) -> tuple[int, ...]:
        if span is None:
            return ()
        found: tuple[int, ...] = struct.unpack_from(f"<{span.length}i", self.data, span.start)
        for index in found:
            if not (-1 if optional else 0) <= index < most:
                raise refusal(f"{what} is tensor {index}, and there are {most}")
        return found


def _check_index(index: int, most: int, what: str) -> None:
    if not 0 <= index < most:
        raise refusal(f"{what} is number {index}, and there are {most}")


_MODEL, _GRAPH, _TENSOR, _OPERATOR = slots("Model"), slots("SubGraph"), slots("Tensor"), slots("Operator")
_CODE, _BUFFER = slots("OperatorCode"), slots("Buffer")
_METADATA, _SIGNATURE, _MAP = slots("Metadata"), slots("SignatureDef"), slots("TensorMap")
_CALLS: dict[str, tuple[int, ...]] = {
    name: places
    for name, text in schema.TABLES.items()
    if (places := tuple(n for n, word in enumerate(text.split()) if "Subgraph" in word or "CalledComputations" in word))
    and name.endswith("Options")
}
"""Options that name graphs, and in which slots."""


def _operator_name(data: bytes, code: Table) -> str:
    # Codes up to 127 stand in the older field, all of them in the newer; runtimes take the larger.
    number = max(code[_CODE["DeprecatedBuiltinCode"]] or 0, code[_CODE["BuiltinCode"]] or 0)
    if number >= len(schema.OPERATORS) or schema.OPERATORS[number] in _NEVER:
        what = f"it uses operator number {number}, which this edgekit does not know"
        raise refusal(what, "Upgrade edgekit-deploy, or build the bundle again")
    name = schema.OPERATORS[number]
    if name != "CUSTOM":
        return name
    span = code[_CODE["CustomCode"]]
    custom = data[span.start : span.start + span.length].decode("utf-8", "replace") if span else ""
    if custom.startswith("Flex"):
        raise refusal(f"it uses {custom}, an operator of TensorFlow's own, which board runtimes do not have")
    if custom not in KNOWN_CUSTOM and custom not in DELEGATED:
        raise refusal(f"it uses the custom operator '{custom}', from a library that the bundle does not contain")
    return custom


def _buffer(data: bytes, number: int, buffer: Table) -> VectorSpan | None:
    span: VectorSpan | None = buffer[_BUFFER["Data"]]
    offset, size = buffer[_BUFFER["Offset"]] or 0, buffer[_BUFFER["Size"]] or 0
    if offset > 1:  # of files beyond 2 GB: the data stand behind the flatbuffer
        if offset + size > len(data):
            raise refusal(f"buffer {number} lies outside the file: {size:,} bytes at {offset:,} of {len(data):,}")
        span = VectorSpan(offset, size)
    return span if span is not None and span.length else None


def _check_calls(calls: list[set[int]]) -> None:
    """Raises ModelFileError unless each graph can run after those that it calls."""
    left = {number: set(called) for number, called in enumerate(calls)}
    while ready := [number for number, called in left.items() if not called]:
        for number in ready:
            del left[number]
        for called in left.values():
            called.difference_update(ready)
    if left:
        raise refusal(f"graph {min(left)} calls itself, directly or through others")
