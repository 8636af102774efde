"""What `edgekit export --for mediapipe` writes answers in MediaPipe itself as the bundle does, and notices changes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import foreign
import mirrored
import numpy as np
import pytest
import spots
import tiny
from click.testing import CliRunner
from PIL import Image

from edgekit.cli.main import cli
from edgekit.shipping.programs import mediapipe
from edgekit.shipping.programs.artifact import ExportedArtifact
from edgekit.shipping.programs.export import TargetError, export
from edgekit_converters.formats import tflite_edit
from edgekit_converters.recipe.artifact import Artifact, Recipe
from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.contract.spec import (
    Contract,
    DetectionSpec,
    EmbeddingSpec,
    ImageSpec,
    InputContract,
    OutputContract,
)
from edgekit_runtime.engines.registry import load_engine

CROP = {"resize": "center-crop", "crop": 0.8}
LABELS = mirrored.LABELS[:4]


@pytest.fixture(scope="session")
def environment(request):
    return foreign.mediapipe(request)


@pytest.fixture
def package(environment, monkeypatch):
    """MediaPipe is installed for the processes of this test."""
    monkeypatch.setattr(sys, "path", [*sys.path, environment["PYTHONPATH"]])


def classifier(folder, recipe="tflite-int8", *, labels=LABELS, scores="probabilities", **image):
    contract = replace(tiny.CONTRACT, labels=labels, scores=scores)
    spec = replace(tiny.IMAGE, **image)
    return tiny.bundle(folder, recipe, contract=replace(contract, inputs=(replace(contract.inputs[0], image=spec),)))


def embedder(folder, *, normalize):
    contract = replace(
        tiny.CONTRACT, task="embedding", labels=None, scores=None, embedding=EmbeddingSpec("probs", normalize)
    )
    return tiny.bundle(folder, "tflite-f32", contract=contract)


HEAD = DetectionSpec(
    "boxes", "box", "yxyx", span=(1, 1), scores="scores", classes="classes", count="count", suppressed=True
)


UNNAMED = replace(HEAD, count=None)


def detector(folder, head=HEAD, labels=("Käse, alt", "b"), **image):
    data = (tiny.MODELS / "ssd_f32.tflite").read_bytes()
    names = ("count", "scores", "classes", "boxes")
    with load_engine("tflite", data) as net:
        inputs = (replace(net.inputs[0], name="image", layout="NHWC"),)
        outputs = tuple(replace(one, name=name) for one, name in zip(net.outputs, names, strict=True))
    contract = Contract(
        task="detection",
        inputs=(InputContract("image", (16, 16, 3), "float32", ImageSpec(16, 16, (0.0,) * 3, (255.0,) * 3, **image)),),
        outputs=tuple(OutputContract(one.name, one.shape[1:], "float32") for one in outputs),
        labels=labels,
        detection=replace(head, score_threshold=0.4),
    )
    artifact = Artifact(Recipe("tflite-f32", "tflite", "float32"), data, inputs, outputs, 1.0, 1.0, {})
    golden = [{"image": mirrored.picture(number, 16, 16)} for number in range(2)]
    return tiny.bundle(folder, "tflite-f32", contract=contract, artifact=artifact, golden=golden)


def numbered(seed):
    """A picture whose numbers are `raw_detector`'s candidates: five of them score, and some overlap."""
    random = np.random.default_rng(seed)
    rows = np.zeros((9, 192), np.uint8)  # centre, size, five classes
    rows[:2], rows[2:4] = 114, random.integers(60, 140, (2, 192))
    for number, candidate in enumerate(random.choice(192, 5, replace=False)):
        rows[4 + number % 3, candidate] = 255 - 3 * number
    return rows.reshape(24, 24, 3)


def raw_detector(folder, **image):
    """A network whose output is its picture's numbers, read as a YOLO's: boxes to suppress."""
    from edgekit_converters.formats.tflite_sides import append

    side, classes = 24, len(mirrored.LABELS)
    rows = side * side * 3 // (4 + classes)
    model = tflite_edit.read((tiny.MODELS / "tiny_f32.tflite").read_bytes())
    graph = model.subgraphs[0]
    graph.operators, model.signatureDefs, taken = [], [], int(graph.inputs[0])
    graph.tensors[taken].shape = np.int32([1, side, side, 3])
    flat = append(model, "RESHAPE", [taken, [1, side * side * 3]], (1, side * side * 3))
    used = (4 + classes) * rows
    part = append(model, "SLICE", [flat, [0, 0], [1, used]], (1, used))
    graph.outputs = [append(model, "RESHAPE", [part, [1, 4 + classes, rows]], (1, 4 + classes, rows))]
    data = tflite_edit.write(model)
    with load_engine("tflite", data) as net:
        inputs = (replace(net.inputs[0], name="image", layout="NHWC"),)
        outputs = (replace(net.outputs[0], name="found"),)
    spec = ImageSpec(side, side, (0.0,) * 3, (255.0,) * 3, **image)
    contract = Contract(
        task="detection",
        inputs=(InputContract("image", (side, side, 3), "float32", spec),),
        outputs=(OutputContract("found", (4 + classes, rows), "float32"),),
        labels=mirrored.LABELS,
        detection=DetectionSpec(
            "found", "box scores", "cxcywh", span=(1, 1), candidates="last", score_threshold=0.95, max_boxes=6
        ),
    )
    artifact = Artifact(Recipe("tflite-f32", "tflite", "float32"), data, inputs, outputs, 1.0, 1.0, {})
    golden = [{"image": numbered(number)} for number in range(2)]
    return tiny.bundle(folder, "tflite-f32", contract=contract, artifact=artifact, golden=golden)


BUNDLES = {
    "int8": classifier,
    "float": lambda folder: classifier(folder, "tflite-f32"),
    "crop": lambda folder: classifier(folder, **CROP),
    "a free batch": lambda folder: classifier(folder, "tflite-f32, any number"),
    "a mean and std of each channel": lambda folder: classifier(
        folder, "tflite-f32", mean=(123.7, 116.3, 103.5), std=(58.4, 57.1, 57.4)
    ),
    "the same in 8 bits": lambda folder: classifier(folder, mean=(10.0, 0.0, 30.0), std=(255.0, 200.0, 180.0)),
    "bgr": lambda folder: classifier(folder, color="bgr"),
    "logits": lambda folder: classifier(folder, scores="logits"),
    "no labels": lambda folder: classifier(folder, labels=None),
    "vector": lambda folder: embedder(folder, normalize=False),
    "vector of length 1": lambda folder: embedder(folder, normalize=True),
    "letterbox": lambda folder: classifier(folder, resize="letterbox"),
    "detector": detector,
    "a raw detector that letterboxes": lambda folder: raw_detector(folder, resize="letterbox"),
    "a raw detector that crops": lambda folder: raw_detector(folder, **CROP),
}


def exported(path, **options):
    made = export(read_bundle(path), path.with_name("out"), "mediapipe", **options)
    return made.files[0].parent, made


def asked(folder, environment, *arguments):
    command = [sys.executable, "-B", "-c", foreign.PREDICT_PY, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("kind", BUNDLES)
def test_mediapipe_answers_what_the_bundle_answers(tmp_path, package, kind):
    path = BUNDLES[kind](tmp_path)
    spec = read_bundle(path).manifest.contract.inputs[0].image
    side = round(spec.width / (spec.crop if spec.resize == "center-crop" else 1))  # so that nothing is scaled
    (tmp_path / "pictures").mkdir()
    files = [tmp_path / "pictures" / f"{number}.png" for number in range(4)]
    for number, file in enumerate(files):
        tint = np.uint8([[90, 0, 40], [0, 99, 0], [0, 9, 160], [70, 60, 0]])[number]
        drawn = mirrored.picture(number, side, side) // 3 + tint
        if "raw" in kind:
            drawn = np.pad(numbered(number), ((edge := (side - 24) // 2, edge), (edge, edge), (0, 0)))
        Image.fromarray(drawn[side // 4 : -side // 4] if spec.resize == "letterbox" else drawn).save(file)
    folder, made = exported(path, pictures=tuple(map(str, files)))
    found = made.measured
    assert (found["check"], found["pictures"]) == ("ok", 4)
    assert found["region"] == pytest.approx(1.0, abs=1e-6)
    recipe = read_bundle(path).manifest.artifacts[0].recipe
    record = json.loads((folder / "export.json").read_text())
    assert record == {"target": "mediapipe", "recipe": recipe, "measured": found}
    assert {one.name for one in made.files} == {one.name for one in folder.iterdir()}
    programs = [one for one in folder.iterdir() if one.suffix in (".js", ".py", ".kt", ".swift", ".html")]
    assert not [one.name for one in programs if "__T" in one.read_text()]


def test_classes_come_with_their_labels_whatever_signs_are_in_them(tmp_path, environment):
    path = classifier(tmp_path)
    folder, _ = exported(path)
    drawn = mirrored.picture(3, 8, 8)
    Image.fromarray(drawn).save(tmp_path / "p.png")
    with open_bundle(path) as model:
        wanted = [f"{one.label} {one.score:.4f}" for one in model.predict(drawn).top(4)]
    done = asked(folder, environment, str(tmp_path / "p.png"))
    assert sorted(done.stdout.splitlines()) == sorted(wanted), done.stderr


def test_a_picture_that_cannot_be_read_is_one_line_and_exit_code_2(tmp_path, environment):
    folder, _ = exported(classifier(tmp_path))
    done = asked(folder, environment, "nowhere.png")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "nowhere.png: cannot be read: No such file or directory",
    )
    assert "Traceback" not in done.stderr


TWINS = {
    "another crop": ("predict.py", "* 0.8", "* 0.9", "the frame of a picture"),
    "another frame": ("predict.py", "min(24 / width", "max(24 / width", "the frame of a picture"),
    "bgr for rgb": ("predict.py", "np.asarray(upright)", "np.asarray(upright)[..., ::-1].copy()", "the golden answers"),
    "a changed label order": ("labels", "", "", "the model's labels are not the bundle's"),
    "a changed weight": ("weight", "", "", "the golden answers"),
}


@pytest.mark.parametrize("twin", TWINS)
def test_what_was_changed_is_noticed(tmp_path, environment, twin):
    detects = twin == "another frame"
    path = raw_detector(tmp_path, resize="letterbox") if detects else classifier(tmp_path, "tflite-f32", **CROP)
    folder, _ = exported(path)
    change(folder, *TWINS[twin][:3])
    done = asked(folder, environment)
    assert done.returncode == 1
    assert TWINS[twin][3] in done.stdout


def change(folder, part, old, new):
    file = folder / "model.tflite"
    if part == "labels":
        file.write_bytes(mediapipe.with_labels(tflite_edit.write(tflite_edit.read(file.read_bytes())), LABELS[::-1]))
    elif part == "weight":
        model = tflite_edit.read(file.read_bytes())
        tensor = max(
            (one for one in model.subgraphs[0].tensors if tflite_edit.is_constant(model, one) and one.type == 0),
            key=lambda one: len(model.buffers[one.buffer].data),
        )
        values = tflite_edit.constant(model, tensor)
        changed = values * np.linspace(-2, 2, values.size, dtype=np.float32).reshape(values.shape)
        tensor.buffer = tflite_edit.add_constant(model, changed)
        file.write_bytes(mediapipe.with_labels(tflite_edit.write(model), LABELS))
    else:
        text = (folder / part).read_text()
        assert text.count(old) == 1
        (folder / part).write_text(text.replace(old, new))


REFUSED = {
    "onnx": (lambda folder: tiny.bundle(folder, "onnx-f32"), "it is onnx"),
    "gray": (spots.bundle, "it takes gray pictures"),
    "an empty label": (lambda folder: classifier(folder, labels=("a", "", "c", "d")), "a label is empty"),
    "counted boxes in another order": (
        lambda folder: detector(folder, replace(HEAD, format="xyxy")),
        "counts its boxes",
    ),
    "stated classes without labels": (lambda folder: detector(folder, UNNAMED, None), "without labels nothing says"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_mediapipe_cannot_express_is_refused(tmp_path, kind):
    make, said = REFUSED[kind]
    with pytest.raises(TargetError) as caught:
        exported(make(tmp_path))
    assert said in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_two_inputs_and_a_free_axis_are_refused(tmp_path):
    bundle = read_bundle(classifier(tmp_path))
    (entry,) = bundle.manifest.artifacts
    several = replace(entry, inputs=entry.inputs * 2)
    free = replace(entry, inputs=(replace(entry.inputs[0], shape=(1, -1, -1, 3)),))
    for changed, said in ((several, "it has 2 inputs"), (free, "'image' has a free axis")):
        with pytest.raises(TargetError, match=said):
            export(
                replace(bundle, manifest=replace(bundle.manifest, artifacts=(changed,))), tmp_path / "o", "mediapipe"
            )
    assert not (tmp_path / "o").exists()


def test_numbers_and_raw_outputs_have_no_task(tmp_path):
    bundle = read_bundle(classifier(tmp_path))
    contract = bundle.manifest.contract
    for changed, said in (
        (replace(contract, inputs=(InputContract("image", (8, 8, 3), "float32"),)), "its input is not a picture"),
        (replace(contract, task="raw", labels=None, scores=None), "its task is raw, .* a contract has no masks"),
    ):
        with pytest.raises(TargetError, match=said):
            export(replace(bundle, manifest=replace(bundle.manifest, contract=changed)), tmp_path / "out", "mediapipe")
    assert not (tmp_path / "out").exists()


def test_the_command_says_how_often_the_whole_picture_and_the_region_agree(tmp_path, package):
    path = classifier(tmp_path, **CROP)
    (tmp_path / "pictures").mkdir()
    for number, (edge, middle) in enumerate([("red", "blue"), ("green", "green"), ("blue", "red")]):
        picture = Image.new("RGB", (40, 40), edge)  # the crop leaves the edge out
        picture.paste(Image.new("RGB", (32, 32), middle), (4, 4))
        picture.save(tmp_path / "pictures" / f"{number}.png")
    command = ["export", str(path), "--for", "mediapipe", "-o", str(tmp_path / "out"), "--allow-unsigned"]
    said = CliRunner().invoke(cli, [*command, "--pictures", str(tmp_path / "pictures")])
    assert said.exit_code == 0, said.output
    assert "MediaPipe 1.2.3 on the golden examples: ok" in said.output
    measured = json.loads((tmp_path / "out/export.json").read_text())["measured"]
    assert measured["region"] == 1.0
    assert f"MediaPipe on 3 pictures, same best class as the bundle: {measured['whole']:.1%}" in said.output


def test_without_the_package_nothing_is_measured_and_the_command_says_so(tmp_path):
    command = [
        "export",
        str(classifier(tmp_path)),
        "--for",
        "mediapipe",
        "-o",
        str(tmp_path / "out"),
        "--allow-unsigned",
    ]
    said = CliRunner().invoke(cli, command)
    assert said.exit_code == 0, said.output
    assert "note: not measured: that needs Linux, without network there, and `pip install mediapipe`" in said.output
    assert json.loads((tmp_path / "out/export.json").read_text())["measured"] is None


@pytest.fixture
def unmeasured(tmp_path, request):
    """A bundle and its folder, exported before MediaPipe is installed."""
    bundle = read_bundle(classifier(tmp_path))
    folder, _ = exported(bundle.path)
    request.getfixturevalue("package")
    return bundle, folder


def test_what_measures_mediapipe_keeps_it_from_the_network(unmeasured):
    bundle, folder = unmeasured
    (folder / "predict.py").write_text("import socket\nsocket.socket()\n")
    with pytest.raises(TargetError, match="MediaPipe cannot run it: PermissionError"):
        mediapipe.measure(ExportedArtifact(bundle, bundle.manifest.artifacts[0], True), folder, ())


def test_a_mediapipe_that_hangs_is_ended(unmeasured):
    bundle, folder = unmeasured
    (folder / "predict.py").write_text("import time\ntime.sleep(1e6)\n")
    with pytest.raises(TargetError, match="MediaPipe gave no answer for 1 s"):
        mediapipe.measure(ExportedArtifact(bundle, bundle.manifest.artifacts[0], True), folder, (), silence_s=1)


def test_pictures_go_with_mediapipe_alone(tmp_path):
    said = CliRunner().invoke(
        cli, ["export", str(classifier(tmp_path)), "-o", str(tmp_path / "out"), "--pictures", "x"]
    )
    assert said.exit_code == 2
    assert "--pictures goes with --for mediapipe" in said.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["crop", "vector of length 1", "a raw detector that letterboxes"])
def test_a_page_answers_what_python_answers(tmp_path, environment, request, browser, kind):
    folder, _ = exported(BUNDLES[kind](tmp_path))
    (folder / "node_modules").symlink_to(foreign.node_modules(request))
    with foreign.served(folder) as address:
        browser.get(f"{address}/index.html")
        browser.set_script_timeout(120)
        answer = browser.execute_async_script(
            """const done = arguments[0];
            (async () => {
                const net = await import("./predict.js");
                const picture = await createImageBitmap(await (await fetch("golden-0.png")).blob());
                return [await net.check(), await net.predict(picture)];
            })().then(done, (error) => done(String(error.stack)));"""
        )
        sent = [
            one
            for one in browser.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)")
            if not one.startswith(address)
        ]
    assert not isinstance(answer, str), answer
    lines, found = answer
    assert lines == ["ok"]
    assert [one for one in sent if not one.startswith(("blob:", "data:"))] == []
    printed = asked(folder, environment, "golden-0.png").stdout.split("\n")[:-1]
    if kind == "vector of length 1":
        assert found == pytest.approx(list(map(float, printed)), abs=1e-5)
    else:
        assert [one["label"] for one in found] == [line.rsplit(" ", 1 if kind == "crop" else 5)[0] for line in printed]
