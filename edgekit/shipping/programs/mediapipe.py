"""A file for MediaPipe Tasks, its calls in four languages, and what they answer.

    mediapipe.write(artifact)                       # for MediaPipe's ImageClassifier, ImageEmbedder or ObjectDetector
    mediapipe.measure(artifact, folder, pictures)   # {"pictures": 300, "whole": 0.92, "region": 0.987, ...}

Rules:
- MediaPipe stretches a picture of RGB and normalises all channels alike: a crop is a region of interest, and mean and
  std of each channel, another order of colours, a softmax and a detector's suppression become operators of the file;
- a letterbox, and a detector's crop, is a frame that the program cuts out of the picture before MediaPipe has it;
- MediaPipe reports its use to Google: the page forbids that, and the measurement runs without network or not at all;
- the golden pictures are PNG files of the network's own size, so nothing is resized in the check;
- the metadata is written as `metadata_schema.fbs` of TensorFlow Lite Support lays it out.
"""

from __future__ import annotations

import html
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.shipping.programs import javascript, numbers
from edgekit.shipping.programs.artifact import ExportedArtifact, Program, TargetError
from edgekit.shipping.programs.template import fill, js
from edgekit_converters.fidelity.detection import iou
from edgekit_runtime.contract.adapt import Adapter, Finisher, softmax, top, vector
from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.contract.detect import boxes
from edgekit_runtime.contract.geometry import Geometry, place
from edgekit_runtime.contract.picture import pillow
from edgekit_runtime.contract.spec import DetectionSpec, ImageSpec, TensorSpec
from edgekit_runtime.engines.registry import load_engine
from edgekit_runtime.system.children import environment
from edgekit_runtime.system.children import run as run_child
from edgekit_runtime.system.strict_json import compact_json, json_text, load_json

PACKAGES = {"@mediapipe/tasks-vision": "1.1.0"}
"""The release that the page is tried with."""
_TASKS = {
    "classification": ("ImageClassifier", "classify", "classificationResult().classifications()[0].categories()"),
    "embedding": ("ImageEmbedder", "embed", "embeddingResult().embeddings()[0].floatEmbedding()"),
    "detection": ("ObjectDetector", "detect", "detections()"),
}
_SWIFT = {
    "classification": ("[ResultCategory]", "classificationResult.classifications[0].categories"),
    "embedding": ("[NSNumber]?", "embeddingResult.embeddings[0].floatEmbedding"),
    "detection": ("[Detection]", "detections"),
}
_HEAD = ("location", "category", "score", "number of detections")
"""MediaPipe's names for the four outputs of a detector, in their order."""
_FIGURES = {"classification": "same best class", "detection": "same boxes", "embedding": "cosine"}
_NOT_INSTALLED = 3
_TRIED = ((640, 427), (333, 778))
"""Sizes of pictures whose frame the program checks."""


def refusals(artifact: ExportedArtifact) -> Iterator[str]:
    """What MediaPipe's tasks of pictures cannot express."""
    yield from numbers.refusals(artifact)
    contract, picture, outputs = artifact.contract, artifact.picture, artifact.outputs
    if picture is None:
        yield "its input is not a picture"
        return
    if contract.task not in _TASKS:
        yield f"its task is {contract.task}, and MediaPipe reads classes, boxes or a vector; a contract has no masks"
        return
    if picture.color == "gray":
        yield "it takes gray pictures, and MediaPipe gives RGB"
    if artifact.inputs[0].layout == "NCHW":
        yield f"'{artifact.inputs[0].name}' is NCHW, and MediaPipe gives NHWC"
    for one in (*artifact.inputs, *outputs):
        if one.dtype != "float32":
            yield f"'{one.name}' is {one.dtype}, and MediaPipe takes float32"
    if any(len(label.splitlines()) != 1 for label in contract.labels or ()):
        yield "a label is empty or has a line break, and MediaPipe reads a label a line"
    spec = contract.detection
    if spec is None:
        if len(outputs) != 1:
            yield f"it has {len(outputs)} outputs, and MediaPipe's {_TASKS[contract.task][0]} reads one"
    elif not _native(spec, outputs):
        if spec.count is not None:
            yield f"'{spec.count}' counts its boxes, and they are not as TensorFlow's four outputs have them"
        if (spec.classes is not None or spec.row == "box score class") and not contract.labels:
            yield "an output states its classes, and without labels nothing says how many there are"


def _native(spec: DetectionSpec, outputs: Sequence[TensorSpec]) -> bool:
    """Whether its outputs are TensorFlow's four, which MediaPipe's ObjectDetector decodes."""
    head = (spec.format, spec.span, spec.suppressed, spec.background)
    names = {spec.boxes, spec.classes, spec.scores, spec.count}
    return head == ("yxyx", (1, 1), True, "none") and {one.name for one in outputs} == names


def write(artifact: ExportedArtifact) -> Program:
    contract, picture = artifact.contract, artifact.picture
    assert picture is not None
    task, verb, answer = _TASKS[contract.task]
    texts, facts = numbers.fillings(artifact, js, js)
    options: dict[str, Any] = {"max_results": 5}
    if contract.embedding is not None:
        options = {"l2_normalize": contract.embedding.normalize}
    if contract.detection is not None:
        options = {"max_results": contract.detection.max_boxes, "score_threshold": contract.detection.score_threshold}
    camel = {name.partition("_")[0] + name.partition("_")[2].capitalize(): js(value) for name, value in options.items()}
    golden, pictures = _golden(artifact, picture)
    steps = numbers.allowed(artifact, artifact.entry.outputs[0])
    swift, swift_answer = _SWIFT[contract.task]
    texts |= {
        "TASK": task,
        "VERB": verb,
        "ANSWER": javascript.ANSWERS[contract.task],
        "ALLOWED": repr(2.0 if contract.detection else steps * 1.001 or artifact.steps * 1e-3),
        "PY_EVERY": "max_results=-1" if contract.task == "classification" else "",
        "JS_EVERY": "{ maxResults: -1 }" if contract.task == "classification" else "",
        "PY_OPTIONS": ", ".join(f"{name!r}: {value!r}" for name, value in options.items()),
        "JS_OPTIONS": ", ".join(f"{name}: {value}" for name, value in camel.items()),
        "SWIFT_OPTIONS": "\n".join(f"    options.{name} = {value}" for name, value in camel.items()),
        "KOTLIN_OPTIONS": "".join(_kotlin(name, value) for name, value in camel.items()),
        "KOTLIN_PACKAGE": task.lower(),
        "KOTLIN_ANSWER": answer,
        "SWIFT_TYPE": swift,
        "SWIFT_ANSWER": swift_answer,
        "IMPORTS": js({name: f"./node_modules/{name}/vision_bundle.mjs" for name in PACKAGES}),
        "SHOW": javascript.shown(contract.task)["SHOW"],
        **{f"FRAME_{n}": f"{w}, {h}, {_frame(w, h, picture)}" for n, (w, h) in enumerate(_TRIED, 1)},
    }
    region = picture.resize == "center-crop" and contract.detection is None
    facts |= {"metrics": True, "region": region, "frame": picture.resize != "stretch" and not region}
    facts["sized"] = picture.resize != "stretch" or contract.detection is not None
    files = {
        "model.tflite": with_labels(artifact.model(partial(_edit, artifact, picture)), contract.labels),
        "golden.json": compact_json(golden),
        **{f"golden-{number}.png": data for number, data in enumerate(pictures)},
        "package.json": javascript.package(PACKAGES),
    }
    names = {"predict.py": "mediapipe.py.txt", "predict.js": "mediapipe.js"}
    names |= {name: name for name in ("index.html", "Predict.kt", "Predict.swift")}
    for name, template in names.items():
        title = html.escape(artifact.title) if name == "index.html" else artifact.title
        files[name] = fill(template, texts | {"TITLE": title}, facts).encode()
    return Program(files, ("mediapipe",), ("pip install mediapipe", "python predict.py"))


def _kotlin(name: str, value: str) -> str:
    number = f"{value}f" if "." in value else value
    return f".set{name[0].upper()}{name[1:]}({number})"


def _frame(width: int, height: int, picture: ImageSpec) -> list[int]:
    """Left, top, width and height of what the network sees, in pixels; parts may lie outside."""
    if picture.resize != "letterbox":
        left, top, right, bottom = place(width, height, picture).crop
        return [left, top, right - left, bottom - top]
    scale = min(picture.width / width, picture.height / height)
    sides = [(width, picture.width), (height, picture.height)]
    around = [round(-((side - max(1, round(own * scale))) // 2) / scale) for own, side in sides]
    return [*around, *(max(1, round(side / scale)) for _, side in sides)]


def _edit(artifact: ExportedArtifact, picture: ImageSpec, model: Any) -> None:
    """Put before and behind the network what MediaPipe does otherwise, and the metadata."""
    from edgekit_converters.formats.tflite_boxes import end_in_boxes
    from edgekit_converters.formats.tflite_file import schema
    from edgekit_converters.formats.tflite_sides import put_before, put_behind

    made, mean, std = schema(), np.array(picture.mean, np.float32), np.array(picture.std, np.float32)
    alike = len(set(picture.mean)) == len(set(picture.std)) == 1
    if not alike:  # the last put before is the first to run
        put_before(model, 0, "ADD", constants=[-mean / std])
        put_before(model, 0, "MUL", constants=[(1.0 / std).astype(np.float32)])
    if picture.color == "bgr":
        put_before(model, 0, "GATHER", constants=[np.array([2, 1, 0], np.int32)], axis=3)
    if artifact.contract.scores == "logits":
        put_behind(model, 0, "SOFTMAX", beta=1.0)
    names = [one.name for one in artifact.outputs]
    if (spec := artifact.contract.detection) is not None and not _native(spec, artifact.outputs):
        end_in_boxes(model, spec, names, len(artifact.contract.labels or ()))
    elif spec is not None:
        graph = model.subgraphs[0]
        order = [names.index(str(name)) for name in (spec.boxes, spec.classes, spec.scores, spec.count)]
        graph.outputs = [graph.outputs[at] for at in order]
    entry, buffer = made.MetadataT(), made.BufferT()
    buffer.data = np.frombuffer(_metadata(artifact, *((mean, std) if alike else (mean * 0, std * 0 + 1))), np.uint8)
    entry.name, entry.buffer = b"TFLITE_METADATA", len(model.buffers)
    model.buffers.append(buffer)
    model.metadata = [*(one for one in model.metadata or () if one.name != entry.name), entry]


def _metadata(artifact: ExportedArtifact, mean: NDArray[Any], std: NDArray[Any]) -> bytes:
    import flatbuffers  # type: ignore[import-untyped,unused-ignore]

    build = flatbuffers.Builder(1024)
    text = build.CreateString

    def table(*slots: Any) -> Any:
        """A table: each slot empty, an offset, or a byte in a tuple."""
        build.StartObject(len(slots))
        for number, slot in enumerate(slots):
            if isinstance(slot, tuple):
                build.PrependUint8Slot(number, slot[0], 0)
            elif slot is not None:
                build.PrependUOffsetTRelativeSlot(number, slot, 0)
        return build.EndObject()

    def every(*offsets: Any) -> Any:
        build.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            build.PrependUOffsetTRelative(offset)
        return build.EndVector()

    normalized = table((1,), table(build.CreateNumpyVector(mean), build.CreateNumpyVector(std)))
    image = table(text("image"), None, None, table((2,), table((1,))), every(normalized))  # of RGB
    detector = artifact.contract.detection is not None
    outputs = []
    for name in _HEAD if detector else ("score" if artifact.contract.task == "classification" else "embedding",):
        content, files = table((1,), table()), None
        if name == "location":
            content = table((3,), table(build.CreateNumpyVector(np.array([1, 0, 3, 2], np.uint32)), (1,)))
        if name == ("category" if detector else "score") and artifact.contract.labels is not None:
            files = every(table(text("labels.txt"), None, (3 if detector else 2,)))
        outputs.append(table(text(name), None, None, content, None, None, files))
    network = table(None, None, every(image), every(*outputs))
    build.Finish(table(text(artifact.title), None, None, every(network)), b"M001")
    return bytes(build.Output())


def with_labels(model: bytes, labels: Sequence[str] | None) -> bytes:
    """The file with the labels behind it, as a zip archive that MediaPipe finds there."""
    if labels is None:
        return model
    file = io.BytesIO(model)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(zipfile.ZipInfo("labels.txt"), "".join(f"{label}\n" for label in labels))
    return file.getvalue()


def _golden(artifact: ExportedArtifact, picture: ImageSpec) -> tuple[list[Any], list[bytes]]:
    """What MediaPipe should answer to each golden picture, and the pictures as PNG."""
    wanted, pictures = [], []
    for items, outputs in artifact.golden():
        item = next(iter(items.values()))
        if item.dtype == np.uint8 and len(outputs) == len(artifact.outputs):
            file = io.BytesIO()
            pillow().fromarray(item[..., ::-1] if picture.color == "bgr" else item).save(file, "PNG")
            pictures.append(file.getvalue())
            wanted.append(_answer(artifact, outputs, None, every=True))
    return wanted, pictures


def _answer(artifact: ExportedArtifact, outputs: Any, geometry: Geometry | None, every: bool = False) -> list[Any]:
    """Read outputs as predict.py does: a vector, boxes, or the best five classes.

    every: the score of each class."""
    contract = artifact.contract
    if contract.task == "detection":
        found = boxes(outputs, contract, geometry)
        return [[one.index, one.label, one.score, one.left, one.top, one.right, one.bottom] for one in found]
    if contract.task == "embedding":
        return [float(x) for x in vector(outputs, contract)]
    if not every:
        return [[one.index, one.label, one.score] for one in top(outputs, contract, 5)]
    scores = next(iter(outputs.values())).ravel()
    return [float(x) for x in (softmax(scores) if contract.scores == "logits" else scores)]


_CHILD = """
import importlib.metadata, importlib.util, json, pathlib, sys
from edgekit_converters.sources.sandbox import NETWORK, Sandbox, enter_sandbox
from edgekit_runtime.system.children import die_with_parent
die_with_parent()
pictures = json.load(sys.stdin)
readable = [pathlib.Path.cwd(), *map(pathlib.Path, pictures)]
if importlib.util.find_spec("mediapipe") is None or NETWORK in enter_sandbox(
    Sandbox(readable, [pathlib.Path(sys.argv[1])])
):
    sys.exit(3)
sys.modules["tensorflow"] = None  # MediaPipe would import it for the sake of its own documentation
import predict
print(json.dumps([importlib.metadata.version("mediapipe"), predict.check()]), flush=True)
with predict.opened() as task:
    for picture in pictures:
        print(json.dumps([predict.ask(task, picture, whole) for whole in (True, False)]), flush=True)
"""


def measure(
    artifact: ExportedArtifact, folder: Path, pictures: Sequence[str], silence_s: float = 300
) -> dict[str, Any] | None:
    """Run the exported program beside the artifact, in a process of its own.

    None without the package, or where a process cannot be kept from the network.
    `whole` is of the whole pictures, `region` of the part that the network is made for: the share with the artifact's
    best class or boxes, or the mean cosine of vectors.
    silence_s: the longest that MediaPipe may take for the golden examples, and for a picture.
    Raises TargetError."""
    paths = [str(Path(one).resolve()) for one in pictures]
    with tempfile.TemporaryDirectory() as cache:
        command, variables = [sys.executable, "-B", "-c", _CHILD, cache], environment() | {"MPLCONFIGDIR": cache}
        try:
            done = run_child(command, timeout=silence_s, cwd=folder, input=json_text(paths), text=True, env=variables)
        except subprocess.TimeoutExpired:
            raise TargetError(f"MediaPipe gave no answer for {silence_s:g} s", do="Export --for files") from None
    if done.returncode == _NOT_INSTALLED:
        return None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        reason = next(iter(lines[-1:]), f"exit code {done.returncode}")
        raise TargetError(f"MediaPipe cannot run it: {reason}", do="Export --for files")
    (version, check), *given = map(load_json, done.stdout.splitlines())
    found: dict[str, Any] = {"mediapipe": version, "check": check, "pictures": len(given)}
    if given:
        wanted = _own_answers(artifact, paths)
        alike = np.mean(
            [[_alike(artifact, mine, a) for a in both] for mine, both in zip(wanted, given, strict=True)], 0
        )
        found |= {"figure": _FIGURES[artifact.contract.task], "whole": float(alike[0]), "region": float(alike[1])}
    return found


def _own_answers(artifact: ExportedArtifact, pictures: Sequence[str]) -> Iterator[list[Any]]:
    contract, entry = artifact.contract, artifact.entry
    decode, adapt = Decoder(contract.inputs[0]), Adapter(contract.inputs[0], entry.inputs[0])
    finish = Finisher(contract, entry.outputs)
    with load_engine(entry.format, artifact.bundle.blob(entry.blob)) as engine:
        for picture in pictures:
            item, geometry = decode.place(picture)
            yield _answer(artifact, finish(engine.run([adapt(item)])), geometry)


def _alike(artifact: ExportedArtifact, mine: list[Any], given: list[Any]) -> float:
    """1 for the same best class, or the same boxes, else 0; the cosine of vectors."""
    if artifact.contract.task == "embedding":
        one, other = np.array(mine, np.float64), np.array(given, np.float64)
        return float(one @ other) / max(float(np.linalg.norm(one) * np.linalg.norm(other)), 1e-30)
    if artifact.contract.task == "classification":
        return float(given[0][0] in [index for index, _, score in mine if score == mine[0][2]])  # 8 bits have ties
    places = (np.array([box[3:] for box in boxes], np.float64).reshape(-1, 4) for boxes in (mine, given))
    near = (iou(*places) >= 0.5) & (
        np.array([box[1] for box in mine], str)[:, None] == np.array([box[1] for box in given], str)
    )
    return float(len(mine) == len(given) and bool(near.any(0).all() and near.any(1).all()))
