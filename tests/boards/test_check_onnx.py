"""`edgekit check` of ONNX files: what the board's own ONNX Runtime refuses is an error, with and without that version
at hand.

`benchmarks/registered.py --prove` holds the table of kernels against all of ONNX's own examples, for every version in
it.
"""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="comes with the extra 'convert'")
onnxruntime = pytest.importorskip("onnxruntime", reason="comes with the extra 'onnx'")

from onnx import TensorProto, helper

from edgekit.boards.checked import CheckRequest, check
from edgekit_converters.formats.needs import OnnxNode, Runtime, barriers, kernel_versions, missing, read_needs
from edgekit_profiles import load

HERE = ("onnxruntime", onnxruntime.__version__)
PICTURE, MATRIX = [1, 3, 8, 8], [4, 4]
BFLOAT16, DOUBLE, FLOAT16 = TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.FLOAT16
INT8, UINT8, INT16, INT32, FLOAT = (
    TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.INT32, TensorProto.FLOAT,
)  # fmt: skip


def model(op: str, kind: int, shape, weights=None, domain: str = "", opset: int = 17, ir: int = 8, **attributes):
    """One operator on an input `x`; weights: the shape of a second, constant one."""
    constants = []
    if weights is not None:
        values = helper.make_tensor("w", kind, weights, np.zeros(int(np.prod(weights))).astype(float).tolist())
        constants = [values]
    names = ["x", "w"] if weights is not None else ["x"]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], domain=domain, **attributes)],
        "planted",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        constants,
    )
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir)


def external():
    made = model("Conv", FLOAT, PICTURE, [4, 3, 3, 3])
    (weights,) = made.graph.initializer
    weights.ClearField("float_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="weights.bin")
    return made


REFUSED = {
    "bfloat16 Conv": model("Conv", BFLOAT16, PICTURE, [4, 3, 3, 3]),
    "bfloat16 MatMul": model("MatMul", BFLOAT16, MATRIX, [4, 4]),
    "bfloat16 Relu": model("Relu", BFLOAT16, MATRIX),
    "float64 Conv": model("Conv", DOUBLE, PICTURE, [4, 3, 3, 3]),
    "float64 GlobalAveragePool": model("GlobalAveragePool", DOUBLE, PICTURE),
    "float64 LRN": model("LRN", DOUBLE, PICTURE, size=3),
    "int8 Conv": model("Conv", INT8, PICTURE, [4, 3, 3, 3]),
    "int8 MatMul": model("MatMul", INT8, MATRIX, [4, 4]),
    "int32 AveragePool": model("AveragePool", INT32, PICTURE, kernel_shape=[2, 2]),
    "int16 Relu": model("Relu", INT16, MATRIX),
    "contrib operator that does not exist": model("Frobnicate", FLOAT, MATRIX, domain="com.microsoft"),
    "contrib operator for GPUs alone": model("GroupNorm", FLOAT, MATRIX, domain="com.microsoft"),
    "operator of another domain": model("Frobnicate", FLOAT, MATRIX, domain="example.com"),
    "operator that ONNX does not have": model("Frobnicate", FLOAT, MATRIX),
    "external data that is missing": external(),
}
LOADS = {
    "float32 Conv": model("Conv", FLOAT, PICTURE, [4, 3, 3, 3]),
    "float16 Conv, by casts": model("Conv", FLOAT16, PICTURE, [4, 3, 3, 3]),
    "float64 MatMul": model("MatMul", DOUBLE, MATRIX, [4, 4]),
    "int8 MaxPool": model("MaxPool", INT8, PICTURE, kernel_shape=[2, 2]),
    "int32 MatMul": model("MatMul", INT32, MATRIX, [4, 4]),
    "contrib operator": model("Gelu", FLOAT, MATRIX, domain="com.microsoft"),
    "a function without a kernel": model("HardSwish", FLOAT, MATRIX),
}


def opens_here(data: bytes) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception:
        return False
    return True


@pytest.fixture
def path(tmp_path):
    return tmp_path / "planted.onnx"


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_engine_refuses_is_an_error_without_running_it(path, name):
    path.write_bytes(REFUSED[name].SerializeToString())
    assert not opens_here(path.read_bytes())
    checked = check(CheckRequest(path, load("raspberry-pi-4"), replay=False))
    assert not checked.ok
    assert {found.code for found in checked.findings if found.level == "error"} <= {
        "op-kernel", "op-custom", "external-data",
    }  # fmt: skip


@pytest.mark.parametrize("name", LOADS)
def test_what_the_engine_loads_is_no_error(name):
    data = LOADS[name].SerializeToString()
    assert opens_here(data)
    assert barriers(read_needs("onnx", data), Runtime(*HERE)) == ()


@pytest.mark.parametrize("name", ["int8 Conv", "external data that is missing"])
def test_the_boards_own_engine_is_asked_and_its_refusal_is_an_error(path, name, monkeypatch):
    monkeypatch.setattr("edgekit.boards.checked.static_findings", lambda *_: [])
    path.write_bytes(REFUSED[name].SerializeToString())
    checked = check(CheckRequest(path, load("raspberry-pi-4"), (HERE,)))
    assert [(found.code, found.level, found.runtime) for found in checked.findings] == [
        ("replay-refused", "error", " ".join(HERE))
    ]


@pytest.mark.parametrize("name", REFUSED)
def test_one_fault_is_one_finding_that_says_what_the_engine_says(path, name):
    path.write_bytes(REFUSED[name].SerializeToString())
    (found,) = check(CheckRequest(path, load("raspberry-pi-4"), (HERE,))).findings
    assert found.level == "error"
    assert f"{' '.join(HERE)} says: " in found.what
    assert str(path.parent) not in found.what
    assert "Conv" not in found.why


def test_the_command_exits_1(edgekit, path):
    path.write_bytes(REFUSED["bfloat16 Conv"].SerializeToString())
    ran = edgekit("check", path, "--profile", "raspberry-pi-4", "--no-replay", "--json")
    assert ran.code == 1
    (found,) = [one for one in ran.json["findings"] if one["level"] == "error"]
    assert found["code"] == "op-kernel"
    assert "cannot compute 'y': it has no kernel for Conv in bfloat16" in found["what"]


def test_a_version_between_two_that_were_asked_has_the_kernels_of_the_older():
    versions = kernel_versions()
    add = OnnxNode("", "Add", 14, {"T": "int8"})  # since 1.21
    assert [bool(missing(version, add)) for version in ("1.20.1", "1.20.9", "1.21.0", versions[-1])] == [
        True, True, False, False,
    ]  # fmt: skip


def test_of_versions_outside_the_table_nothing_is_said():
    conv = OnnxNode("", "Conv", 11, {"T": "int8"})
    assert [missing(version, conv) for version in ("1.0.0", "99.0.0")] == ["", ""]
