"""A .tflite file that would lead an interpreter astray is refused with a sentence; every file that converters write
passes.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import tiny

from edgekit_runtime.modelfile import tflite_schema as tables
from edgekit_runtime.modelfile.check import ModelFacts, check_model
from edgekit_runtime.modelfile.tflite_rules import BITS
from edgekit_runtime.modelfile.tflite_structure import KNOWN_CUSTOM
from edgekit_runtime.system.errors import ModelFileError

schema = pytest.importorskip("ai_edge_litert.schema_py_generated", reason="comes with the extra 'litert'")
flatbuffers = pytest.importorskip("flatbuffers", reason="comes with the extra 'dev'")
MODELS = sorted(tiny.MODELS.glob("*.tflite"))
OPERATORS = {name: value for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}


def packed(model) -> bytes:
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def model():
    """Its lists can be written: as they are read they are views of the file."""
    made = schema.ModelT.InitFromPackedBuf((tiny.MODELS / "cnn_int8.tflite").read_bytes(), 0)
    for graph in made.subgraphs:
        graph.inputs, graph.outputs = list(graph.inputs), list(graph.outputs)
        for one in graph.operators:
            one.inputs, one.outputs = list(one.inputs), list(one.outputs)
        for one in graph.tensors:
            one.shape = list(one.shape)
    return made


def changed(change) -> bytes:
    made = model()
    change(made, made.subgraphs[0])
    return packed(made)


def operator(graph, made, name):
    return next(one for one in graph.operators if code(made, one) == OPERATORS[name])


def code(made, one):
    entry = made.operatorCodes[one.opcodeIndex]
    return max(entry.builtinCode, entry.deprecatedBuiltinCode)


def become(made, one, name, options=None, custom=None):
    """The operator as another one."""
    entry = schema.OperatorCodeT()
    entry.builtinCode = OPERATORS[name]
    entry.deprecatedBuiltinCode = min(OPERATORS[name], 127)
    entry.customCode = custom
    entry.version = 1
    made.operatorCodes.append(entry)
    one.opcodeIndex = len(made.operatorCodes) - 1
    if options is not None:
        one.builtinOptionsType = getattr(schema.BuiltinOptions, type(options).__name__[:-1])
        one.builtinOptions = options


def constant(made, graph, values, kind):
    """One more constant; its index."""
    buffer, tensor = schema.BufferT(), schema.TensorT()
    buffer.data = np.frombuffer(values.tobytes(), np.uint8)
    made.buffers.append(buffer)
    tensor.shape, tensor.type, tensor.buffer = list(values.shape), kind, len(made.buffers) - 1
    tensor.name = "one more"
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_what_converters_write_passes(path):
    facts = check_model("tflite", path.read_bytes())
    assert facts.operators > 0
    assert facts.constant_bytes < path.stat().st_size


def test_bytes_that_two_buffers_share_count_once():
    """The second buffer is led into the middle of the first, where the number 8 stands, as a length."""
    made = model()
    graph = made.subgraphs[0]
    constant(made, graph, np.array([8] * 64, np.int32), schema.TensorType.INT32)
    constant(made, graph, np.array([7, 7], np.int32), schema.TensorType.INT32)
    data = bytearray(packed(made))
    first, second = (data.index(np.array(values, np.int32).tobytes()) for values in ([8] * 64, [7, 7]))
    apart = check_model("tflite", bytes(data)).constant_bytes
    leads = [at for at in range(0, len(data) - 4, 4) if at + int.from_bytes(data[at : at + 4], "little") == second - 4]
    middle = first + 80
    (lead,) = [at for at in leads if at < middle]
    data[lead : lead + 4] = (middle - lead).to_bytes(4, "little")
    assert check_model("tflite", bytes(data)).constant_bytes == apart - 8


def test_the_facts_are_those_of_the_file():
    data = packed(model())
    facts = check_model("tflite", data)
    graph = model().subgraphs[0]
    assert facts == ModelFacts(
        "tflite",
        "schema 3",
        ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "MEAN"),
        len(graph.operators),
        1,
        len(graph.tensors),
        sum(len(one.data) for one in model().buffers if one.data is not None),
        facts.largest_tensor_bytes,
    )
    constants = {n for n, one in enumerate(model().buffers) if one.data is not None and len(one.data)}
    computed = [one for one in graph.tensors if one.buffer not in constants]
    assert facts.largest_tensor_bytes == max(int(np.prod(one.shape)) for one in computed)


def write(offset, value):
    """Another number somewhere in the operators' lists."""

    def change(made, graph):
        getattr(graph.operators[0], offset)[0] = value

    return change


def conv(change):
    return lambda made, graph: change(made, graph, operator(graph, made, "CONV_2D"))


def side(place, axis, value):
    """Of input `place` of the first convolution."""
    return conv(lambda made, graph, one: graph.tensors[one.inputs[place]].shape.__setitem__(axis, value))


def empty(made, graph, one, place):
    """Input `place` as a constant without elements."""
    one.inputs[place] = constant(made, graph, np.zeros((0, 3, 3, 3), np.int8), schema.TensorType.INT8)


def option(name, value):
    return conv(lambda made, graph, one: setattr(one.builtinOptions, name, value))


def other(name, options=None, **values):
    """The first convolution as another operator, with options of its own."""

    def change(made, graph, one):
        found = None if options is None else getattr(schema, options)()
        for key, value in values.items():
            setattr(found, key, value)
        become(made, one, name, found)

    return conv(change)


def custom(name):
    return conv(lambda made, graph, one: become(made, one, "CUSTOM", custom=name.encode()))


def block(name):
    def change(made, graph, one):
        become(made, one, name)
        blocks = constant(made, graph, np.array([2, 0], np.int32), schema.TensorType.INT32)
        pads = constant(made, graph, np.zeros((2, 2), np.int32), schema.TensorType.INT32)
        one.inputs = [one.inputs[0], blocks, pads]

    return conv(change)


def calls(circle):
    """A graph beside the main one, which WHILE runs; circle: which graph it runs itself."""

    def change(made, graph, one):
        body = schema.SubGraphT()
        tensor = schema.TensorT()
        tensor.shape, tensor.name = [1], "state"
        again = schema.OperatorT()
        body.tensors, body.inputs, body.outputs, body.operators = [tensor, tensor], [0], [1], [again]
        again.inputs, again.outputs = [0], [1]
        options = schema.WhileOptionsT()
        options.condSubgraphIndex = options.bodySubgraphIndex = circle
        become(made, again, "WHILE", options)
        made.subgraphs.append(body)

    return conv(change)


def strings(raw):
    def change(made, graph):
        index = constant(made, graph, np.frombuffer(raw, np.uint8), schema.TensorType.STRING)
        graph.tensors[index].shape = [2]

    return change


def scale(values, zeros=None, axis=0):
    def change(made, graph, one):
        found = graph.tensors[one.inputs[1]].quantization
        found.scale, found.zeroPoint, found.quantizedDimension = values, zeros or [0] * len(values), axis

    return conv(change)


def large(made, graph):
    graph.tensors[graph.operators[0].outputs[0]].shape = [1, 1 << 16, 1 << 16]


def overflowing(made, graph):
    graph.tensors[graph.operators[0].outputs[0]].shape = [1 << 30, 1 << 30, 1 << 30, 4]


def elsewhere(made, graph):
    made.buffers[graph.tensors[operator(graph, made, "CONV_2D").inputs[1]].buffer].offset = 1 << 40
    made.buffers[graph.tensors[operator(graph, made, "CONV_2D").inputs[1]].buffer].size = 100


def signature(graph=0, index=0):
    def change(made, _):
        entry, pair = schema.SignatureDefT(), schema.TensorMapT()
        pair.name, pair.tensorIndex = b"x", index
        entry.inputs, entry.outputs, entry.signatureKey, entry.subgraphIndex = [pair], [], b"serving", graph
        made.signatureDefs = [entry]

    return change


BAD = {
    "another schema": (lambda made, _: setattr(made, "version", 2), "schema is version 2"),
    "no graph": (lambda made, _: setattr(made, "subgraphs", []), "has no graph"),
    "an operator reads a tensor that is not there": (write("inputs", 10_000), "is tensor 10000, and there are"),
    "an operator writes a tensor that is not there": (write("outputs", 10_000), "is tensor 10000, and there are"),
    "an operator writes nowhere": (write("outputs", -1), "is tensor -1"),
    "an input that may not be left out": (write("inputs", -1), "lacks one of its first 2 inputs"),
    "an index far below zero": (write("inputs", -5), "is tensor -5"),
    "an operator of no code": (
        lambda made, graph: setattr(graph.operators[0], "opcodeIndex", 99),
        "is number 99, and there are",
    ),
    "a tensor of no buffer": (lambda made, graph: setattr(graph.tensors[0], "buffer", 999), "is number 999, and there"),
    "a tensor of no type": (lambda made, graph: setattr(graph.tensors[0], "type", 99), "the type of tensor 0"),
    "a graph's input out of range": (lambda made, graph: setattr(graph, "inputs", [77_777]), "an input of graph 0"),
    "a graph's output out of range": (lambda made, graph: setattr(graph, "outputs", [-1]), "an output of graph 0"),
    "a signature of no graph": (signature(graph=5), "a signature's graph is number 5"),
    "a signature of no tensor": (signature(index=9999), "a signature's tensor is number 9999"),
    "an output that nothing computes": (lambda made, graph: graph.operators.pop(), "is never computed"),
    "operators in an order that reads too early": (
        lambda made, graph: graph.operators.reverse(),
        "which nothing before it has computed",
    ),
    "an operator that writes what it reads": (  # CVE-2020-15210
        lambda made, graph: setattr(graph.operators[0], "outputs", [graph.operators[0].inputs[0]]),
        "writes tensor .*, which it reads",
    ),
    "an operator that writes a constant": (
        conv(lambda made, graph, one: setattr(one, "outputs", [one.inputs[1]])),
        "which is a constant",
    ),
    "a constant that is fed": (
        conv(lambda made, graph, one: setattr(graph, "inputs", [one.inputs[1]])),
        "input 0|is a constant",
    ),
    "a side of zero, which a convolution divides by": (  # CVE-2021-29594
        conv(lambda made, graph, one: empty(made, graph, one, 1)),
        r"an input without elements: \[0, 3, 3, 3\]",
    ),
    "a bias without elements": (  # CVE-2022-23557
        conv(lambda made, graph, one: empty(made, graph, one, 2)),
        "an input without elements",
    ),
    "a picture without a row": (side(0, 1, 0), "an input without elements"),
    "a side below zero": (side(0, 1, -1), "has a negative side"),
    "a constant of another size than its shape": (side(1, 0, 2), "and its buffer has"),
    "a tensor of 4 GiB": (large, "declares 4,294,967,296 bytes, more than the 536,870,912"),
    "a size that overflows 64 bits": (overflowing, "more than the 536,870,912"),
    "weights outside the file": (elsewhere, "lies outside the file: 100 bytes at"),
    "a stride of zero": (option("strideW", 0), "a StrideW of 0, which would be divided by"),  # CVE-2021-29585
    "a stride below zero": (option("strideH", -1), "a StrideH of -1"),
    "a dilation of zero": (option("dilationWFactor", 0), "a DilationWFactor of 0"),
    "pooling with a stride of zero": (other("MAX_POOL_2D", "Pool2DOptionsT"), "a StrideW of 0"),  # CVE-2021-29586
    "pooling with a window of zero": (
        other("AVERAGE_POOL_2D", "Pool2DOptionsT", strideW=1, strideH=1),
        "a FilterWidth of 0",
    ),
    "a transposed convolution with a stride of zero": (  # CVE-2021-29588
        other("TRANSPOSE_CONV", "TransposeConvOptionsT"),
        "a StrideW of 0",
    ),
    "space to depth by zero": (other("SPACE_TO_DEPTH", "SpaceToDepthOptionsT"), "BlockSize of 0"),  # CVE-2021-29587
    "depth to space by zero": (other("DEPTH_TO_SPACE", "DepthToSpaceOptionsT"), "BlockSize of 0"),  # CVE-2021-29595
    "a split into nothing": (other("SPLIT", "SplitOptionsT"), "NumSplits of 0"),  # CVE-2021-29599
    "a filter of rank zero": (other("SVDF", "SVDFOptionsT"), "a Rank of 0"),  # CVE-2021-29598
    "space to batch with a block of zero": (block("SPACE_TO_BATCH_ND"), "a block of 0"),  # CVE-2021-29597
    "batch to space with a block of zero": (block("BATCH_TO_SPACE_ND"), "a block of 0"),  # CVE-2021-29593
    "a loop whose body is itself": (calls(1), "calls itself"),  # CVE-2021-29591
    "a loop whose body is the whole": (calls(7), "a graph that operator 0"),
    "an operator of TensorFlow's own": (custom("FlexErf"), "FlexErf, an operator of TensorFlow's own"),
    "an operator of somebody's own": (custom("Mine"), "the custom operator 'Mine'"),
    "strings that begin before their buffer": (
        strings(struct.pack("<4i", 2, 0, 20, 24) + b"12345678"),
        "lie outside its buffer",
    ),
    "strings that end after their buffer": (
        strings(struct.pack("<4i", 2, 16, 20, 2000) + b"12345678"),
        "lie outside its buffer",
    ),
    "more strings than there are": (
        strings(struct.pack("<4i", 200_000, 16, 20, 24) + b"12345678"),
        "lie outside its buffer",
    ),
    "scales for more channels than there are": (scale([0.5] * 7), "has 7 scales along axis 0"),
    "scales along no axis": (scale([0.5] * 8, axis=9), "scales along axis 9"),
    "fewer zero points than scales": (scale([0.5] * 8, zeros=[0, 0]), "8 scales and 2 zero points"),
    "a scale that is not finite": (scale([float("nan")]), "a scale that is not finite"),
    "a metadata buffer out of range": (
        lambda made, _: setattr(made, "metadataBuffer", [55_555]),
        "a metadata buffer is number 55555",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_with_its_reason(case):
    """S15"""
    change, why = BAD[case]
    with pytest.raises(ModelFileError, match=why):
        check_model("tflite", changed(change))


def test_the_files_that_are_changed_pass_unchanged():
    check_model("tflite", packed(model()))


def test_a_well_known_custom_operator_passes_and_is_named():
    facts = check_model("tflite", changed(custom("TFLite_Detection_PostProcess")))
    assert "TFLite_Detection_PostProcess" in facts.ops


def test_strings_that_hold_pass():
    check_model("tflite", changed(strings(struct.pack("<4i", 2, 16, 20, 24) + b"12345678")))


def test_one_graph_may_run_another():
    def change(made, graph, one):
        calls(2)(made, graph)
        leaf = schema.SubGraphT()
        leaf.tensors, leaf.inputs, leaf.outputs, leaf.operators = [], [], [], []
        made.subgraphs.append(leaf)

    assert check_model("tflite", changed(conv(change))).graphs == 3


def test_a_tensor_may_be_as_large_as_is_allowed_and_no_larger():
    data = packed(model())
    largest = check_model("tflite", data).largest_tensor_bytes
    check_model("tflite", data, max_tensor_bytes=largest)
    with pytest.raises(ModelFileError, match="more than the"):
        check_model("tflite", data, max_tensor_bytes=largest - 1)


def test_parts_that_repeat_one_another_are_counted_as_often_as_an_interpreter_would_meet_them():
    """A few kilobytes: a thousand graphs, which are one, of a thousand tensors, which are one."""
    builder = flatbuffers.Builder(1024)
    schema.TensorStart(builder)
    tensor = schema.TensorEnd(builder)
    schema.SubGraphStartTensorsVector(builder, 1000)
    for _ in range(1000):
        builder.PrependUOffsetTRelative(tensor)
    tensors = builder.EndVector()
    schema.SubGraphStart(builder)
    schema.SubGraphAddTensors(builder, tensors)
    graph = schema.SubGraphEnd(builder)
    schema.ModelStartSubgraphsVector(builder, 1000)
    for _ in range(1000):
        builder.PrependUOffsetTRelative(graph)
    graphs = builder.EndVector()
    schema.ModelStart(builder)
    schema.ModelAddVersion(builder, 3)
    schema.ModelAddSubgraphs(builder, graphs)
    builder.Finish(schema.ModelEnd(builder), file_identifier=b"TFL3")
    data = bytes(builder.Output())
    assert len(data) < 10_000
    with pytest.raises(ModelFileError, match="or repeats some without end"):
        check_model("tflite", data)


def test_the_tables_are_those_of_the_installed_schema():
    import runpy

    pytest.importorskip("ruff", reason="comes with the extra 'dev'")
    script = Path(__file__).parents[3] / "benchmarks" / "tflite_schema.py"
    written = runpy.run_path(str(script))["written"]
    source = Path(schema.__file__).read_text(encoding="utf-8")
    target = Path(tables.__file__).read_text(encoding="utf-8")
    assert written(source) == target


def test_no_table_holds_one_of_its_own_kind_so_that_depth_is_bounded():
    unions = {
        "BuiltinOptions": tables.BUILTIN_OPTIONS,
        "BuiltinOptions2": tables.BUILTIN_OPTIONS2,
        "QuantizationDetails": tables.QUANTIZATION_DETAILS,
        "SparseIndexVector": tables.SPARSE_INDEX_VECTOR,
    }

    def held(name):
        kinds = [word.partition(":")[2].strip("[]<>") for word in tables.TABLES[name].split()]
        return [inner for kind in kinds for inner in unions.get(kind, [kind]) if inner in tables.TABLES]

    def depth(name, above):
        assert name not in above
        return 1 + max((depth(inner, {*above, name}) for inner in held(name)), default=0)

    assert depth("Model", frozenset()) < 10


def test_every_type_of_the_schema_has_its_bits_or_no_fixed_size():
    assert set(tables.TENSOR_TYPES) - set(BITS) == {"STRING", "RESOURCE", "VARIANT"}


def test_the_custom_operators_are_those_that_every_runtime_was_found_to_carry():
    from edgekit_converters.formats.needs import known_custom

    assert known_custom() == KNOWN_CUSTOM


def sparse(**changes):
    """[[0, a, 0, 0], [b, 0, 0, c]] as TFLite keeps it: a dense level of rows, a compressed one of columns."""
    told = {
        "order": [0, 1],
        "rows": 2,
        "segments": [0, 1, 3],
        "indices": [1, 0, 3],
        "values": 3,
        "blocks": [],
        **changes,
    }

    def vector(values):
        made = schema.Int32VectorT()
        made.values = values
        return made

    def change(made, graph):
        index = constant(made, graph, np.ones(told["values"], np.float32), schema.TensorType.FLOAT32)
        graph.tensors[index].shape = [2, 4]
        rows, columns = schema.DimensionMetadataT(), schema.DimensionMetadataT()
        rows.format, rows.denseSize = schema.DimensionType.DENSE, told["rows"]
        columns.format = schema.DimensionType.SPARSE_CSR
        columns.arraySegmentsType = columns.arrayIndicesType = schema.SparseIndexVector.Int32Vector
        columns.arraySegments, columns.arrayIndices = vector(told["segments"]), vector(told["indices"])
        found = schema.SparsityParametersT()
        found.traversalOrder, found.blockMap, found.dimMetadata = told["order"], told["blocks"], [rows, columns]
        graph.tensors[index].sparsity = found

    return changed(change)


def test_a_sparse_constant_that_holds_passes():
    check_model("tflite", sparse())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"order": [0, 7]}, "are not those of its 2 sides"),
        ({"order": [0, 0]}, "are not those of its 2 sides"),
        ({"blocks": [0]}, "are not those of its 2 sides and 1 blocks"),
        ({"rows": 1000}, "not as long as its side, 2"),
        ({"segments": [0, 1, 9]}, "do not lead to its indices"),
        ({"segments": [0, 5, 3]}, "do not lead to its indices"),
        ({"segments": [0, 3]}, "do not lead to its indices"),
        ({"indices": [1, 0, 4]}, "lies outside its side of 4"),
        ({"indices": [1, 0, -1]}, "lies outside its side of 4"),
        ({"values": 2}, "has 2 values for 3 places"),
    ],
    ids=str,
)
def test_a_sparse_constant_whose_levels_lead_elsewhere_is_refused(changes, why):
    """S15: CVE-2022-23560"""
    with pytest.raises(ModelFileError, match=why):
        check_model("tflite", sparse(**changes))
