"""`edgekit compress`: what it refuses, what it does not train, and one whole run on scikit-learn's digits."""

from __future__ import annotations

import subprocess
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import run_edgekit
from linear import linear, onnx_artifact
from recipes import recipe

import edgekit
from edgekit.cli.compress import compress as compress_command
from edgekit.compressing.compress_journey import _Chain, _Journey, _scratch
from edgekit.compressing.compress_report import CompressReport, Gain, Limits, MeasuredArtifact, line_of
from edgekit.compressing.compress_request import CompressRequest
from edgekit.compressing.measuring import Gauge, _measured
from edgekit.compressing.steps import _leaving, _logits
from edgekit.compressing.training_data import moved_contract
from edgekit_converters.fidelity.reference import Reference
from edgekit_converters.formats.keras_record import Record, with_record
from edgekit_converters.recipe.artifact import recipe as find_recipe
from edgekit_converters.recipe.store import NO_STORE
from edgekit_profiles import Estimate
from edgekit_runtime.system.errors import EdgekitError

pytestmark = pytest.mark.convert


@dataclass(frozen=True)
class Sets:
    model: Path
    train: tuple[np.ndarray, np.ndarray]
    evaluation: tuple[np.ndarray, np.ndarray]
    cache: Path


@pytest.fixture(scope="module")
def sets(digits_model, tmp_path_factory):
    """The digits that the network was trained on, and those that it was not."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x, y = (pixels / 16).astype(np.float32).reshape(-1, 8, 8, 1), labels.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(y))
    held = np.load(digits_model.evaluation)
    return Sets(
        digits_model.model, (x[order[:1200]], y[order[:1200]]), (held["x"], held["y"]), tmp_path_factory.mktemp("c")
    )


@pytest.fixture(scope="module")
def opened(sets, tmp_path_factory):
    """The original's answers, so that a refusal that comes after them costs nothing."""
    with pytest.raises(EdgekitError, match="fewer than two batches"):
        _compress(sets, tmp_path_factory.mktemp("opened"), train=(sets.train[0][:20], sets.train[1][:20]))
    return sets


def _compress(sets, output, **options):
    given = {"train": sets.train, "evaluation": sets.evaluation, "steps": ["qat"], "cache": sets.cache, **options}
    given.setdefault("say", lambda line: None)
    return edgekit.compress(given.pop("model", sets.model), output=output, **given)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"steps": ["squeeze"]}, "unknown step 'squeeze'.*Steps: split, distill, prune, sparse, qat"),
        ({"steps": []}, "neither steps nor a limit"),
        ({"model": "net.tflite"}, "ends in .tflite cannot be trained.*that it was made from"),
        ({"model": "net.h5"}, "ends in .h5 cannot be trained.*save an .h5 file again"),
        ({"epochs": 0}, "--epochs is 0.*a number above 0"),
        ({"trust_model": True}, "trains no code of a .keras file.*Lambda, by built-in ones"),
        ({"budget_ms": 5.0}, "--budget-ms needs a board.*--profile"),
        ({"profile": "raspberry-pie"}, "raspberry-pie"),
        ({"steps": ["distill"]}, "needs a teacher or a student.*--teacher MODEL.*--width"),
        ({"width": 0.5}, "are for the step distill.*--steps distill"),
        ({"steps": [], "max_drop": 0.01, "width": 0.5}, "nothing calls for the step distill.*--budget-ms"),
        ({"steps": ["distill"], "width": 1.0}, "--width is 1.*below 1"),
        ({"steps": ["distill"], "width": 0.0}, "--width is 0"),
        ({"steps": ["distill"], "width": 0.5, "alpha": 0.0}, "alpha is 0.*above 0 and at most 1"),
        ({"steps": ["distill"], "width": 0.5, "temperature": 0.0}, "temperature is 0.*above 0"),
        ({"steps": ["sparse"], "sparsity": 0.0}, "sparsity is 0.*share of weights to set to zero"),
        ({"steps": ["sparse"], "sparsity": 1.0}, "sparsity is 1.*share of weights to set to zero"),
        ({"steps": ["sparse"], "sparsity": float("nan")}, "sparsity is nan"),
        ({"steps": ["sparse"]}, "need each other.*--steps sparse, and sparsity = 0.5"),
        ({"sparsity": 0.5}, "need each other"),
        ({"repair_s": float("nan")}, "repair_s is nan"),
        ({"steps": ["prune"]}, "needs a latency budget.*--budget-ms"),
        ({"steps": ["prune"], "budget_ms": -1.0, "profile": "raspberry-pi-4"}, "--budget-ms is -1"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_loaded(sets, tmp_path, options, says):
    with pytest.raises(EdgekitError, match=f"(?s){says}") as error:
        _compress(sets, tmp_path / "out", **options)
    assert error.value.do
    assert not (tmp_path / "out").exists()


def test_a_damaged_result_is_made_again(sets, tmp_path):
    result, said = tmp_path / sets.model.name, []
    request = CompressRequest(sets.model, "train/", "labelled/", tmp_path, steps=("qat",))
    journey = _Journey(request, Limits.of(request), None, said.append)
    assert journey._made() is None
    assert not said
    result.write_bytes(sets.model.read_bytes()[:500])
    assert journey._made() is None
    assert said == [f"{result} is damaged and is made again"]
    result.write_bytes(with_record(sets.model.read_bytes(), Record(key="a")))
    assert journey._made().key == "a"


def test_a_cache_and_none_contradict_each_other(tmp_path):
    (tmp_path / "r.toml").write_text('cache = "c"')
    command = ["net.keras", "--train", "a", "--evaluation", "b", "--recipe", str(tmp_path / "r.toml"), "--no-cache"]
    found = CliRunner().invoke(compress_command, command)
    assert found.exit_code == 2
    assert "--no-cache contradicts" in found.output


def test_the_model_itself_is_never_the_result(sets, tmp_path):
    with pytest.raises(EdgekitError, match="would overwrite the model"):
        _compress(sets, sets.model.parent)


def _labels(change):
    def changed(sets):
        x, y = sets.train
        return {"train": (x, change(y.copy()))}

    return changed


def _one_wrong(y):
    y[7] = 10
    return y


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_labels(_one_wrong), r"y\[7\]: 10 is not a class: they run from 0 to 9"),
        (_labels(np.zeros_like), "all its 1200 items have one label, 0"),
        (lambda sets: {"train": sets.train[0]}, "1200 of its 1200 items have no label"),
        (lambda sets: {"evaluation": sets.evaluation[0]}, "597 of its 597 items have no label"),
        (
            lambda sets: {
                "train": tuple(np.concatenate([a, b[:3]]) for a, b in zip(sets.train, sets.evaluation, strict=True))
            },
            "3 of its 1203 items are in the evaluation set too",
        ),
    ],
)
def test_data_that_cannot_be_trained_on_are_refused_and_counted(opened, tmp_path, change, says):
    with pytest.raises(EdgekitError, match=says) as error:
        _compress(opened, tmp_path / "out", **change(opened))
    assert error.value.do
    assert not (tmp_path / "out").exists()


def test_a_layer_that_is_not_simulated_is_refused_before_anything_is_measured(opened, tmp_path):
    import keras

    image = keras.Input((8, 8, 1), name="image")
    deep = keras.layers.Conv2DTranspose(2, 2, name="up")(image)
    out = keras.layers.Dense(10, activation="softmax")(keras.layers.Flatten()(deep))
    keras.Model(image, out).save(tmp_path / "net.keras")
    with pytest.raises(EdgekitError, match=r"'up' is a Conv2DTranspose.*not simulated"):
        _compress(opened, tmp_path / "out", model=tmp_path / "net.keras")
    assert not (tmp_path / "out").exists()


def test_a_lambda_layer_is_refused_by_name(opened, tmp_path):
    import keras

    image = keras.Input((8, 8, 1), name="image")
    doubled = keras.layers.Lambda(lambda t: t * 2, name="double", output_shape=(8, 8, 1))(image)
    keras.Model(image, keras.layers.Dense(10)(keras.layers.Flatten()(doubled))).save(tmp_path / "net.keras")
    with pytest.raises(EdgekitError, match="'double' is a Lambda"):
        _compress(opened, tmp_path / "out", model=tmp_path / "net.keras")


def test_an_onnx_model_is_trained_as_keras_and_the_same_command_again_makes_nothing(sets, tmp_path):
    """Its pictures stay channels first, and its contract file is taken along."""
    import keras

    from edgekit_converters.sources.load import load

    image = keras.Input((1, 8, 8), name="image")
    first = keras.Model(image, keras.models.load_model(sets.model)(keras.layers.Permute((2, 3, 1))(image)))
    first.save(tmp_path / "first.keras")
    model = tmp_path / "net.onnx"
    model.write_bytes(load(tmp_path / "first.keras").onnx())
    (tmp_path / "net.contract.toml").write_text('task = "classification"\nscores = "probabilities"\n')
    changed = {
        name: (np.transpose(x, (0, 3, 1, 2)), y) for name in ("train", "evaluation") for x, y in [getattr(sets, name)]
    }
    said: list[str] = []
    made = _compress(sets, tmp_path / "out", model=model, epochs=1, say=said.append, **changed)
    assert said[0].startswith("net.onnx is trained as ")
    assert {row.step for row in made.rows} == {"original", "plain INT8", "qat"}
    twin = load(tmp_path / "out" / "original" / "net.keras")
    x = changed["evaluation"][0][:16]
    np.testing.assert_allclose(twin.predict([x])[0], load(model).predict([x])[0], atol=1e-5)
    before = (tmp_path / "out" / "original" / "net.keras").read_bytes()
    again = _compress(sets, tmp_path / "out", model=model, epochs=1, say=said.append, **changed)
    assert (tmp_path / "out" / "original" / "net.keras").read_bytes() == before
    assert again.rows == made.rows
    if made.model is not None:
        assert made.model == tmp_path / "out" / "net.keras"
        assert (tmp_path / "out" / "net.contract.toml").exists()
        assert "nothing to do" in said[-1]


def test_a_teacher_of_other_outputs_is_refused_before_anything_is_trained(opened, tmp_path):
    import keras

    image = keras.Input((8, 8, 1), name="image")
    five = keras.layers.Dense(5, activation="softmax")(keras.layers.Flatten()(image))
    keras.Model(image, five).save(tmp_path / "five.keras")
    with pytest.raises(EdgekitError, match="the teacher answers 5, and the student 10") as error:
        _compress(opened, tmp_path / "out", steps=["distill"], teacher=tmp_path / "five.keras")
    assert "same classes" in error.value.do
    assert not (tmp_path / "out").exists()


def test_a_batch_of_one_with_batch_norm_is_refused_before_anything_is_measured(opened, tmp_path):
    import keras

    image = keras.Input((8, 8, 1), name="image")
    x = keras.layers.BatchNormalization(name="norm")(keras.layers.Conv2D(16, 3)(image))
    out = keras.layers.Dense(10, activation="softmax")(keras.layers.Flatten()(x))
    keras.Model(image, out).save(tmp_path / "net.keras")
    options = {"model": tmp_path / "net.keras", "steps": ["distill"], "width": 0.5, "batch": 1}
    with pytest.raises(EdgekitError, match="batch of 1 leaves the batch norm 'norm'"):
        _compress(opened, tmp_path / "out", **options)


def _row(step, recipe, drop, high_ms=None, macs=1000):
    return MeasuredArtifact(step, recipe, "top1", 0.9, 0.9 - drop, drop, None, 1.0, 1, macs, high_ms, high_ms)


def _of(**options):
    request = CompressRequest(Path("net.keras"), "train/", "labelled/", Path("out"), **options)
    return _Journey(request, Limits.of(request), None, lambda line: None)


def _chain(*rows, done=(), splits=False):
    steps = [{"step": name, "kept": True} for name in done]
    return _Chain(Path("net.keras"), rows, rows, None, splits, steps=steps)


BOARD = {"profile": "raspberry-pi-4"}
NEAR, FAR = _row("plain INT8", "tflite-int8", 0.0, 9.0), _row("plain INT8", "tflite-int8", 0.04, 9.0)
NOT_MADE = MeasuredArtifact("plain INT8", "tflite-int8", failed="boxes and scores under one scale")


@pytest.mark.parametrize(
    ("options", "chain", "step"),
    [
        ({"max_drop": 0.01}, _chain(NEAR), None),
        ({"max_drop": 0.01}, _chain(FAR), "qat"),
        ({"max_drop": 0.01}, _chain(FAR, _row("plain INT8", "onnx-int8-qdq", 0.0)), None),
        ({"max_drop": 0.01}, _chain(NEAR, splits=True), None),
        ({"max_drop": 0.01}, _chain(FAR, splits=True), "split"),
        ({"max_drop": 0.01}, _chain(NOT_MADE, _row("plain INT8", "onnx-int8-qdq", 0.0), splits=True), "split"),
        ({"max_drop": 0.01}, _chain(FAR, splits=True, done=["split"]), "qat"),
        ({"steps": ("split", "qat")}, _chain(FAR, splits=True, done=["split"]), "qat"),
        ({"max_drop": 0.01}, _chain(FAR, done=["qat"]), None),
        ({"budget_ms": 5.0, **BOARD}, _chain(NEAR), "prune"),
        ({"budget_ms": 5.0, "width": 0.5, **BOARD}, _chain(NEAR), "distill"),
        ({"budget_ms": 5.0, **BOARD}, _chain(NEAR, done=["prune"]), None),
        ({"budget_ms": 5.0, "max_drop": 0.01, **BOARD}, _chain(FAR), "prune"),
        ({"budget_ms": 10.0, "max_drop": 0.01, **BOARD}, _chain(FAR, done=["prune"]), "qat"),
        ({"steps": ("qat", "prune"), "budget_ms": 5.0, **BOARD}, _chain(NEAR), "prune"),
        ({"steps": ("qat", "prune"), "budget_ms": 5.0, **BOARD}, _chain(NEAR, done=["prune"]), "qat"),
    ],
)
def test_without_steps_the_limits_decide_what_comes_next(options, chain, step):
    assert _of(**options)._next(chain) == step


def test_a_narrower_network_has_to_take_less_time_and_training_to_lose_less():
    journey = _of(max_drop=0.01, budget_ms=5.0, **BOARD)
    before, faster = [_row("plain INT8", "tflite-int8", 0.0, 9.0)], [_row("prune", "tflite-int8", 0.02, 4.0)]
    assert journey._why_not("prune", before, faster) == ""
    assert journey._why_not("prune", before, before) == "it takes no less time"
    assert journey._why_not("qat", faster, [_row("qat", "tflite-int8", 0.01, 4.0)]) == ""
    assert journey._why_not("qat", before, faster) == "it loses no less than before"
    assert "no artifact" in journey._why_not("qat", before, [MeasuredArtifact("qat", "tflite-int8", failed="it broke")])
    onnx = _row("plain INT8", "onnx-int8-qdq", 0.0)
    assert journey._why_not("split", [NOT_MADE, onnx], [_row("split", "tflite-int8", 0.002), onnx]) == ""
    assert journey._why_not("split", [NOT_MADE, onnx], [NOT_MADE, onnx]) == "no format loses less than before"
    without_a_board = _of(steps=("distill",), width=0.5)
    fewer = [_row("distill", "tflite-int8", 0.02, macs=400)]
    assert without_a_board._why_not("distill", [_row("plain INT8", "tflite-int8", 0.0)], fewer) == ""


def test_one_artifact_of_a_format_that_the_board_runs_keeps_both_limits():
    limits = replace(_of(max_drop=0.01, budget_ms=5.0, **BOARD)._limits, recipes=("tflite-int8",))
    good, late, other = (
        _row("qat", name, 0.0, ms) for name, ms in (("tflite-int8", 4.9), ("tflite-int8", 5.1), ("onnx-int8-qdq", 1.0))
    )
    assert limits.are_kept([good, late])
    assert not limits.are_kept([late])
    assert not limits.are_kept([late, other]), "an artifact that the board cannot run decides nothing"
    both = replace(limits, recipes=("tflite-int8", "onnx-int8-qdq"))
    late_and_near = _row("qat", "onnx-int8-qdq", 0.0, 9.0)
    assert both.drop([_row("qat", "tflite-int8", 0.02, 4.0), late_and_near]) == 0.02, "what is late is not packed"
    assert both.drop([late_and_near]) == 0.0
    assert not limits.are_kept([_row("qat", "tflite-int8", 0.0)]), "a budget is not promised without an estimate"
    assert Limits.of(CompressRequest(Path("n.keras"), "", "", Path("o"))).recipes == ("tflite-int8", "onnx-int8-qdq")


def _busy(step, drop, alone_ms, took_ms, macs=1000):
    return replace(_row(step, "tflite-int8", drop, took_ms, macs), ms=alone_ms, busy=True)


def test_a_budget_is_not_held_against_what_a_busy_machine_took():
    limits = _of(max_drop=0.01, budget_ms=5.0, **BOARD)._limits
    assert limits.are_kept([_busy("plain INT8", 0.0, 4.0, 400.0)])
    assert not limits.are_kept([_row("plain INT8", "tflite-int8", 0.0, 400.0)])
    assert not limits.are_kept([_busy("plain INT8", 0.0, 6.0, 400.0)]), "alone it is too slow, too"
    assert "about 4 ms alone, up to 400 ms on this machine, which is busy" in line_of(
        _busy("plain INT8", 0.0, 4.0, 400.0)
    )


def test_a_busy_machine_compares_products_instead_of_times():
    journey = _of(max_drop=0.01, budget_ms=5.0, **BOARD)
    before, slower = [_row("plain INT8", "tflite-int8", 0.0, 9.0)], [_busy("prune", 0.0, 9.0, 90.0, macs=400)]
    assert journey._why_not("prune", before, slower) == ""
    assert journey._why_not("prune", before, [_busy("prune", 0.0, 2.0, 3.0)]) == "it takes no less time"


def test_the_verdict_says_that_the_machine_was_busy():
    said = "this machine was busy, so its times say little of the budget: try again when it is idle"
    rows = (_busy("plain INT8", 0.0, 4.0, 400.0),)
    report = _of(budget_ms=5.0, **BOARD)._report(rows, (), None)
    assert (report.kept, said in report.verdict) == (True, True)
    assert "(busy)" in "\n".join(replace(report, rows=(replace(rows[0], here_ms=4.0, here_busy=True),)).table())
    assert said not in _of(max_drop=0.01)._report(rows, (), None).verdict, "no budget"
    quiet = _of(budget_ms=5.0, **BOARD)._report((_row("plain INT8", "tflite-int8", 0.0, 4.0),), (), None)
    assert said not in quiet.verdict
    step = {"step": "qat", "kept": True, "gain": None}
    trained = _of(budget_ms=5.0, **BOARD)._report((_busy("qat", 0.0, 4.0, 400.0),), (step,), Path("net.keras"))
    assert "build it when it is idle" in trained.verdict
    assert "400" not in trained.verdict


HERE = Estimate(3.0, 4.0, 400.0, "measured", notes=("this machine was busy",), busy=True)


@dataclass(frozen=True)
class _Sets:
    calibration: np.ndarray
    calibration_digest: str


@dataclass(frozen=True)
class _Subject:
    sets: _Sets


def test_times_of_a_busy_machine_take_out_no_channels(monkeypatch):
    journey = _of(steps=("prune",), budget_ms=2.0, profile="x86-64")
    says = r"is busy.*which channels may stay.*Try again when it is idle"
    bench = SimpleNamespace(
        request=journey._request, limits=journey._limits, rows=[_busy("plain INT8", 0.0, 4.0, 400.0)]
    )
    with pytest.raises(EdgekitError, match=says):
        _leaving(None, None, bench)
    maker = SimpleNamespace(subject=None, convert=lambda recipe: None)
    monkeypatch.setattr(Gauge, "maker_of", lambda *given: maker)
    monkeypatch.setattr(Gauge, "_estimates", lambda *given: [HERE])
    subject = _Subject(_Sets(np.arange(3), ""))
    with pytest.raises(EdgekitError, match=says):
        Gauge(journey._request, NO_STORE, None).high_ms(subject, Path("narrow.keras"), "tflite-int8")


def test_a_row_says_that_its_board_was_busy():
    fidelity = SimpleNamespace(
        metric="top1", original=0.9, artifact=0.9, loss=0.0, loss_ci95=(0.0, 0.0), quantized_macs=1.0, is_error=False
    )
    artifact = SimpleNamespace(data=onnx_artifact(linear((-1, 3), 3)).data)
    made = SimpleNamespace(fidelity=fidelity, artifact=artifact, recipe=find_recipe("onnx-int8-qdq"), failed="")
    row = _measured("plain INT8", made, HERE)
    assert (row.low_ms, row.ms, row.high_ms, row.busy) == (3.0, 4.0, 400.0, True)
    assert not _measured("plain INT8", made, replace(HERE, busy=False)).busy


@pytest.mark.parametrize("error", [KeyboardInterrupt, EdgekitError("no", do="that"), OSError(28, "full"), None])
def test_the_copy_of_the_training_set_goes_after_errors_too_and_the_state_stays(tmp_path, error):
    def run():
        with _scratch(tmp_path, "net") as folder:
            (folder / "items.npy").write_bytes(b"large")
            (folder / "qat-0.npz").write_bytes(b"small")
            if error is not None:
                raise error

    if error is None:
        run()
        assert list(tmp_path.iterdir()) == []
        return
    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        run()
    assert [path.name for path in (tmp_path / ".net.compress").iterdir()] == ["qat-0.npz"]


def test_a_full_disk_is_one_sentence(opened, tmp_path):
    """The copy of the training set does not fit. A process of its own: a write to a mapped file would end it."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=150k", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("mounting needs root: run as root")
    for name, (x, y) in (("train", opened.train), ("evaluation", opened.evaluation)):
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    sets = ("--train", "train.npz", "--evaluation", "evaluation.npz")
    cached = recipe(tmp_path, cache=str(opened.cache))
    command = ("compress", str(opened.model), *sets, "--steps", "qat", *cached, "-o", "small")
    try:
        ran = run_edgekit(*command, cwd=tmp_path)
    finally:
        subprocess.run(["umount", small], check=True)
    assert ran.code == 1
    assert ran.err.splitlines()[-1].startswith("error: small/.digits.compress/items.npy: the disk is full")


def test_an_error_before_anything_is_trained_leaves_no_folder(tmp_path):
    with pytest.raises(EdgekitError), _scratch(tmp_path, "net") as folder:
        (folder / "items.npy").write_bytes(b"large")
        raise EdgekitError("no", do="that")
    assert list(tmp_path.iterdir()) == []


def test_the_table_says_what_was_kept_and_why_not():
    rows = (_row("plain INT8", "tflite-int8", 0.0, 9.0), _row("prune", "tflite-int8", 0.02, 4.0))
    steps = ({"step": "prune", "kept": False, "why": "it takes no less time"},)
    head, plain, pruned = CompressReport(None, rows, steps, "", False).table()
    assert [name for name in ("step", "ms, estimated", "ms, here", "kB, xz") if name not in head] == []
    assert plain.split()[-1] == "0"
    assert "2.00" in pruned
    assert pruned.endswith("not kept: it takes no less time")


@pytest.mark.parametrize(
    ("answers", "kind", "wanted"),
    [
        ([[0.7, 0.2, 0.1]], "classes", np.log([[0.7, 0.2, 0.1]])),
        ([[1.0, 0.0, 0.0]], "classes", [[0.0, np.log(1e-7), np.log(1e-7)]]),
        ([[3.0, -1.0, 0.5]], "classes", [[3.0, -1.0, 0.5]]),
        ([[0.9], [0.1]], "classes", [[np.log(9)], [-np.log(9)]]),
        ([[0.7, 0.2, 0.1]], "numbers", [[0.7, 0.2, 0.1]]),
    ],
)
def test_a_teachers_probabilities_become_logits(answers, kind, wanted):
    values = tuple({"probs": np.array(one, np.float32)} for one in answers)
    np.testing.assert_allclose(_logits(Reference(values, None, None, ()), kind), wanted, rtol=1e-5, atol=1e-6)


def test_an_error_is_said_to_grow_and_accuracy_to_be_lost():
    accuracy = MeasuredArtifact("qat", "tflite-int8", "top1", 0.9, 0.88, 0.02, (0.01, 0.03), 1.0, 1000)
    error = replace(accuracy, metric="mae", original=0.2, score=0.196, drop=-0.02, error=True)
    assert line_of(accuracy).startswith("qat, tflite-int8: top1 0.8800 of 0.9000, loses 2.00 points, ")
    assert line_of(error).startswith("qat, tflite-int8: mae 0.1960 of 0.2000, has 2.00 % less error, ")
    assert str(Gain("qat", "tflite-int8", "mae", 0.015, (0.011, 0.02), error=True)) == (
        "-1.5 % error, -2.0 to -1.1, against qat"
    )


def test_a_contract_that_moves_keeps_its_inputs_by_name_and_takes_its_labels_along(tmp_path):
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    said = 'labels = "names.txt"\n[inputs."serving input"]\nkind = "image"\n[classification]\noutput = "probs"\n'
    (tmp_path / "net.contract.toml").write_text(said)
    moved = tomllib.loads(moved_contract(tmp_path / "net.contract.toml", ("cat", "dog")))
    assert moved == tomllib.loads(said) | {"labels": ["cat", "dog"]}
