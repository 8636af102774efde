"""A bundle's artifact as plain files, for people and programs without edgekit.

    made = export_files(bundle, Path("net"), recipe=None)
    made.files                                  # net/model.tflite, net/golden.npz, net/run.py, ...

Rules:
- `model.tflite` or `model.onnx` is the artifact byte for byte, `contract.json` its contract, `labels.txt` has a class
  a line;
- `golden.npz` has `N.in.NAME`, an item of the contract without a batch axis (pixels are uint8), and `N.out.NAME`, the
  workstation's answer as float32, dequantized;
- `run.py` needs only the engine, NumPy and, for pictures, Pillow; a model that keeps a state has none;
- an encrypted artifact is written in clear; the folder is new or empty, and written whole or not at all.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.packaging.output_errors import OutputError
from edgekit.shipping.folder import draft, put
from edgekit_runtime.bundle.manifest import ArtifactEntry, GoldenExample, GoldenOutputs
from edgekit_runtime.bundle.reader import Bundle
from edgekit_runtime.contract.adapt import dequantize
from edgekit_runtime.contract.kinds import kind_of, pictures
from edgekit_runtime.contract.picture import PADDING
from edgekit_runtime.contract.spec import ImageSpec, InputContract, TensorSpec
from edgekit_runtime.engines.registry import ENGINES, pick
from edgekit_runtime.system.strict_json import json_text

_FLOAT_STEP = 1e-4  # a float output's step, as a share of the golden's largest magnitude: see `Tolerance`


@dataclass(frozen=True)
class ExportedFiles:
    """recipe: of the artifact. packages: what `run.py` needs, empty without it."""

    recipe: str
    files: tuple[Path, ...]
    packages: tuple[str, ...]


def export_files(bundle: Bundle, folder: Path, recipe: str | None = None) -> ExportedFiles:
    """Write one artifact, the primary one by default, into a folder that is new or empty.

    Raises OutputError, also for an artifact of role `batch`, and BundleError for an unknown recipe.
    """
    entry, contract = bundle.artifact(recipe), bundle.manifest.contract
    if entry.role == "batch":
        raise OutputError(
            f"'{entry.recipe}' takes several items at once", where=str(bundle.path), do="Leave --recipe out"
        )
    examples = [
        (golden, answer) for golden in bundle.manifest.golden for answer in golden.answers
        if answer.recipe == entry.recipe
    ]  # fmt: skip
    files = {
        f"model.{entry.format}": bundle.blob(entry.blob),
        "contract.json": json_text(contract).encode(),
        "golden.npz": _golden(bundle, entry, examples),
    }
    if contract.labels is not None:
        files["labels.txt"] = "".join(f"{label}\n" for label in contract.labels).encode()
    packages: tuple[str, ...] = ()
    if contract.state == "none":
        pillow = ("pillow",) if _picture(bundle) else ()
        packages = (ENGINES[pick(entry.format, dict.fromkeys(ENGINES, ""))].distribution, "numpy", *pillow)
        files["run.py"] = _script(bundle, entry, examples, packages).encode()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise OutputError("is not an empty folder", where=str(folder), do="Name a new folder with -o")
    try:
        with draft(folder) as place:
            made = place / "made"
            made.mkdir(mode=0o755)
            for name, data in files.items():
                (made / name).write_bytes(data)
            put(made, folder)
    except OSError as error:
        raise OutputError(f"cannot be written ({error.strerror or error})", where=str(folder)) from error
    return ExportedFiles(entry.recipe, tuple(folder / name for name in files), packages)


_Examples = list[tuple[GoldenExample, GoldenOutputs]]


def _golden(bundle: Bundle, entry: ArtifactEntry, examples: _Examples) -> bytes:
    arrays: dict[str, NDArray[Any]] = {}
    for number, (golden, answer) in enumerate(examples):
        arrays |= {f"{number}.in.{name}": item for name, item in bundle.golden_items(golden).items()}
        frames = () if golden.steps is None else (golden.steps,)
        for tensor in entry.outputs:
            if tensor.name in answer.outputs:
                raw = np.frombuffer(bundle.blob(answer.outputs[tensor.name]), tensor.dtype)
                raw = raw.reshape((*frames, *tensor.shape[1:]))
                arrays[f"{number}.out.{tensor.name}"] = dequantize(raw, tensor, np.dtype(np.float32))
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _picture(bundle: Bundle) -> ImageSpec | None:
    """The picture's form if the model's one input is an image."""
    found = pictures(bundle.manifest.contract.inputs)
    return found[0] if len(bundle.manifest.contract.inputs) == 1 and found else None


def _script(bundle: Bundle, entry: ArtifactEntry, examples: _Examples, packages: tuple[str, ...]) -> str:
    """The text of run.py."""
    manifest, picture = bundle.manifest, _picture(bundle)
    classes = manifest.contract.outputs[0].name if manifest.contract.task == "classification" else None
    names = [f"x{number}" for number in range(len(entry.inputs))]
    prepared = [
        f"    {line}\n"
        for name, tensor in zip(names, entry.inputs, strict=True)
        for line in _prepare(name, manifest.contract.input(tensor.name), tensor)
    ]
    answers = [f"        {tensor.name!r}: {_real(f'y[{n}][0]', tensor)},\n" for n, tensor in enumerate(entry.outputs)]
    title = f"{manifest.name} {manifest.version}, {entry.recipe}".replace("\\", "/").replace('"', "'")
    return (
        f'''"""{title}: runs without edgekit.

    pip install {" ".join(packages)}
    python run.py             # the golden examples
    python run.py item.npy    # an item without a batch axis; several inputs: an .npz with their names
{"    python run.py cat.jpg" if picture else ""}
"""

import sys
from pathlib import Path

import numpy as np
{_TFLITE.format(free=_free_batch(entry)) if entry.format == "tflite" else _ONNX}

def run({", ".join(names)}):
    """Items without a batch axis: {", ".join(tensor.name for tensor in entry.inputs)}."""
{"".join(prepared)}    y = infer([{", ".join(names)}])
    return {{
{"".join(answers)}    }}

'''
        + ("" if picture is None else _PIXELS.format(**_picture_parts(picture)))
        + (
            ""
            if classes is None
            else _BEST.format(output=classes, labels=_COUNTED if manifest.contract.labels is None else _NAMED)
        )
        + _ASK.format(
            shapes={tensor.name: manifest.contract.input(tensor.name).shape for tensor in entry.inputs},
            pixels="[pixels(path)]" if picture else 'sys.exit(f"{path}: pass a .npy or .npz file")',
            show="print(answer)" if classes is None else "best(answer)",
        )
        + _check(entry, examples)
    )


_TFLITE = """from ai_edge_litert.interpreter import Interpreter

here = Path(__file__).parent
model = Interpreter(str(here / "model.tflite"))
{free}model.allocate_tensors()


def infer(tensors):
    for place, tensor in zip(model.get_input_details(), tensors):
        model.set_tensor(place["index"], tensor)
    model.invoke()
    return [model.get_tensor(place["index"]) for place in model.get_output_details()]
"""

_ONNX = """import onnxruntime

here = Path(__file__).parent
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.x64quantprecision", "1")  # or 8 bits saturate on x86 without VNNI
model = onnxruntime.InferenceSession(str(here / "model.onnx"), options)


def infer(tensors):
    return model.run(None, {place.name: tensor for place, tensor in zip(model.get_inputs(), tensors)})
"""

_PIXELS = """
def pixels(path):
    from PIL import Image, ImageOps

    picture = ImageOps.exif_transpose(Image.open(path)).convert("{mode}")
    w, h = picture.size
{resize}
    return np.asarray(picture, np.uint8).reshape({height}, {width}, {channels}){order}

"""

_RESIZE = {
    "stretch": """    picture = picture.resize(({width}, {height}), Image.Resampling.{method})""",
    "center-crop": """    scale = min(w / {width}, h / {height}) * {crop}
    cut_w, cut_h = max(1, round({width} * scale)), max(1, round({height} * scale))
    left, top = (w - cut_w) // 2, (h - cut_h) // 2
    picture = picture.crop((left, top, left + cut_w, top + cut_h))
    picture = picture.resize(({width}, {height}), Image.Resampling.{method})""",
    "letterbox": """    scale = min({width} / w, {height} / h)
    inner = max(1, round(w * scale)), max(1, round(h * scale))
    canvas = Image.new("{mode}", ({width}, {height}), {padding})
    inside = picture.resize(inner, Image.Resampling.{method})
    canvas.paste(inside, (({width} - inner[0]) // 2, ({height} - inner[1]) // 2))
    picture = canvas""",
}

_COUNTED, _NAMED = "range(len(scores))", '(here / "labels.txt").read_text(encoding="utf-8").split("\\n")'
_BEST = """
def best(answer):
    scores = answer[{output!r}].ravel()
    labels = {labels}
    for index in np.argsort(-scores, kind="stable")[:5]:
        print(labels[index], scores[index])

"""

_ASK = """
shapes = {shapes}


def arrays(path):
    items = np.load(path)
    items = {{name: items[name] for name in items}} if path.lower().endswith(".npz") else {{"": items}}
    if len(items) == len(shapes) == 1:
        items = dict(zip(shapes, items.values()))
    for name, shape in shapes.items():
        if name not in items or items[name].shape != shape:
            found = items[name].shape if name in items else "missing"
            sys.exit(f"{{path}}: '{{name}}' is {{found}}, and an item is {{shape}}")
    return [items[name] for name in shapes]


if len(sys.argv) > 1:
    path = sys.argv[1]
    answer = run(*(arrays(path) if path.lower().endswith((".npy", ".npz")) else {pixels}))
    {show}
    sys.exit()

"""


def _free_batch(entry: ArtifactEntry) -> str:
    """Lines that give a free batch axis one item."""
    lines = []
    for number, tensor in enumerate(entry.inputs):
        if tensor.free_batch:
            shape = [1, *(1 if side == -1 else side for side in tensor.shape[1:])]
            lines.append(f'model.resize_tensor_input(model.get_input_details()[{number}]["index"], {shape})\n')
    return "".join(lines)


def _prepare(name: str, contract: InputContract, tensor: TensorSpec) -> list[str]:
    """The canonical item as the tensor of this artifact: `contract.adapt` by its definition."""
    lines, dtype = [], np.dtype(tensor.dtype)
    for image in pictures([contract]):
        mean, std = (", ".join(repr(float(value)) for value in one) for one in (image.mean, image.std))
        lines.append(f"if {name}.dtype == np.uint8:  # pixels; else what the original network took")
        lines.append(f"    {name} = ({name} - np.float32([{mean}])) / np.float32([{std}])")
    if tensor.quantization is not None and dtype.kind in "iu":
        limits, zero = np.iinfo(dtype), tensor.quantization.zero_point
        scaled = f"np.rint({name} / np.float32({tensor.quantization.scale!r})) + {zero}"
        lines.append(f"{name} = np.clip({scaled}, {limits.min}, {limits.max})")
    fits = len(contract.shape) == len(tensor.shape) - 1 and all(
        have in (-1, want) for have, want in zip(tensor.shape[1:], contract.shape, strict=True)
    )
    axes = kind_of(contract).axes(contract, tensor, fits=fits)
    if axes is not None:
        lines.append(f"{name} = {name}.transpose{axes}")
    lines.append(f"{name} = np.ascontiguousarray({name}[None], np.{dtype.name})")
    return lines


def _real(value: str, tensor: TensorSpec) -> str:
    """real = scale * (quantized - zero_point)."""
    if tensor.quantization is None or np.dtype(tensor.dtype).kind not in "iu":
        return value
    scale, zero = tensor.quantization.scale, tensor.quantization.zero_point
    return f"({value}.astype(np.float32) - {zero}) * np.float32({scale!r})"


def _picture_parts(image: ImageSpec) -> dict[str, Any]:
    """The values in `_PIXELS`, which places a picture as `contract.geometry.place` does."""
    mode = "L" if image.color == "gray" else "RGB"
    parts = {
        "mode": mode, "height": image.height, "width": image.width, "channels": image.channels, "crop": image.crop,
        "method": image.interpolation.upper(), "padding": PADDING if mode == "L" else (PADDING,) * 3,
        "order": "[:, :, ::-1]" if image.color == "bgr" else "",
    }  # fmt: skip
    return parts | {"resize": _RESIZE[image.resize].format(**parts)}


def _check(entry: ArtifactEntry, examples: _Examples) -> str:
    """The golden examples: exit 1 where an answer is further away than the bundle allows."""
    items = ", ".join(f'golden[f"{{number}}.in.{tensor.name}"]' for tensor in entry.inputs)
    steps = max((answer.tolerance.steps for _, answer in examples), default=0)
    allowed = ", ".join(
        f"{tensor.name!r}: {tensor.quantization.scale * steps if tensor.quantization else None!r}"
        for tensor in entry.outputs
    )
    maker = f"{examples[0][1].engine} {examples[0][1].engine_version}" if examples else "the workstation's engine"
    return f"""
golden = np.load(here / "golden.npz")
allowed = {{{allowed}}}
for number in range({len(examples)}):
    answer = run({items})
    for name, most in allowed.items():
        wanted = golden[f"{{number}}.out.{{name}}"]
        most = most or {steps * _FLOAT_STEP!r} * np.abs(wanted).max()
        apart = np.abs(answer[name] - wanted).max()
        print(f"example {{number}}, {{name}}: {{apart:.3g}} apart, {{most:.3g}} allowed")
        if not apart <= most * 1.001:
            sys.exit("differs: the golden answers are of {maker}; another release may round otherwise")
print("ok")
"""
