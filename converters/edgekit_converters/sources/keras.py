"""Keras files: `.keras` of Keras 3, `.keras` and HDF5 of Keras 1 and 2 through Keras 3 or, where that cannot, tf_keras.

Rules: safe mode stays on and the optimizer is not restored; what is no network of numbers (`keras_config`) is refused before
Keras opens the file, unless the file is trusted; what it declares to unpack to is bounded, and its weights are its own
(`sizes`); the model must have fixed inputs (functional, sequential with an Input, or built).

    source = load(Path("net.keras"), LoadOptions())
"""

from __future__ import annotations

import importlib.util
import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from edgekit_converters.errors import SourceError, one_line
from edgekit_converters.sources import keras_config
from edgekit_converters.sources.model import Note, model_sha256
from edgekit_converters.sources.options import LoadOptions
from edgekit_converters.sources.quiet import import_keras, quiet
from edgekit_converters.sources.shapes import check_finite, check_inputs, check_named, image_layout, pin, unique_names
from edgekit_converters.sources.sizes import check_archive, check_hdf5
from edgekit_converters.sources.traced import Network, Origin, TracedSource, described
from edgekit_runtime.tensors import TensorSpec

__all__ = ["load", "load_h5", "make_layers_scopes", "scope"]

_MAX_CONFIG_BYTES = 64 << 20


@dataclass(frozen=True)
class _File:
    path: Path
    format: str
    config: Any
    version: str  # of the Keras that wrote it, "" where the file does not say
    members: tuple[str, ...] = ()  # of the archive, that are no part of a network, in words


def load(path: Path, options: LoadOptions) -> TracedSource:
    """A `.keras` file."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(path, archive)
            info = archive.getinfo("config.json")
            if info.file_size > _MAX_CONFIG_BYTES:
                _refuse(path, "its config.json is larger than 64 MiB")
            config = json.loads(archive.read(info))
            names = archive.namelist()
            metadata = json.loads(archive.read("metadata.json")) if "metadata.json" in names else {}
    except (zipfile.BadZipFile, KeyError, ValueError, NotImplementedError, RuntimeError, OSError, EOFError) as error:
        _refuse(path, "this is not a .keras file, or it is damaged", error)
    version = metadata.get("keras_version", "") if isinstance(metadata, dict) else ""
    members = tuple(f"it holds '{name}', which may be a program" for name in names if not keras_config.is_weights(name))
    return _load(_File(path, "keras", config, str(version), members), options)


def _check_members(path: Path, archive: zipfile.ZipFile) -> None:
    """Raises SourceError where it, or an HDF5 file in it, declares too much or points outside of itself."""
    check_archive(path, archive)
    for name in archive.namelist():
        if name.endswith((".h5", ".hdf5")):
            import_keras()
            import h5py  # type: ignore[import-untyped]

            with archive.open(name) as member, h5py.File(member, "r") as file:
                check_hdf5(path, file)


def load_h5(path: Path, options: LoadOptions) -> TracedSource:
    """A legacy HDF5 file with the network in it, not only its weights."""
    import_keras()
    import h5py

    try:
        with h5py.File(path, "r") as file:
            check_hdf5(path, file)
            text, version = file.attrs.get("model_config"), file.attrs.get("keras_version", "")
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        _refuse(path, "this is not an HDF5 file, or it is damaged", error)
    if text is None:
        _refuse(path, "the file holds weights only, not the network")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        _refuse(path, "its model_config is damaged", error)
    version = version.decode("utf-8", "replace") if isinstance(version, bytes) else str(version)
    return _load(_File(path, "keras-h5", config, version), options)


def _load(file: _File, options: LoadOptions) -> TracedSource:
    try:
        pieces = list(dict.fromkeys([*keras_config.code(file.config), *file.members]))
    except RecursionError as error:
        _refuse(file.path, "its config is nested too deeply", error)
    if pieces and not options.trust_model:
        raise SourceError(
            f"{pieces[0]}, which edgekit does not run",
            where=str(file.path),
            do="Replace it by a built-in layer, export the model to ONNX, or pass --trust-model if you know the file's author",
        )
    ran = tuple(Note("trusted-code", f"{piece}; it was run, because the model is trusted") for piece in pieces)
    keras, tools, model = _read(file, trusted=bool(pieces))
    where = str(file.path)
    check_finite(((variable.path, np.asarray(variable)) for variable in _variables(model)), where=where)
    inputs = _inputs(keras, model, options, where)
    outputs = unique_names(_output_names(keras, model), where=where, kind="output")
    if tools == ("keras",):
        make_layers_scopes(model)
    flat = keras.Model(list(model.inputs), list(model.outputs), name=scope(model.name))

    def call(*tensors: Any) -> list[Any]:
        answers = flat(list(tensors), training=False)
        return list(answers) if isinstance(answers, (list, tuple)) else [answers]

    network = Network(call, [variable.value for variable in _variables(flat)], tools, flat)
    origin = Origin(file.path, file.format, model_sha256(file.path, options), ran)
    return described(network, origin, inputs, outputs)


def _read(file: _File, *, trusted: bool) -> tuple[Any, tuple[str, ...], Any]:
    """(keras or tf_keras, the distributions, the model)."""
    keras = import_keras()
    try:
        with quiet():
            return keras, ("keras",), keras.models.load_model(file.path, compile=False, safe_mode=not trusted)
    except Exception as error:  # Keras raises a dozen unrelated types on a damaged or foreign file
        old = file.version.startswith(("1.", "2."))
        if old and importlib.util.find_spec("tf_keras") is not None:
            return _read_by_keras_2(file, error, trusted=trusted)
        by = f"; it was saved with Keras {file.version}" if old else ""
        do = "Run: pip install tf-keras (Keras 2) and try again, or save" if old else "Save"
        raise SourceError(
            f"Keras {keras.__version__} cannot read it{by}: {_cause(error)}",
            where=str(file.path),
            do=f"{do} it again with Keras 3 and built-in layers only, or export it to ONNX",
        ) from error


def _read_by_keras_2(file: _File, first: Exception, *, trusted: bool) -> tuple[Any, tuple[str, ...], Any]:
    with quiet():
        import tf_keras

    try:
        with quiet():
            model = tf_keras.models.load_model(file.path, compile=False, safe_mode=not trusted)
    except Exception as error:  # noqa: BLE001 - as Keras does
        raise SourceError(
            f"neither Keras 3 nor tf_keras {tf_keras.__version__} can read it: {_cause(error)}",
            where=str(file.path),
            do="Save it again with built-in layers only, or export it to ONNX",
        ) from first
    return tf_keras, ("tf-keras",), model


def _cause(error: Exception) -> str:
    """What Keras says after a preamble of general advice and the whole config."""
    return one_line(str(error).rpartition("Exception encountered:")[2] or error)


@dataclass(frozen=True)
class _Variable:
    """path: `layer/kernel`. value: the TensorFlow variable."""

    path: str
    value: Any

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.value, dtype)


def _variables(model: Any) -> list[_Variable]:
    """Keras 3 wraps TensorFlow's variables, tf_keras has them bare."""
    return [
        _Variable(v.path, v.value) if hasattr(v, "path") else _Variable(v.name.removesuffix(":0"), v)
        for v in model.variables
    ]


def _inputs(keras: Any, model: Any, options: LoadOptions, where: str) -> tuple[TensorSpec, ...]:
    try:
        tensors, outputs = model.inputs, model.outputs
    except (AttributeError, ValueError):
        tensors = outputs = None
    if not tensors or not outputs:
        raise SourceError(
            "the model has no fixed inputs", where=where, do="Give it a keras.Input, call it once, and save it again"
        )
    given = getattr(model, "input_names", None) or [tensor.name for tensor in tensors]
    names = unique_names(given, where=where, kind="input")
    check_named((*options.shapes, *options.constants), names, where=where)
    prefer = "NCHW" if keras.backend.image_data_format() == "channels_first" else "NHWC"
    specs = []
    for name, tensor in zip(names, tensors, strict=True):
        shape = tuple(-1 if n is None else int(n) for n in tensor.shape)
        if name in options.shapes:
            shape = pin(name, shape, options.shapes[name], where=where)
        layout = image_layout(shape, prefer=prefer)  # type: ignore[arg-type]
        specs.append(TensorSpec(name, name, _dtype(tensor, name, where), shape, layout))
    check_inputs(specs, where=where)
    return tuple(specs)


def _output_names(keras: Any, model: Any) -> Sequence[str]:
    """A dict's keys where the author returned a dict, else the name of the layer that makes each output."""
    structure = getattr(model, "output", None)  # a sequential model that was never called has none
    if isinstance(structure, dict):
        tree = getattr(keras, "tree", None)
        if tree is not None:
            return [str(path[-1]) for path, _ in tree.flatten_with_path(structure)]
        return sorted(map(str, structure))
    if hasattr(model, "output_names"):
        names = [str(name) for name in model.output_names]
    else:
        names = [str(tensor._keras_history.operation.name) for tensor in model.outputs]
    # One layer may have several outputs.
    return [name if names.count(name) == 1 else f"{name}_{names[:i].count(name)}" for i, name in enumerate(names)]


def _dtype(tensor: Any, name: str, where: str) -> str:
    try:
        return np.dtype(str(getattr(tensor.dtype, "name", tensor.dtype))).name
    except TypeError as error:
        raise SourceError(
            f"'{name}' has the dtype {tensor.dtype}, which no board's engine takes",
            where=where,
            do="Use float32 or integer inputs and outputs",
        ) from error


def _refuse(path: Path, what: str, cause: Exception | None = None) -> NoReturn:
    raise SourceError(what, where=str(path), do="Save the whole model again with model.save()") from cause


# Layers' names that TensorFlow takes: a space or a letter with an accent in one ends a trace, because each names a scope.
#
# Rules: only what TensorFlow refuses is replaced, and in memory alone; inputs and outputs keep the author's names in the
# contract, so those are asked for before.
#
#     scope("out put")                # "out_put"
#     make_layers_scopes(model)


_NO_SCOPE = re.compile(r"[^A-Za-z0-9_.\\/>-]")


def scope(name: str) -> str:
    """The name where TensorFlow takes it for a scope's, else one that is near it."""
    allowed = _NO_SCOPE.sub("_", name)
    return allowed if re.match(r"[A-Za-z0-9.]", allowed) else f"t{allowed}"


def make_layers_scopes(model: Any) -> None:
    """Rename the layers of a Keras 3 model, those of models inside it too, and their weights, in place; names stay unique."""
    named = list(_named(model))
    taken = {part.name for part in named}
    for part in named:
        wanted = scope(part.name)
        if wanted == part.name:
            continue
        free = next(name for number in count() if (name := f"{wanted}_{number}" if number else wanted) not in taken)
        taken.add(free)
        part.name = free
    for variable in model.variables:
        value = variable.value
        name, colon, output = value.name.partition(":")
        if scope(name) != name:
            value._handle_name = f"{scope(name)}{colon}{output}"  # what TensorFlow calls it where it saves the graph


def _named(model: Any) -> Iterator[Any]:
    """Layers at any depth, and the plain operations between them."""
    for layer in model._flatten_layers(include_self=True, recursive=True):
        yield layer
        yield from getattr(layer, "operations", ())
