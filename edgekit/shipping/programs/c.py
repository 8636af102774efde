"""`predict.c`: C99 on ONNX Runtime's C API, with a Makefile and a `main.c` that checks it."""

from __future__ import annotations

import math

import numpy as np

from edgekit.shipping.programs import numbers
from edgekit.shipping.programs.artifact import ExportedArtifact, Program
from edgekit.shipping.programs.numbers import allowed, golden_bin, size_of
from edgekit.shipping.programs.template import c_text, fill
from edgekit_runtime.contract.spec import TensorSpec

_BEST = 5


def write(artifact: ExportedArtifact) -> Program:
    contract, entry, tensor = artifact.contract, artifact.entry, artifact.entry.inputs[0]
    item, labels = contract.input(tensor.name).shape, contract.labels
    at = dict(zip((one.name for one in entry.outputs), _offsets(entry.outputs), strict=True))
    texts, facts = numbers.fillings(artifact, lambda name: str(at[name]), c_text)
    sizes = {one.name: size_of(one) for one in entry.outputs}
    words = [math.ceil(size_of(one) * np.dtype(one.dtype).itemsize / 8) for one in entry.outputs]
    classes = sizes[contract.outputs[0].name]
    texts |= {
        "TYPE": _type(tensor)[0],
        "ORT_TYPE": _type(tensor)[1],
        "INPUT": c_text(tensor.tensor),
        "OUTPUT_TENSORS": ", ".join(c_text(one.tensor) for one in entry.outputs),
        "OUTPUT_COUNT": str(len(entry.outputs)),
        "SHAPE": _shape(tensor),
        "VALUES": str(sum(sizes.values())),
        "RAW_WORDS": str(sum(words)),
        "CLASS_COUNT": str(classes),
        "BEST": str(min(_BEST, classes)),
        "VECTOR_SIZE": str(sizes[contract.embedding.output]) if contract.embedding else "",
        "ITEM": " x ".join(map(str, item)) + (" pixels, a byte each" if artifact.picture else " floats"),
        "ITEM_SIZE": str(math.prod(item)),
        "ITEM_TYPE": "uint8_t" if artifact.picture else "float",
        "FILE": "photo.ppm" if artifact.picture else "item.f32",
        "CHECKED": ", ".join(
            f"{{{c_text(one.name)}, {size_of(one)}, {allowed(artifact, one)!r}}}" for one in entry.outputs
        ),
        "SURE": "1 / (1 + exp(-sure))" if facts.get("sigmoid") else "sure",
        **_outputs(entry.outputs, words),
    }
    facts |= {"floats": all(one.dtype == "float32" for one in entry.outputs)}
    names = ("predict.h", "predict.c", "main.c", "Makefile")
    files = {name: fill(name, texts, facts).encode() for name in names}
    files["golden.bin"] = golden_bin(artifact)[0]
    if labels is not None:
        lines = "".join(f"    {c_text(label)},\n" for label in labels)
        files["labels.h"] = f"static const char *const LABELS[] = {{\n{lines}}};\n".encode()
    return Program(files, ("libonnxruntime-dev",), ("make check",))


def _offsets(tensors: tuple[TensorSpec, ...]) -> list[int]:
    """Where each begins among the values of all."""
    offsets = [0]
    for tensor in tensors[:-1]:
        offsets.append(offsets[-1] + size_of(tensor))
    return offsets


def _type(tensor: TensorSpec) -> tuple[str, str]:
    """Its numbers in C and in ONNX Runtime."""
    real = tensor.dtype == "float32"
    name = "FLOAT" if real else tensor.dtype.upper()
    return "float" if real else f"{tensor.dtype}_t", f"ONNX_TENSOR_ELEMENT_DATA_TYPE_{name}"


def _shape(tensor: TensorSpec) -> str:
    return ", ".join(map(str, (1, *tensor.shape[1:])))


def _outputs(tensors: tuple[TensorSpec, ...], words: list[int]) -> dict[str, str]:
    """Lines that give each output its memory, and that make floats of its numbers."""
    made, real = [], []
    floats = all(one.dtype == "float32" for one in tensors)
    for number, (tensor, offset) in enumerate(zip(tensors, _offsets(tensors), strict=True)):
        (kind, name), size = _type(tensor), np.dtype(tensor.dtype).itemsize
        place = f"values + {offset}" if floats else f"raw + {sum(words[:number])}"
        made.append(
            f"    static const int64_t shape_{number}[] = {{{_shape(tensor)}}};\n"
            f"    if (make(&outputs[{number}], {place}, {size_of(tensor) * size}, shape_{number}, "
            f"{len(tensor.shape)}, {name})) return -1;"
        )
        value = f"(float)((const {kind} *)(raw + {sum(words[:number])}))[i]"
        if tensor.quantization is not None:
            scale, zero = numbers.float32(tensor.quantization.scale), tensor.quantization.zero_point
            value = f"({value} - {zero}) * (float){scale}"
        real.append(f"    for (int i = 0; i < {size_of(tensor)}; i++) values[{offset} + i] = {value};")
    return {"MAKE_OUTPUTS": "\n".join(made), "REAL": "\n".join(real)}
