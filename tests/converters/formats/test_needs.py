"""What stands between an artifact and a runtime.

It follows from the artifact's tensors and from what that runtime was found to know.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_converters.formats.needs import (
    Needs,
    Runtime,
    Use,
    barriers,
    known_versions,
    limits,
    onnx_limits,
    read_needs,
)
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_profiles.wheels import version_parts

OLD = Runtime("tflite-runtime", "2.14.0", "aarch64")
OLDER = Runtime("tflite-runtime", "2.9.1", "aarch64")
NEW = Runtime("litert", "2.3.0", "aarch64")
HASTY = Runtime("litert", "2.1.1", "aarch64")
X86 = Runtime("tflite-runtime", "2.14.0", "x86_64")


def codes(needs: Needs, runtime: Runtime) -> list[str]:
    return [barrier.code for barrier in barriers(needs, runtime)]


@pytest.fixture(scope="session")
def files(planted):
    names = ("version_12", "claims_1", "int8", "attention")
    return {name: read_needs("tflite", getattr(planted, name).read_bytes()) for name in names}


REAL = {
    "FULLY_CONNECTED 12 on the last tflite-runtime": ("version_12", OLD, ["op-version"]),
    "and on LiteRT": ("version_12", NEW, []),
    "the same weights under version 1": ("claims_1", OLD, ["wrong-dense-hybrid"]),
    "which LiteRT reads rightly": ("claims_1", NEW, []),
    "int8 on the last tflite-runtime": ("int8", OLD, []),
    "int8 on one that knows one scale a dense layer": ("int8", OLDER, ["wrong-dense-int8"]),
    "int8 attention on 64-bit ARM": ("attention", OLD, ["crash-attention"]),
    "int8 attention on x86": ("attention", X86, []),
    "int8 attention on a LiteRT that multiplies wrongly": ("attention", HASTY, ["wrong-matmul"]),
    "and on one that does not": ("attention", NEW, []),
    "and on an earlier one": ("attention", Runtime("litert", "1.4.0", "aarch64"), []),
}


@pytest.mark.parametrize(("name", "runtime", "expected"), REAL.values(), ids=REAL)
def test_real_files_against_real_runtimes(files, name, runtime, expected):
    assert codes(files[name], runtime) == expected


def test_what_a_file_claims_is_not_believed(files):
    assert files["claims_1"].claimed == "1.5.0"
    assert files["claims_1"].hybrid_dense == files["version_12"].hybrid_dense != ()


def test_a_barrier_names_operator_layer_and_runtime(files):
    (barrier,) = barriers(files["version_12"], OLD)
    assert "FULLY_CONNECTED version 12" in barrier.what
    assert "tflite-runtime 2.14.0" in barrier.what
    assert barrier.layers
    assert barrier.remedy == "per-tensor"


TFLITE = Needs("tflite", ops=(Use("CONV_2D", 3, "conv"),))
ONNX = Needs("onnx", ops=(Use("Conv", 17, "conv"),), ir=8, opsets={"": 17})
MADE = {
    "what every runtime takes": (TFLITE, OLD, []),
    "an operator of a later time": (replace(TFLITE, ops=(Use("STABLEHLO_CASE", 1, "x"),)), OLD, ["op-unknown"]),
    "a custom operator": (replace(TFLITE, custom=(Use("Mine", 1, "x"),)), NEW, ["op-custom"]),
    "a custom operator that every wheel has": (
        replace(TFLITE, custom=(Use("TFLite_Detection_PostProcess", 1, "x"),)), OLD, [],
    ),
    "TensorFlow's own": (replace(TFLITE, custom=(Use("FlexErf", 1, "x"),)), NEW, ["op-flex"]),
    "an axis of length 0": (replace(TFLITE, empty=("x",)), NEW, ["empty-tensor"]),
    "a claim beyond a runtime that nobody asked": (replace(TFLITE, claimed="2.11.0"), OLDER, ["op-version"]),
    "a claim within it": (replace(TFLITE, claimed="2.3.0"), OLDER, []),
    "a plain ONNX file": (ONNX, Runtime("onnxruntime", "1.19.2"), []),
    "the onnx package's default": (
        replace(ONNX, ir=14, opsets={"": 28}), Runtime("onnxruntime", "1.31.1"), ["onnx-ir", "onnx-opset"],
    ),
    "IR 11 on ONNX Runtime 1.21": (replace(ONNX, ir=11), Runtime("onnxruntime", "1.21.1"), ["onnx-ir"]),
    "opset 23 on 1.23, in float": (replace(ONNX, opsets={"": 23}), Runtime("onnxruntime", "1.23.2"), []),
    "opset 23 on 1.23, quantized": (
        replace(ONNX, opsets={"": 23}, ops=(Use("QuantizeLinear", 23, "q"),)),
        Runtime("onnxruntime", "1.23.2"),
        ["onnx-opset"],
    ),
    "ONNX Runtime 1.21.0 on a Raspberry Pi 4": (
        ONNX, Runtime("onnxruntime", "1.21.0", "aarch64", "cortex-a72"), ["illegal-instruction"],
    ),
    "and on a Raspberry Pi 5": (ONNX, Runtime("onnxruntime", "1.21.0", "aarch64", "cortex-a76"), []),
    "and 32-bit Debian's": (ONNX, Runtime("onnxruntime", "1.21.0", "armv7l", "cortex-a72"), []),
    "the next one on a Raspberry Pi 4": (ONNX, Runtime("onnxruntime", "1.21.1", "aarch64", "cortex-a72"), []),
    "another domain's operator": (
        replace(ONNX, custom=(Use("mine.Op", 1, "x"),)), Runtime("onnxruntime", "1.31.1"), ["op-custom"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("needs", "runtime", "expected"), MADE.values(), ids=MADE)
def test_needs_against_runtimes(needs, runtime, expected):
    assert codes(needs, runtime) == expected


@given(st.sampled_from(known_versions("litert")), st.sampled_from(sorted(limits("litert", "1.0.1") or ())))
def test_a_later_runtime_knows_at_least_what_an_earlier_one_does(version, op):
    later = [other for other in known_versions("litert") if version_parts(other) >= version_parts(version)]
    known = (limits("litert", version) or {}).get(op, 0)
    assert all((limits("litert", other) or {})[op] >= known for other in later)


def test_a_version_between_two_that_were_asked_knows_what_the_older_does():
    assert limits("litert", "2.1.4") == limits("litert", "2.1.3")
    assert limits("tflite-runtime", "2.13.0") is None
    assert onnx_limits("1.20.0") == onnx_limits("1.19.2")
    assert onnx_limits("1.2.0") is None


def test_the_very_runtime_of_this_environment_was_found_to_know_what_it_knows():
    """The table says of FULLY_CONNECTED what the installed LiteRT says."""
    from edgekit_converters.formats import tflite_edit as tfl
    from edgekit_runtime.engines.registry import available, load_engine
    from edgekit_runtime.system.errors import EngineError

    installed = available().get("litert")
    if installed not in known_versions("litert"):
        pytest.skip(f"the table was not asked of LiteRT {installed}")
    most = (limits("litert", installed) or {})["FULLY_CONNECTED"]

    def file(version: int) -> bytes:
        schema = tfl.schema()
        model, graph, tensor = schema.ModelT(), schema.SubGraphT(), schema.TensorT()
        tensor.shape, tensor.type, tensor.name = [1], schema.TensorType.FLOAT32, b"x"
        graph.tensors, graph.inputs, graph.outputs, graph.operators = [tensor], [0], [0], []
        model.version, model.subgraphs, model.buffers, model.operatorCodes = 3, [graph], [schema.BufferT()], []
        tfl.code(model, "FULLY_CONNECTED", version)
        return tfl.write(model)

    load_engine("tflite", file(most), engine="litert").close()
    with pytest.raises(EngineError, match=f"'FULLY_CONNECTED' version '{most + 1}'"):
        load_engine("tflite", file(most + 1), engine="litert")


def test_bytes_that_are_no_model_are_refused():
    for form in ("tflite", "onnx", "pickle"):
        with pytest.raises(ConversionError):
            read_needs(form, b"no model at all")
