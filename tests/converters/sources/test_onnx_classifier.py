"""Classifiers as the converters of scikit-learn, LightGBM and XGBoost write them: scores are what is left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.building.build_request import BuildRequest
from edgekit.building.build_subject import open_subject
from edgekit_converters.data.describe_contract import describe, settle
from edgekit_converters.formats.workload import read_workload
from edgekit_converters.recipe.artifact import RECIPES
from edgekit_converters.recipe.conversion_errors import ConversionError, MissingToolsError, SourceError
from edgekit_converters.recipe.progress import silent
from edgekit_converters.recipe.store import NO_STORE
from edgekit_converters.sources.load import load
from edgekit_converters.targets import onnx_to_tf
from edgekit_converters.targets.workspace import Workspace

pytestmark = pytest.mark.convert

ML, NAMES = "ai.onnx.ml", ["setosa", "versicolor", "virginica"]
X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def classifier(path: Path, *, zipped: bool, names: list[str] | None = None, opsets=((17, ""), (1, ML))) -> Path:
    """As skl2onnx writes Pipeline(StandardScaler, LogisticRegression), with its ZipMap or without one."""
    draw = np.random.default_rng(1)
    names = NAMES if names is None else names
    text = {"classlabels_strings": names} if names else {"classlabels_ints": [0, 1, 2]}
    keys = {"classlabels_strings": names} if names else {"classlabels_int64s": [0, 1, 2]}
    kind = TensorProto.STRING if names else TensorProto.INT64
    nodes = [
        helper.make_node("Scaler", ["X"], ["variable"], domain=ML, offset=[0.5] * 4, scale=[2.0] * 4),
        helper.make_node(
            "LinearClassifier", ["variable"], ["label", "raw"], domain=ML,
            coefficients=draw.normal(size=12).tolist(), intercepts=[0.0, 0.1, 0.2], multi_class=1,
            post_transform="SOFTMAX", **text,
        ),
        helper.make_node("Normalizer", ["raw"], ["probabilities"], domain=ML, norm="L1"),
    ]  # fmt: skip
    table = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [None, 3])
    outputs = [helper.make_tensor_value_info("label", kind, [None]), table]
    if zipped:
        nodes += [
            helper.make_node("Identity", ["label"], ["output_label"]),
            helper.make_node("ZipMap", ["probabilities"], ["output_probability"], domain=ML, **keys),
        ]
        entry = helper.make_map_type_proto(kind, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
        outputs = [
            helper.make_tensor_value_info("output_label", kind, [None]),
            helper.make_value_info("output_probability", helper.make_sequence_type_proto(entry)),
        ]
    graph = helper.make_graph(nodes, "net", [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, 4])], outputs)
    imports = [helper.make_opsetid(domain, version) for version, domain in opsets]
    path.write_bytes(helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString())
    return path


def raw_scores(path: Path) -> np.ndarray:
    """What ONNX Runtime answers to the file as it is."""
    import onnxruntime

    answer = onnxruntime.InferenceSession(path.read_bytes()).run(None, {"X": X})[1]
    return np.array([list(row.values()) for row in answer]) if isinstance(answer, list) else answer


@pytest.mark.parametrize("zipped", [True, False])
def test_scores_are_all_that_is_left_and_the_labels_are_kept(tmp_path: Path, zipped: bool) -> None:
    path = classifier(tmp_path / "net.onnx", zipped=zipped)
    source = load(path)
    name = "output_probability" if zipped else "probabilities"
    assert [(spec.name, spec.dtype, spec.shape) for spec in source.outputs] == [(name, "float32", (-1, 3))]
    np.testing.assert_allclose(source.predict([X])[0], raw_scores(path), rtol=1e-5)
    removed = "output_label" if zipped else "label"
    assert [note.code for note in source.notes] == ["zipmap-removed"] * zipped + ["label-removed"]
    assert f"'{removed}'" in source.notes[-1].what
    contract = describe(source, None)
    assert (contract.task, contract.labels) == ("classification", tuple(NAMES))
    settled, findings = settle(contract, [{name: row} for row in source.predict([X])[0]], {"task", "labels"})
    assert settled.scores == "probabilities"
    assert [finding.code for finding in findings] == ["guessed-scores"]


def test_tflite_is_refused_by_the_operators_it_lacks_not_by_a_missing_extra(tmp_path: Path) -> None:
    source = load(classifier(tmp_path / "net.onnx", zipped=True))
    with pytest.raises(ConversionError, match="TFLite has no operator for LinearClassifier, Normalizer") as why:
        onnx_to_tf.network(source, "net.onnx, tflite-int8")
    assert not isinstance(why.value, MissingToolsError)


def test_classes_that_count_from_0_need_no_labels(tmp_path: Path) -> None:
    source = load(classifier(tmp_path / "net.onnx", zipped=True, names=[]))
    assert source.stated == ""
    assert describe(source, None).task == "classification"


def test_a_contract_file_beside_the_model_wins_over_its_labels(tmp_path: Path) -> None:
    source = load(classifier(tmp_path / "net.onnx", zipped=True))
    file = tmp_path / "net.contract.toml"
    file.write_text('task = "classification"\nlabels = ["a", "b", "c"]\n')
    assert describe(source, file).labels == ("a", "b", "c")


def test_an_opset_that_is_named_twice_is_read_as_the_newest(tmp_path: Path) -> None:
    twice = ((1, ML), (16, ""), (17, ""), (17, "ai.onnx"))
    source = load(classifier(tmp_path / "net.onnx", zipped=False, opsets=twice))
    made = onnx.load_model_from_string(source.onnx())
    assert sorted((entry.domain, entry.version) for entry in made.opset_import) == [("", 17), (ML, 1)]


def test_trees_of_a_file_that_names_no_standard_opset_are_taken_to_ours(tmp_path: Path) -> None:
    """onnxmltools writes XGBoost's classifiers so."""
    trees = helper.make_node(
        "TreeEnsembleClassifier", ["X"], ["label", "probabilities"], domain=ML, classlabels_int64s=[0, 1],
        post_transform="LOGISTIC", base_values=[0.5], nodes_treeids=[0] * 3, nodes_nodeids=[0, 1, 2],
        nodes_featureids=[1, 0, 0], nodes_modes=["BRANCH_LT", "LEAF", "LEAF"], nodes_values=[0.2, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0], nodes_missing_value_tracks_true=[0] * 3,
        nodes_hitrates=[1.0] * 3, class_treeids=[0, 0], class_nodeids=[1, 2], class_ids=[0, 0],
        class_weights=[-1.0, 2.0],
    )  # fmt: skip
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.INT64, [None]),
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [None, 2]),
    ]
    graph = helper.make_graph(
        [trees], "net", [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, 4])], outputs
    )
    path = tmp_path / "net.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(ML, 1)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    source = load(path)
    made = onnx.load_model_from_string(source.onnx())
    assert {entry.domain: entry.version for entry in made.opset_import} == {"": 17, ML: 1}
    np.testing.assert_allclose(source.predict([X])[0], raw_scores(path), rtol=1e-6)


def network(path: Path, label: str, inner: str = "") -> Path:
    """A Scaler, a dense layer and softmax, as skl2onnx writes an MLPClassifier; `label` is the name of its ArgMax."""
    weights = np.random.default_rng(2).normal(size=(4, 3)).astype(np.float32)
    nodes = [
        helper.make_node(
            "Scaler", ["X"], ["scaled"], domain=ML, offset=[1.0, 0.0, 2.0, 3.0], scale=[0.5, 1.0, 2.0, 4.0]
        ),
        helper.make_node("MatMul", ["scaled", "weights"], ["dense"]),
        helper.make_node("Softmax", ["dense"], ["probabilities"]),
        helper.make_node("ArgMax", ["probabilities"], [label], axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["N", 4])],
        [
            helper.make_tensor_value_info(label, TensorProto.INT64, ["N"]),
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 3]),
        ],
        [numpy_helper.from_array(weights, "weights")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 1)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    return path


def test_work_behind_a_scaler_is_counted_for_a_batch_of_one(tmp_path: Path) -> None:
    path = network(tmp_path / "net.onnx", "label")
    source = load(path)
    np.testing.assert_allclose(source.predict([X])[0], raw_scores(path), rtol=1e-5)
    work = read_workload("onnx", source.onnx(), "float32")
    assert (work.unknown, work.batch, work.macs) == ((), 1, 12)


def test_an_integer_output_of_another_name_stays(tmp_path: Path) -> None:
    source = load(network(tmp_path / "net.onnx", "nearest"))
    assert [spec.name for spec in source.outputs] == ["nearest", "probabilities"]


def outliers(path: Path) -> Path:
    """As skl2onnx writes an IsolationForest: a score, and -1 where it is negative, else 1."""
    nodes = [
        helper.make_node("ReduceMean", ["X"], ["scores"], axes=[1], keepdims=1),
        helper.make_node("Less", ["scores", "zero"], ["negative"]),
        helper.make_node("Where", ["negative", "out", "in"], ["label"]),
    ]
    outputs = [("label", TensorProto.INT64, ["N", 1]), ("scores", TensorProto.FLOAT, ["N", 1])]
    numbers = {"zero": np.float32([0]), "out": np.int64([-1]), "in": np.int64([1])}
    return saved(path, nodes, outputs, numbers)


def threshold(path: Path, weight: float, *, text: bool = False) -> Path:
    """Two classes, of which the second is taken where its score is above 1 - weight."""
    nodes = [
        helper.make_node("MatMul", ["X", "weights"], ["dense"]),
        helper.make_node("Softmax", ["dense"], ["probabilities"]),
        helper.make_node("Mul", ["probabilities", "worth"], ["cost"]),
        helper.make_node("ArgMax", ["cost"], ["class"], axis=1, keepdims=0),
        helper.make_node("ArrayFeatureExtractor", ["names", "class"], ["row"], domain=ML),
        helper.make_node("Reshape", ["row", "all"], ["label"]),
    ]
    kind = TensorProto.STRING if text else TensorProto.INT64
    outputs = [("label", kind, ["N"]), ("probabilities", TensorProto.FLOAT, ["N", 2])]
    names = np.array(["no", "yes"]).astype(object) if text else np.array([0, 1])
    weights = np.random.default_rng(3).normal(size=(4, 2)).astype(np.float32)
    numbers = {"weights": weights, "worth": np.float32([1 - weight, weight]), "names": names, "all": np.array([-1])}
    return saved(path, nodes, outputs, numbers)


def saved(path: Path, nodes, outputs, numbers) -> Path:
    inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["N", 4])]
    ends = [helper.make_tensor_value_info(*output) for output in outputs]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in numbers.items()]
    graph = helper.make_graph(nodes, "net", inputs, ends, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 1)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    return path


def test_the_label_of_an_outlier_detector_stays_an_output(tmp_path: Path) -> None:
    source = load(outliers(tmp_path / "net.onnx"))
    assert [(spec.name, spec.dtype) for spec in source.outputs] == [("label", "int64"), ("scores", "float32")]
    assert not source.notes
    assert set(source.predict([X])[0].reshape(-1).tolist()) == {-1, 1}


@pytest.mark.parametrize("text", [False, True])
def test_a_label_with_a_threshold_of_its_own_is_not_taken_for_the_best_class(tmp_path: Path, text: bool) -> None:
    even = load(threshold(tmp_path / "even.onnx", 0.5, text=text))
    assert [spec.name for spec in even.outputs] == ["probabilities"]
    path = threshold(tmp_path / "net.onnx", 0.9, text=text)
    if text:
        with pytest.raises(SourceError, match="'label' is text, and not always the class with the best score"):
            load(path)
        return
    source = load(path)
    assert [spec.name for spec in source.outputs] == ["label", "probabilities"]
    assert source.sha256 != even.sha256


def test_a_label_that_only_a_real_item_tells_from_the_best_class_stays_an_output(tmp_path: Path) -> None:
    """Random numbers never come near 0.5."""
    path = threshold(tmp_path / "net.onnx", 0.5002)
    assert [spec.name for spec in load(path).outputs] == ["probabilities"]
    weights = np.random.default_rng(3).normal(size=(4, 2)).astype(np.float32)
    across = (weights[:, 1] - weights[:, 0]).astype(np.float64)
    items = np.random.default_rng(5).normal(size=(60, 4))
    items -= np.outer((items @ across + 0.0004) / (across @ across), across)  # the second class is 0.0004 behind
    np.save(tmp_path / "items.npy", items.astype(np.float32))
    request = BuildRequest(path, ("raspberry-pi-4",), calibration=tmp_path / "items.npy", output=tmp_path / "out")
    subject = open_subject(request, NO_STORE, silent)
    assert [spec.name for spec in subject.source.outputs] == ["label", "probabilities"]
    assert {int(answer["label"]) for answer in subject.reference.outputs} == {1}


def test_where_nothing_can_be_in_8_bits_that_is_said_before_calibration(tmp_path: Path) -> None:
    source = load(outliers(tmp_path / "net.onnx"))
    workspace = Workspace(source)  # without samples: calibration would fail in other words
    for name in ("onnx-int8-qdq", "onnx-int8-qdq-mixed", "onnx-int8-qdq-symmetric"):
        with pytest.raises(ConversionError, match="none of the model's operators has an 8-bit kernel"):
            workspace.make(RECIPES[name])
