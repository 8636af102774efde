"""What accelerators take, by their tables; ONNX Runtime's own checker is the judge of the parts."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import tiny
from onnx import TensorProto
from word_numbers import words

from edgekit_converters.formats.delegates import (
    TARGETS,
    Delegate,
    GraphOperator,
    OperatorGraph,
    delegates_for,
    read_network,
    split,
)
from edgekit_converters.formats.tflite_file import names
from edgekit_converters.recipe.conversion_errors import ConversionError

TABLES = {one.name: one for target in TARGETS for form in ("tflite", "onnx") for one in delegates_for(target, form)}
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
PUBLIC = {path.stem: path for path in sorted(LIGHT.glob("*.onnx"))}


@pytest.mark.parametrize("one", TABLES.values(), ids=TABLES)
def test_a_table_has_its_source_and_speaks_of_its_own_operators_alone(one: Delegate):
    assert one.source
    assert one.note
    assert one.operators
    assert one.conditional | {*one.also, *one.ranks, *one.versions} - {"*"} <= one.operators
    if one.format == "tflite":
        assert one.operators <= set(names("BuiltinOperator").values())
        assert one.types <= set(names("TensorType").values())
    else:
        standard = {schema.name for schema in onnx.defs.get_all_schemas()} | {"GroupNormalization"}
        own = {"SimplifiedLayerNormalization"}
        assert {op for op in one.operators if "." not in op} - own <= standard
        assert one.types <= {kind.lower() for kind in TensorProto.DataType.keys()}  # noqa: SIM118 - no mapping


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", ["tflite", "onnx"])
def test_every_target_has_an_accelerator_of_every_format(target: str, form: str):
    assert delegates_for(target, form)


def chain(ops: str) -> OperatorGraph:
    """Operators in a row, `name<inputs` for others; each makes the tensor of its place."""
    nodes = []
    for place, word in enumerate(ops.split()):
        op, _, inputs = word.partition("<")
        reads = tuple(inputs.split(",")) if inputs else (str(place - 1),)
        nodes.append(
            GraphOperator(op, 1, 10, reads, (str(place),), frozenset({"FLOAT32"}), ((1, 8, 8, 3),), "FLOAT32", 4)
        )
    return OperatorGraph(tuple(nodes), {"-1": (1, 8, 8, 3)}, ())


PARTS = {
    "all": ("RELU RELU RELU", 1, 3),
    "one in the middle is left": ("RELU TOPK_V2 RELU", 2, 2),
    "what is beside it joins one part": ("RELU TOPK_V2 RELU<0 RELU<2 ADD<1,3", 2, 4),
    "nothing": ("TOPK_V2 TOPK_V2", 0, 0),
    "two that wait for each other": ("RELU RELU<2 RELU<1", 1, 1),
}


@pytest.mark.parametrize(("ops", "parts", "taken"), PARTS.values(), ids=PARTS)
def test_parts_are_as_large_as_the_order_of_the_data_allows(ops: str, parts: int, taken: int):
    found = split(replace(TABLES["litert-gpu"], parts=0), chain(ops))
    assert (found.parts, found.taken) == (parts, taken)


def test_a_delegate_of_one_part_keeps_the_largest_and_says_what_it_cut_off():
    found = split(TABLES["litert-gpu"], chain("RELU TOPK_V2 RELU TANH TOPK_V2 EXP"))
    assert (found.parts, found.taken) == (1, 2)
    assert found.share == pytest.approx(2 / 6)
    assert {(one.op, one.why, one.count) for one in found.left} == {
        ("TOPK_V2", "operator", 2), ("RELU", "part", 1), ("EXP", "part", 1)}  # fmt: skip


def test_a_part_of_one_operator_is_too_small_for_core_ml():
    assert split(TABLES["litert-coreml"], chain("RELU EXP RELU TANH")).taken == 2


def test_one_operator_with_a_free_size_keeps_the_gpu_delegate_from_all():
    network = chain("RELU RELU")
    free = replace(network.nodes[1], shapes=((1, -1, 8, 3),))
    found = split(TABLES["litert-gpu"], replace(network, nodes=(network.nodes[0], free)))
    assert found.taken == 0
    assert {one.why for one in found.left} == {"size"}
    batch = replace(network.nodes[1], shapes=((-1, 8, 8, 3),))
    assert split(TABLES["litert-gpu"], replace(network, nodes=(network.nodes[0], batch))).taken == 2


REFUSED = {
    "an unknown operator": ("litert-gpu", {"op": "custom spectrogram"}, "operator"),
    "64-bit integers": ("litert-gpu", {"types": frozenset({"INT64"})}, "type"),
    "five axes": ("litert-gpu", {"shapes": ((1, 2, 3, 4, 5),)}, "axes"),
    "a slice of two axes": ("litert-gpu", {"op": "SLICE", "rank": 2}, "axes"),
    "a later version": ("litert-coreml", {"version": 9}, "version"),
    "INT8 for Core ML": ("litert-coreml", {"first": "INT8"}, "type"),
}


@pytest.mark.parametrize(("name", "changes", "why"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_left_behind_with_its_reason(name: str, changes: dict, why: str):
    node = replace(chain("RELU").nodes[0], **changes)
    assert TABLES[name].refuses(node) == why


REAL = {
    ("tflite-int8", "litert-gpu"): (4, 1),
    ("tflite-int8", "litert-coreml"): (0, 0),
    ("tflite-f32", "litert-coreml"): (4, 1),
    ("tflite-f32, any number", "litert-gpu"): (4, 1),
    ("onnx-f32", "onnxruntime-coreml"): (5, 1),
    ("onnx-f32", "onnxruntime-webgpu"): (5, 1),
}


@pytest.mark.parametrize(("recipe", "name"), REAL, ids=" ".join)
def test_real_files(recipe: str, name: str):
    network = read_network(TABLES[name].format, tiny.model_bytes(recipe))
    found = split(TABLES[name], network)
    assert (found.taken, found.parts) == REAL[recipe, name]
    assert found.share == (1.0 if found.taken else 0.0)


# What LiteRT.js 2.5.3 said in Chromium with a WebGPU of software: operators on the GPU, and on the processor.
SAID = {
    "tiny_f32": (4, 0), "tiny_free_f32": (4, 0), "cnn_f32": (7, 0), "memory_inside_f32": (5, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_counts_are_those_of_litert_js(name: str):
    network = read_network("tflite", (tiny.MODELS / f"{name}.tflite").read_bytes())
    found = split(TABLES["litertjs-webgpu"], network)
    assert (found.taken, len(network.nodes) - found.taken) == SAID[name]


def test_operators_that_keep_a_state_stay_in_their_order():
    """Without it both variables would be read first, and all else would be one part."""
    from edgekit_converters.formats.delegates import _parts

    network = read_network("tflite", (tiny.MODELS / "memory_inside_f32.tflite").read_bytes())
    kept = [node for node in network.nodes if any(name.startswith("#") for name in node.outputs)]
    assert [node.op for node in kept] == ["CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"]
    assert all(set(one.outputs) & set(other.inputs) for one, other in itertools.pairwise(kept))
    assert _parts(kept, [True, False, True, False]) == [[0], [2]]


def test_a_result_whose_size_is_computed_is_known_only_at_run_time(tmp_path: Path):
    """As basic-pitch's network has it: RESHAPE takes its sizes from SHAPE."""
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((None, 4, 3), tf.float32)])
    def flat(x):
        return tf.reshape(tf.nn.relu(x), (tf.shape(x)[0], 12))

    data = tf.lite.TFLiteConverter.from_concrete_functions([flat.get_concrete_function()]).convert()
    found = split(TABLES["litert-gpu"], read_network("tflite", data))
    assert found.taken == 0
    assert ("RELU", "size") in {(one.op, one.why) for one in found.left}


def test_a_network_that_keeps_a_state_leaves_its_variables_behind():
    data = (tiny.MODELS / "memory_inside_f32.tflite").read_bytes()
    found = split(TABLES["litert-gpu"], read_network("tflite", data))
    assert {one.op for one in found.left} == {"CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"}
    assert found.taken == 5


@pytest.mark.parametrize("form", ["tflite", "onnx"])
def test_other_bytes_are_refused(form: str):
    with pytest.raises(ConversionError):
        read_network(form, b"hello")


def test_64_bit_integers_and_free_sizes_are_named():
    network = read_network("onnx", words())
    assert (network.wide, network.free) == (("words",), ("words",))
    found = split(TABLES["onnxruntime-webgpu"], network)
    (left,) = found.left
    assert (left.op, left.why, left.types) == ("Add", "type", ("int64",))
    assert split(TABLES["onnxruntime-webnn"], network).taken == 0
    assert found.share is None


@pytest.mark.parametrize("path", PUBLIC.values(), ids=PUBLIC)
@pytest.mark.parametrize(("name", "table", "axes"), [
    ("onnxruntime-nnapi", "nnapi_supported_ops.md", 4), ("onnxruntime-coreml", "coreml_supported_mlprogram_ops.md", 5)],
)  # fmt: skip
def test_parts_are_those_of_onnx_runtimes_own_checker(path: Path, name: str, table: str, axes: int):
    """It does not look at element types, so here neither does the table."""
    from onnxruntime.tools.mobile_helpers import usability_checker as judge

    logging.getLogger("default").setLevel(logging.ERROR)
    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    checker = judge._SupportedOpsChecker(Path(judge.__file__).with_name(table))
    theirs = judge.check_partitioning(model.graph, checker, name == "onnxruntime-nnapi", axes)
    network = read_network("onnx", path.read_bytes())
    every = frozenset(kind for node in network.nodes for kind in (*node.types, node.first))
    ours = split(replace(TABLES[name], types=every), network)
    assert ours.parts == theirs.num_partitions
    known = {op.removeprefix("ai.onnx:") for op in theirs.unsupported_ops} - {"Constant", "ConstantOfShape"}
    assert {one.op for one in ours.left if one.why == "operator"} == known
