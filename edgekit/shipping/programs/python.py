"""`run.py`, which needs the engine, NumPy and, for pictures, Pillow; and files for Frigate.

Rules:
- a model that keeps a state has no `run.py`;
- a detector has `labelmap.txt`, an index and a label a line, and `frigate.yml` if its head is one that Frigate decodes:
  one ONNX output [4 + classes, candidates] of centres and sizes in pixels, or TensorFlow's four of TFLite.
"""

from __future__ import annotations

import numpy as np

from edgekit.shipping.programs.artifact import ExportedArtifact, Program
from edgekit.shipping.programs.numbers import fillings
from edgekit.shipping.programs.template import fill, js
from edgekit_runtime.bundle.manifest import ArtifactEntry
from edgekit_runtime.contract.kinds import kind_of, pictures
from edgekit_runtime.contract.pixels import pixel_step
from edgekit_runtime.contract.spec import InputContract, TensorSpec
from edgekit_runtime.engines.registry import ENGINES, pick


def write(artifact: ExportedArtifact) -> Program:
    files, entry = {"golden.npz": artifact.golden_npz(), **_frigate(artifact)}, artifact.entry
    if artifact.contract.state != "none":
        return Program(files)
    packages: tuple[str, ...] = (ENGINES[pick(entry.format, dict.fromkeys(ENGINES, ""))].distribution, "numpy")
    packages += ("pillow",) if artifact.picture else ()
    files["run.py"] = _script(artifact, packages).encode()
    return Program(files, packages, (f"pip install {' '.join(packages)}", "python run.py"))


def _script(artifact: ExportedArtifact, packages: tuple[str, ...]) -> str:
    entry, contract, picture = artifact.entry, artifact.contract, artifact.picture
    names = [f"x{number}" for number in range(len(entry.inputs))]
    prepared = [
        f"    {line}"
        for name, tensor in zip(names, entry.inputs, strict=True)
        for line in _prepare_lines(name, contract.input(tensor.name), tensor)
    ]
    steps = artifact.steps
    allowed = {one.name: one.quantization.scale * steps if one.quantization else None for one in entry.outputs}
    texts, facts = fillings(artifact, repr, repr, resizes=False)
    texts |= {
        "PACKAGES": " ".join(packages),
        "FREE_BATCH": _free_batch(entry),
        "HALF": repr(entry.precision == "float16"),
        "TAKES": repr([tensor.tensor for tensor in entry.inputs]),
        "GIVES": repr({tensor.tensor: tensor.shape for tensor in entry.outputs}),
        "INPUTS": ", ".join(names),
        "PREPARE": "\n".join(prepared),
        "ANSWERS": "\n".join(
            f"        {tensor.name!r}: {_dequantized(f'y[{n}][0]', tensor)}," for n, tensor in enumerate(entry.outputs)
        ),
        "SHAPES": repr({tensor.name: contract.input(tensor.name).shape for tensor in entry.inputs}),
        "ALLOWED": repr(allowed),
        "EXAMPLES": repr(len(artifact.examples)),
        "GOLDEN_ITEMS": ", ".join(f"golden[f'{{number}}.in.' + {tensor.name!r}]" for tensor in entry.inputs),
    }
    if picture is not None:
        texts |= {"MODE": '"L"' if picture.color == "gray" else '"RGB"', "METHOD": picture.interpolation.upper()}
        texts["ORDER"] = "[:, :, ::-1]" if picture.color == "bgr" else ""
    return fill("run.py.txt", texts, facts)


def _free_batch(entry: ArtifactEntry) -> str:
    """Lines that give a free batch axis one item."""
    lines = []
    for number, tensor in enumerate(entry.inputs):
        if tensor.free_batch:
            shape = [1, *(1 if side == -1 else side for side in tensor.shape[1:])]
            lines.append(f'model.resize_tensor_input(model.get_input_details()[{number}]["index"], {shape})\n')
    return "".join(lines)


def _prepare_lines(name: str, contract: InputContract, tensor: TensorSpec) -> list[str]:
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


def _dequantized(value: str, tensor: TensorSpec) -> str:
    """real = scale * (quantized - zero_point)."""
    if tensor.quantization is None or np.dtype(tensor.dtype).kind not in "iu":
        return value
    scale, zero = tensor.quantization.scale, tensor.quantization.zero_point
    return f"({value}.astype(np.float32) - {zero}) * np.float32({scale!r})"


def _frigate(artifact: ExportedArtifact) -> dict[str, bytes]:
    """Its label map and lines of configuration."""
    entry, picture, spec = artifact.entry, artifact.picture, artifact.contract.detection
    labels = artifact.contract.labels or ()
    if spec is None or picture is None or not labels:
        return {}
    files = {"labelmap.txt": "".join(f"{index}  {label}\n" for index, label in enumerate(labels)).encode()}
    tensor, names = entry.inputs[0], tuple(output.name for output in entry.outputs)
    yolo = (spec.row, spec.format, spec.candidates, spec.activation, spec.background, spec.span) == (
        "box scores", "cxcywh", "last", "none", "none", (picture.width, picture.height),
    )  # fmt: skip
    ssd = (entry.format, spec.format, spec.span, spec.suppressed, spec.background) == (
        "tflite", "yxyx", (1, 1), True, "none",
    )  # fmt: skip
    head = (
        ("onnx", "yolo-generic") if entry.format == "onnx" and yolo and len(names) == 1
        else ("cpu", "ssd") if ssd and names == (spec.boxes, spec.classes, spec.scores, spec.count)
        else None
    )  # fmt: skip
    scaled = {(0.0, 255.0): "float", (0.0, 1.0): "float_denorm"}.get((max(picture.mean), min(picture.std)))
    plain = len(set(picture.mean)) == len(set(picture.std)) == 1
    as_bytes = tensor.dtype == "uint8" and pixel_step(picture, tensor)[0] in ("same", "cast")
    dtype = scaled if tensor.dtype == "float32" and plain else "int" if as_bytes else None
    if head is not None and dtype is not None and picture.color != "gray":
        texts = {
            "TITLE": artifact.title, "MODEL": f"model.{entry.format}", "DETECTOR": head[0], "MODEL_TYPE": head[1],
            "WIDTH": str(picture.width), "HEIGHT": str(picture.height), "LAYOUT": (tensor.layout or "NHWC").lower(),
            "DTYPE": dtype, "COLOR": picture.color, "LABELS": js(list(labels)),
        }  # fmt: skip
        files["frigate.yml"] = fill("frigate.yml", texts, {}).encode()
    return files
