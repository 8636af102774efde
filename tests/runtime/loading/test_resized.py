"""A TFLite file for one item runs batches where its rows keep their bits; any other runs one by one."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import tiny

from edgekit_converters.recipe.artifact import Artifact, Recipe
from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.contract.spec import Contract, InputContract, OutputContract
from edgekit_runtime.engines.litert import TFLiteEngine
from edgekit_runtime.engines.registry import ENGINES, available, load_engine
from edgekit_runtime.loading import warming
from edgekit_runtime.loading.readiness import Preparation, prepare
from edgekit_runtime.loading.tuning import Tuner
from edgekit_runtime.loading.warming import BATCHES, batches_offered
from edgekit_runtime.system.errors import EngineError, SelfTestError

TFLITE = min((name for name in available() if "tflite" in ENGINES[name].formats), default="")
pytestmark = pytest.mark.skipif(not TFLITE, reason="no TFLite engine is installed: edgekit doctor says how")


def bundle_of(model, folder, precision="int8"):
    """A bundle of one file of tests/models that takes 12 numbers."""
    data, recipe = (tiny.MODELS / f"{model}.tflite").read_bytes(), Recipe(f"tflite-{precision}", "tflite", precision)
    with load_engine("tflite", data, engine=TFLITE) as loaded:
        inputs, outputs = (replace(loaded.inputs[0], name="x"),), (replace(loaded.outputs[0], name="y"),)
    shape = outputs[0].shape[1:]
    contract = Contract("raw", (InputContract("x", (12,), "float32"),), (OutputContract("y", shape, "float32"),))
    random = np.random.default_rng(1)
    golden = [{"x": random.normal(0, 1, 12).astype(np.float32)} for _ in range(2)]
    content = {"contract": contract, "artifact": Artifact(recipe, data, inputs, outputs, 1.0, 1.0, {})}
    return tiny.bundle(folder, engine=TFLITE, golden=golden, **content)


@pytest.fixture(autouse=True)
def _nothing_is_known(tmp_path, monkeypatch):
    """What one test measured is not another's verdict."""
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def every_size_pays(monkeypatch):
    """Whatever this machine's clock says."""
    monkeypatch.setattr(warming, "LEAST_GAIN", -math.inf)
    monkeypatch.setattr(warming, "BRIEF_S", 0.0)


def prepared_of(path, **options):
    return prepare(read_bundle(path), Preparation(tuning=Tuner(0.0), **options))


def items(count):
    return [[row[None]] for row in np.random.default_rng(2).integers(-128, 128, (count, 12)).astype(np.int8)]


@pytest.mark.parametrize("own_below", [10**6, 0], ids=["an interpreter for each size", "one for all"])
@pytest.mark.parametrize("isolate", [False, True], ids=["in process", "isolated"])
def test_each_row_of_a_batch_is_to_the_bit_what_its_item_gets_alone(
    tmp_path, monkeypatch, every_size_pays, own_below, isolate
):
    monkeypatch.setattr(warming, "OWN_BELOW_BYTES", own_below)
    prepared = prepared_of(bundle_of("rows_int8", tmp_path), isolate=isolate)
    assert prepared.engine.sizes == (1, *BATCHES)
    given = items(40)
    alone = [prepared.engine.run(item)[0].tobytes() for item in given]
    for count in (1, 2, 3, 31, 32, 40):
        assert [got[0].tobytes() for got in prepared.engine.run_batch(given[:count])] == alone[:count]
    prepared.close()


def test_one_interpreter_and_so_one_copy_of_the_weights_serves_every_size(tmp_path, monkeypatch, every_size_pays):
    made, real, path = [], TFLiteEngine.__init__, bundle_of("rows_int8", tmp_path)
    monkeypatch.setattr(warming, "OWN_BELOW_BYTES", 0)
    monkeypatch.setattr(TFLiteEngine, "__init__", lambda self, *parts: made.append(1) or real(self, *parts))
    prepared = prepared_of(path)
    assert (len(made), prepared.engine.sizes) == (1, (1, *BATCHES))
    prepared.close()


def test_rows_that_depend_on_each_other_are_never_used(tmp_path, every_size_pays):
    path = bundle_of("mixing_f32", tmp_path, "float32")
    assert tuple(batches_offered(read_bundle(path), read_bundle(path).artifact())) == BATCHES, "its operators look fit"
    prepared = prepared_of(path)
    assert prepared.engine.sizes == (1,)
    assert any("differ from what each item gets alone" in note for note in prepared.notes)
    prepared.close()


@pytest.mark.parametrize(
    "wrong", [lambda rows: rows[::-1], lambda rows: np.zeros_like(rows), lambda rows: rows ^ (rows == rows.max())]
)
def test_a_wrong_row_a_constant_answer_and_a_bit_are_seen(tmp_path, monkeypatch, every_size_pays, wrong):
    honest = TFLiteEngine.run

    def run(self, inputs):
        outputs = honest(self, inputs)
        return outputs if len(inputs[0]) == 1 else [wrong(output) for output in outputs]

    monkeypatch.setattr(TFLiteEngine, "run", run)
    prepared = prepared_of(bundle_of("rows_int8", tmp_path))
    assert prepared.engine.sizes == (1,)
    prepared.close()


def test_answers_that_are_all_alike_prove_nothing(tmp_path, monkeypatch):
    bundle = read_bundle(bundle_of("rows_int8", tmp_path))
    with load_engine("tflite", bundle.blob(bundle.artifact().blob), engine=TFLITE) as engine:
        monkeypatch.setattr(TFLiteEngine, "run", lambda self, inputs: [np.zeros((len(inputs[0]), 4), np.int8)])
        with pytest.raises(SelfTestError, match="all alike"):
            warming.check_same_rows(bundle, bundle.artifact(), engine, engine, 4)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"ops": ("FULLY_CONNECTED", "RESHAPE")}, "a constant shape holds the batch axis"),
        ({"ops": None}, "its operators are not listed"),
        ({"format": "onnx"}, "another format"),
    ],
)
def test_a_file_that_could_hold_the_batch_axis_in_a_constant_is_not_tried(tmp_path, change, why):
    bundle = read_bundle(bundle_of("rows_int8", tmp_path))
    assert tuple(batches_offered(bundle, bundle.artifact())) == BATCHES
    assert batches_offered(bundle, replace(bundle.artifact(), **change)) == {}, why


def test_a_file_with_a_state_is_not_tried(tmp_path):
    bundle = read_bundle(bundle_of("rows_int8", tmp_path))
    manifest = replace(bundle.manifest, contract=replace(bundle.manifest.contract, state="internal"))
    assert batches_offered(replace(bundle, manifest=manifest), bundle.artifact()) == {}


def test_activations_are_bounded(tmp_path, monkeypatch):
    bundle = read_bundle(bundle_of("rows_int8", tmp_path))
    monkeypatch.setattr(warming, "RESIZED_BYTES", 8 * 2 * 16)  # the hidden layer has 16 numbers
    assert tuple(batches_offered(bundle, bundle.artifact())) == (2, 4, 8)


def test_an_engine_that_could_not_be_resized_answers_the_next_item(tmp_path):
    with load_engine("tflite", (tiny.MODELS / "spots_int8.tflite").read_bytes(), engine=TFLITE) as engine:
        item = np.zeros((1, 16, 16, 1), np.int8)
        before = engine.run([item])[0]
        with pytest.raises(EngineError, match="batch of 2"):  # boxes of one item are a constant
            engine.run([np.concatenate([item, item])])
        np.testing.assert_array_equal(engine.run([item])[0], before)


def test_callers_of_predict_share_batches_and_each_gets_its_own(tmp_path, monkeypatch, every_size_pays):
    monkeypatch.setattr(warming, "OWN_BELOW_BYTES", 0)
    given = [item[0][0] for item in items(64)]
    with open_bundle(bundle_of("rows_int8", tmp_path), cache=False, engine=TFLITE) as model:
        alone = [model.predict(item).outputs["y"].tobytes() for item in given]
        with ThreadPoolExecutor(32) as pool:
            together = list(pool.map(lambda item: model.predict(item).outputs["y"].tobytes(), given))
        waiting = [model.submit(item) for item in given]
        assert [one.result().outputs["y"].tobytes() for one in waiting] == alone
    assert together == alone


def test_a_later_opening_runs_the_same_sizes_without_trying_them(tmp_path, monkeypatch, every_size_pays):
    path = bundle_of("rows_int8", tmp_path)
    monkeypatch.setattr(warming, "OWN_BELOW_BYTES", 0)
    monkeypatch.setattr(warming, "_seconds", lambda run: run() is None or 1e-9)  # no run will be faster than that
    prepared_of(path).close()
    monkeypatch.setattr(warming, "check_same_rows", None)
    prepared = prepared_of(path)
    assert prepared.engine.sizes == (1, *BATCHES)
    given = items(3)
    alone = [prepared.engine.run(item)[0].tobytes() for item in given]
    assert [got[0].tobytes() for got in prepared.engine.run_batch(given)] == alone
    prepared.close()


@pytest.mark.skipif("openvino" not in available(), reason="openvino is not installed: make test-openvino")
def test_openvino_which_misreads_this_file_is_refused_by_the_self_test(tmp_path):
    """OpenVINO 2026 gives one answer to every input of an INT8 network of dense layers alone."""
    with pytest.raises(SelfTestError, match="openvino"):
        open_bundle(bundle_of("rows_int8", tmp_path), engine="openvino", allow_unsigned=True)
