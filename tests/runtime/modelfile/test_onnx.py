"""An .onnx file that would open another file, run other code or take all memory is refused; what exporters write
passes.
"""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from edgekit_runtime.modelfile.check import check_model
from edgekit_runtime.system.errors import ModelFileError

onnx = pytest.importorskip("onnx", reason="comes with the extra 'dev'")
from onnx import TensorProto, helper, numpy_helper

MODELS = sorted(tiny.MODELS.glob("*.onnx"))


def value(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(*nodes, initializers=(), outputs=(("y", [1, 4]),), inputs=(("x", [1, 4]),), **more):
    nodes = nodes or (helper.make_node("Relu", ["x"], ["y"]),)
    graph = helper.make_graph(
        list(nodes), "g", [value(*one) for one in inputs], [value(*one) for one in outputs], list(initializers)
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for name, given in more.items():
        getattr(made, name).extend(given)
    return made


def weights(**changes):
    tensor = numpy_helper.from_array(np.ones((1, 4), np.float32), "w")
    for name, given in changes.items():
        if name == "dims":
            del tensor.dims[:]
            tensor.dims.extend(given)
        else:
            setattr(tensor, name, given)
    return tensor


def external(**entries):
    tensor = weights()
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, given in entries.items():
        tensor.external_data.add(key=key, value=given)
    return model(initializers=[tensor])


def attribute(name, given, op="Conv"):
    return model(helper.make_node(op, ["x", "w"], ["y"], **{name: given}), initializers=[weights()])


def sized(op, shape, *, constant=False):
    """An operator whose output is as large as a constant says."""
    numbers = numpy_helper.from_array(np.array(shape, np.int64), "n")
    inputs = ["n"] if op == "ConstantOfShape" else ["x", "n"]
    node = helper.make_node(op, inputs, ["y"])
    if constant:
        return model(helper.make_node("Constant", [], ["n"], value=numbers), node, outputs=[("y", None)])
    return model(node, initializers=[numbers], outputs=[("y", None)])


def nested(depth):
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "leaf", [], [value("y", [1])])
    for _ in range(depth):
        branches = {"then_branch": graph} if depth > 4 else {"then_branch": graph, "else_branch": graph}
        graph = helper.make_graph([helper.make_node("If", ["c"], ["y"], **branches)], "branch", [], [value("y", [1])])
    return model(*graph.node, inputs=[("c", [1], TensorProto.BOOL)])


def function():
    made = helper.make_function(
        "com.microsoft", "F", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["y"])], [helper.make_opsetid("", 17)]
    )
    return model(functions=[made])


def training():
    made = model()
    made.training_info.add()
    return made


def ort_format():
    made = model()
    made.producer_name = "xxORTM"  # bytes 4 to 8 of a file that begins with it
    body = made.SerializeToString()
    return b"\x12\x06abORTM" + body


def twice(made):
    """A second graph behind the first: protobuf merges them, and a reader that takes the last sees another model."""
    data = made.SerializeToString()
    other = onnx.ModelProto()
    other.graph.node.add(op_type="Relu", input=["x"], output=["y"])
    return data + other.SerializeToString()


def version(**numbers):
    made = model()
    for name, given in numbers.items():
        setattr(made, name, given)
    return made


def opset(domain, number):
    made = model()
    made.opset_import.append(helper.make_opsetid(domain, number))
    return made


PLACES = {
    "a path out of the folder": {"location": "../../../etc/passwd"},  # CVE-2022-25882
    "an absolute path": {"location": "/etc/passwd"},  # CVE-2024-27318
    "a file beside it": {"location": "weights.bin"},
    "a huge length": {"location": "weights.bin", "offset": "0", "length": str(1 << 62)},
    "a key that is an attribute of objects": {"__class__": "x"},  # CVE-2026-34445
    "a place in memory": {"location": "*/_ORT_MEM_ADDR_/*", "offset": "140000000000"},  # onnxruntime 28709
    "nothing": {},
}


@pytest.mark.parametrize("case", PLACES)
def test_weights_that_stand_elsewhere_are_refused_whatever_they_name(case):
    """S15"""
    with pytest.raises(ModelFileError, match=r"the weights 'w' are (stored elsewhere|said to be)"):
        check_model("onnx", external(**PLACES[case]).SerializeToString())


BAD = {
    "no model at all": (b"hello, world", "damaged|not an ONNX model|never writes"),
    "nothing": (b"", "not an ONNX model"),
    "a graph of nothing": (helper.make_model(onnx.GraphProto(), ir_version=8), "computes nothing"),
    "an operator of somebody's own": (
        model(helper.make_node("Mine", ["x"], ["y"], domain="my.ops")),
        "my.ops:Mine, from a library",
    ),
    "one inside a branch": (
        model(
            helper.make_node(
                "If",
                ["c"],
                ["y"],
                then_branch=helper.make_graph([helper.make_node("Mine", [], ["y"], domain="my.ops")], "b", [], []),
            )
        ),
        "my.ops:Mine",
    ),
    "an operator that loads a compiled file": (
        model(helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", ep_cache_context="../x.bin")),
        "com.microsoft:EPContext, which runs what the file does not contain",
    ),
    "functions": (function(), "functions of its own"),
    "training": (training(), "carries training"),
    "another format under this one's name": (ort_format(), "ONNX Runtime's own format"),
    "two graphs": (twice(model()), "has field 7 twice"),
    "a negative side": (model(initializers=[weights(dims=[-1, 4])]), "has a negative side"),
    "fewer data than its shape says": (model(initializers=[weights(dims=[100, 4])]), "has 16 bytes of data"),
    "more data than its shape says": (model(initializers=[weights(dims=[1, 1])]), "has 16 bytes of data"),
    "a product that overflows": (model(initializers=[weights(dims=[1 << 32, 1 << 32, 4])]), "has 16 bytes of data"),
    "no data": (model(initializers=[weights(raw_data=b"")]), "has 0 elements"),
    "a type that does not exist": (model(initializers=[weights(data_type=99)]), "of element type 99"),
    "an output of 4 GiB": (model(outputs=[("y", [1 << 15, 1 << 15])]), "declares 4,294,967,296 bytes"),
    "an output of no size there is": (model(outputs=[("y", [1 << 62, 1 << 62])]), "more than the 536,870,912"),
    "a declared side below zero": (model(outputs=[("y", [-7])]), "a negative side"),
    "a shape of 4 GiB for an operator to make": (sized("ConstantOfShape", [1 << 16, 1 << 16]), "ConstantOfShape makes"),
    "one to expand to": (sized("Expand", [1 << 20, 1 << 20]), "Expand makes"),
    "one that a node holds": (sized("Expand", [1 << 20, 1 << 20], constant=True), "Expand makes"),
    "a stride of zero": (attribute("strides", [0, 1]), r"strides \[0, 1\], which would be divided by"),
    "a group of zero": (attribute("group", 0), r"group \[0\]"),
    "space to depth by zero": (attribute("blocksize", 0, "SpaceToDepth"), r"blocksize \[0\]"),
    "graphs in graphs in graphs": (nested(20), "nested deeper than 16"),
    "no IR version": (version(ir_version=0), "IR version is 0"),
    "an IR version of a thousand": (version(ir_version=1000), "IR version is 1000"),
    "an opset of zero": (opset("com.microsoft", 0), "opset 0 of 'com.microsoft'"),
    "two opsets of one domain": (opset("ai.onnx", 12), "two opsets of 'ai.onnx'"),
}


def encoded(made):
    return made if isinstance(made, bytes) else made.SerializeToString()


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_with_its_reason(case):
    """S15"""
    made, why = BAD[case]
    with pytest.raises(ModelFileError, match=why):
        check_model("onnx", encoded(made))


GOOD = {
    "the one that is changed": model(),
    "weights": model(initializers=[weights()]),
    "weights without elements": model(initializers=[weights(dims=[0], raw_data=b"")]),
    "a free batch": model(inputs=[("x", ["n", 4])], outputs=[("y", ["n", 4])]),
    "a free side that is written as -1": model(outputs=[("y", [-1, 4])]),
    "ONNX Runtime's own operators": model(helper.make_node("QLinearAdd", ["x"], ["y"], domain="com.microsoft")),
    "a branch in a branch": nested(2),
    "a small shape to make": sized("ConstantOfShape", [2, 3]),
    "numbers of every kind as lists": model(
        initializers=[
            helper.make_tensor("f", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0]),
            helper.make_tensor("d", TensorProto.DOUBLE, [2], [1.0, 2.0]),
            helper.make_tensor("i", TensorProto.INT64, [3], [1, -1, 1 << 40]),
            helper.make_tensor("b", TensorProto.INT8, [3], [1, -1, 100]),
            helper.make_tensor("h", TensorProto.FLOAT16, [2], [1.0, -2.0]),
            helper.make_tensor("u", TensorProto.UINT64, [2], [1, 1 << 63]),
            helper.make_tensor("s", TensorProto.STRING, [2], [b"one", b"two"]),
            helper.make_tensor("z", TensorProto.BOOL, [2], [True, False]),
            helper.make_tensor("4", TensorProto.INT4, [3], [1, -2, 3]),
            helper.make_tensor("c", TensorProto.COMPLEX64, [2], [1 + 1j, 2]),
            helper.make_tensor("one", TensorProto.FLOAT, [], [1.0]),
        ]
    ),
}


@pytest.mark.parametrize("case", GOOD)
def test_a_good_file_passes(case):
    check_model("onnx", encoded(GOOD[case]))


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_what_exporters_write_passes_with_its_operators(path):
    data = path.read_bytes()
    facts = check_model("onnx", data)
    loaded = onnx.load_model_from_string(data)
    nodes = loaded.graph.node
    assert facts.ops == tuple(sorted({f"{one.domain or 'ai.onnx'}:{one.op_type}" for one in nodes}))
    assert facts.operators == len(nodes)
    held = sum(numpy_helper.to_array(one).nbytes for one in loaded.graph.initializer)
    assert facts.constant_bytes >= held
    assert facts.version == f"IR {loaded.ir_version}, opset {loaded.opset_import[0].version}"
