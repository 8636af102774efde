"""Keras files: `.keras`, and HDF5 of Keras 1 and 2, through Keras 3 or else tf_keras.

    source = load(Path("net.keras"), LoadOptions())
    for piece in code(config): print(piece)         # "the layer 'double' is a Lambda: it holds Python code"

Rules:
- classes, functions and activations must be in a list here, else the file is refused before Keras opens it, unless it
  is trusted; modules must be Keras' own, because Keras imports what a config names;
- safe mode stays on; the optimizer and the training's settings are not read;
- a file's declared sizes are bounded, and its weights are its own (`load.check_archive`);
- the model must have fixed inputs (functional, sequential with an Input, or built).
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

from edgekit_converters.recipe.artifact import TensorFlowNetwork
from edgekit_converters.recipe.conversion_errors import SourceError, one_line
from edgekit_converters.recipe.foreign_code import import_keras, quiet
from edgekit_converters.sources.load import check_archive, check_hdf5
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.sources.shapes import check_finite, described_inputs, unique_names
from edgekit_converters.sources.source_model import Note, allowed, model_sha256, refusing
from edgekit_converters.sources.tensorflow_source import TracedSource, describe_traced
from edgekit_runtime.contract.spec import TensorSpec

_MODULE = re.compile(
    r"builtins|keras|tf_keras"
    r"|(keras|tf_keras|tensorflow\.keras|tensorflow\.python\.keras)(\.src)?\.(layers|models|engine"
    r"|initializers|regularizers|constraints|activations|dtype_policies|mixed_precision|quantizers)(\.\w+)*"
    r"|keras\.src\.dtype_policies\.\w+|keras(\.src)?\.ops(\.(numpy|nn|math|linalg|image|einops|core))?"
)
_OPERATIONS = re.compile(r"keras(\.src)?\.ops(\.(numpy|nn|math|linalg|image|einops))?")
"""Modules of Keras whose classes are arithmetic, all of them."""
_CLASSES = allowed("keras")["classes"]
_FUNCTIONS = allowed("keras")["functions"]
_SAVE_WHOLE = "Save the whole model again with model.save()"
_REPLACE = (
    "Replace it by a built-in layer, export the model to ONNX, or pass --trust-model if you know the file's author"
)
_SPLIT = (
    "Save the layers behind it as a model of their own, such as keras.Sequential([keras.Input((LENGTH,), "
    "dtype='int64'), *model.layers[1:]]), and run this layer in your application"
)
_TRUST_NUMBERS = "; or pass --trust-model if it takes numbers and you know the file's author"
_OF_WORDS = frozenset(["TextVectorization", "StringLookup"])
_LOOKUPS = _OF_WORDS | {"IntegerLookup", "Hashing", "HashedCrossing"}
"""Layers of Keras that turn words or keys into numbers, which no board's engine does."""
_NAMED = re.compile(r"(\w+_)?(activation|initializer|regularizer|constraint)")
_CALLED = allowed("keras")["called"]
_SUPPORTED = re.compile(r"(math|nn|compat\.v1\.math)\.(?P<name>\w+)")
_UNREAD = ("compile_config", "training_config")


def is_weights(name: str) -> bool:
    """Whether a `.keras` archive of a plain network has such a member."""
    return (
        re.fullmatch(r"config\.json|metadata\.json|edgekit\.json|[\w.-]+\.weights\.(h5|json)|assets/", name) is not None
    )


def code(config: Any, layer: str = "", key: str = "") -> Iterator[str]:
    """Yield what would run code, at any depth of a model's config. key: of the value."""
    if isinstance(config, list):
        for value in config:
            yield from code(value, layer, key)
    elif isinstance(config, str):
        # `glorot_uniform` -> `GlorotUniform`, `l2` -> `L2`
        camel = config if config[:1].isupper() else "".join(p[:1].upper() + p[1:] for p in config.split("_"))
        if _NAMED.fullmatch(key) and config not in _FUNCTIONS and camel not in _CLASSES:
            yield f"the layer '{layer}' has the {key} '{config}', which is not one of Keras' own"
    elif isinstance(config, dict):
        inner = config.get("config")
        named = inner.get("name") if isinstance(inner, dict) else None
        layer = str(named or config.get("name") or layer)
        found = _piece(config, layer) if "class_name" in config else ""
        if found:
            yield found
            return
        for name, value in config.items():
            if name not in _UNREAD:
                yield from code(value, layer, name)


def _piece(config: dict[str, Any], layer: str) -> str:
    """Return what code one object of a config would run, "" if it only computes."""
    kind, module, inner = config["class_name"], config.get("module"), config.get("config")
    if kind in ("Lambda", "__lambda__"):
        return f"the layer '{layer or 'lambda'}' is a Lambda: it holds Python code"
    place = f"{module}.{kind}" if module else str(kind)
    if module is not None and not (isinstance(module, str) and _MODULE.fullmatch(module)):
        return f"the layer '{layer}' is of {place}: it needs that Python code"
    if kind == "function":
        known = isinstance(inner, str) and inner in _FUNCTIONS
        return "" if known else f"the layer '{layer}' calls {inner}, which is not one of Keras' own activations"
    if kind in ("TFOpLambda", "SlicingOpLambda"):
        function = str(inner.get("function", "")) if isinstance(inner, dict) else ""
        # TensorFlow exports one function under several names: `add`, `math.add`, `compat.v1.math.add`
        match = _SUPPORTED.fullmatch(function)
        known = function in _CALLED or (match is not None and match["name"] in _CALLED)
        return "" if known else f"the layer '{layer}' calls tf.{function}, which does more than arithmetic on numbers"
    operation = _OPERATIONS.fullmatch(module or "") is not None
    if isinstance(kind, str) and (kind in _CLASSES or (operation and kind.isidentifier())):
        return ""
    return f"the layer '{layer}' is of {place}, which is not a layer of Keras that only computes"


def _lookups(config: Any) -> Iterator[str]:
    """Yield the classes of lookup layers, at any depth."""
    if isinstance(config, dict):
        if config.get("class_name") in _LOOKUPS:
            yield config["class_name"]
        for value in config.values():
            yield from _lookups(value)
    elif isinstance(config, list):
        for value in config:
            yield from _lookups(value)


_MAX_CONFIG_BYTES = 64 << 20


@dataclass(frozen=True)
class _KerasFile:
    path: Path
    format: str
    config: Any
    version: str  # of the Keras that wrote it, "" where the file does not say
    members: tuple[str, ...] = ()  # of the archive, that are not part of a network, in words


def load(path: Path, options: LoadOptions) -> TracedSource:
    """Load a `.keras` file."""
    with refusing(path, "this is not a .keras file, or it is damaged", _SAVE_WHOLE), zipfile.ZipFile(path) as archive:
        check_archive(path, archive)
        for name in archive.namelist():
            if name.endswith((".h5", ".hdf5")):
                import_keras()
                import h5py  # type: ignore[import-untyped]

                with archive.open(name) as member, h5py.File(member, "r") as file:
                    check_hdf5(path, file)
        info = archive.getinfo("config.json")
        if info.file_size > _MAX_CONFIG_BYTES:
            _refuse(path, "its config.json is larger than 64 MiB")
        config = json.loads(archive.read(info))
        names = archive.namelist()
        metadata = json.loads(archive.read("metadata.json")) if "metadata.json" in names else {}
    version = metadata.get("keras_version", "") if isinstance(metadata, dict) else ""
    members = tuple(f"it holds '{name}', which may be a program" for name in names if not is_weights(name))
    return _load(_KerasFile(path, "keras", config, str(version), members), options)


def load_h5(path: Path, options: LoadOptions) -> TracedSource:
    """Load a legacy HDF5 file that contains the network, not only weights."""
    import_keras()
    import h5py

    with refusing(path, "this is not an HDF5 file, or it is damaged", _SAVE_WHOLE), h5py.File(path, "r") as file:
        check_hdf5(path, file)
        text, version = file.attrs.get("model_config"), file.attrs.get("keras_version", "")
    if text is None:
        _refuse(path, "the file contains only weights, not the network")
    with refusing(path, "its model_config is damaged", _SAVE_WHOLE):
        config = json.loads(text)
    version = version.decode("utf-8", "replace") if isinstance(version, bytes) else str(version)
    return _load(_KerasFile(path, "keras-h5", config, version), options)


def _load(file: _KerasFile, options: LoadOptions) -> TracedSource:
    try:
        pieces = list(dict.fromkeys([*code(file.config), *file.members]))
    except RecursionError as error:
        _refuse(file.path, "its config is nested too deeply", error)
    lookups = list(_lookups(file.config))
    if pieces and len(lookups) == len(pieces) and not options.trust_model:
        what = f"{pieces[0]}: boards take numbers that are ready for arithmetic"
        do = f"{_SPLIT}{'' if _OF_WORDS & set(lookups) else _TRUST_NUMBERS}"
        raise SourceError(what, where=str(file.path), do=do)
    if pieces and not options.trust_model:
        raise SourceError(f"{pieces[0]}, which edgekit does not run", where=str(file.path), do=_REPLACE)
    ran = tuple(Note("trusted-code", f"{piece}; it was run, because the model is trusted") for piece in pieces)
    keras, tools, model = _read(file, trusted=bool(pieces))
    where = str(file.path)
    check_finite(((path, np.asarray(value)) for path, value in _variables(model)), where=where)
    inputs = _inputs(keras, model, options, where)
    outputs = unique_names(_output_names(keras, model), where=where, kind="output")
    if tools == ("keras",):
        make_layers_scopes(model)
    flat = keras.Model(list(model.inputs), list(model.outputs), name=scope(model.name))

    def call(*tensors: Any) -> list[Any]:
        answers = flat(list(tensors), training=False)
        return list(answers) if isinstance(answers, (list, tuple)) else [answers]

    network = TensorFlowNetwork(call, [value for _, value in _variables(flat)], tools=tools, holds=flat)
    sha256 = model_sha256(file.path, options)
    return describe_traced(network, inputs, outputs, path=file.path, format=file.format, sha256=sha256, notes=ran)


def _read(file: _KerasFile, *, trusted: bool) -> tuple[Any, tuple[str, ...], Any]:
    """Return keras or tf_keras, its distributions, and the model."""
    keras = import_keras()
    try:
        with quiet():
            return keras, ("keras",), keras.models.load_model(file.path, compile=False, safe_mode=not trusted)
    except Exception as error:  # Keras raises a dozen unrelated types on a damaged or foreign file
        old = file.version.startswith(("1.", "2."))
        if old and importlib.util.find_spec("tf_keras") is not None:
            with quiet():
                import tf_keras
            try:
                with quiet():
                    model = tf_keras.models.load_model(file.path, compile=False, safe_mode=not trusted)
            except Exception as again:  # noqa: BLE001 - as Keras does
                what = f"neither Keras 3 nor tf_keras {tf_keras.__version__} can read it: {_cause(again)}"
                do = "Save it again with built-in layers only, or export it to ONNX"
                raise SourceError(what, where=str(file.path), do=do) from error
            return tf_keras, ("tf-keras",), model
        by = f"; it was saved with Keras {file.version}" if old else ""
        do = "Run: pip install tf-keras (Keras 2) and try again, or save" if old else "Save"
        what = f"Keras {keras.__version__} cannot read it{by}: {_cause(error)}"
        do = f"{do} it again with Keras 3 and built-in layers only, or export it to ONNX"
        raise SourceError(what, where=str(file.path), do=do) from error


def _cause(error: Exception) -> str:
    """Return Keras's message without its preamble and the config."""
    return one_line(str(error).rpartition("Exception encountered:")[2] or error)


def _variables(model: Any) -> list[tuple[str, Any]]:
    """Return paths and TensorFlow's variables, which Keras 3 wraps and tf_keras does not."""
    return [(v.path, v.value) if hasattr(v, "path") else (v.name.removesuffix(":0"), v) for v in model.variables]


def _inputs(keras: Any, model: Any, options: LoadOptions, where: str) -> tuple[TensorSpec, ...]:
    try:
        tensors, outputs = model.inputs, model.outputs
    except (AttributeError, ValueError):
        tensors = outputs = None
    if not tensors or not outputs:
        do = "Give it a keras.Input, call it once, and save it again"
        raise SourceError("the model has no fixed inputs", where=where, do=do)
    names = getattr(model, "input_names", None) or [tensor.name for tensor in tensors]
    sizes = [tuple(-1 if n is None else int(n) for n in tensor.shape) for tensor in tensors]
    dtypes = [str(getattr(tensor.dtype, "name", tensor.dtype)) for tensor in tensors]
    first = keras.backend.image_data_format() == "channels_first"
    return described_inputs(
        zip(names, sizes, dtypes, strict=True), options, where=where, prefer="NCHW" if first else "NHWC"
    )


def _output_names(keras: Any, model: Any) -> Sequence[str]:
    """Return the keys of the returned dict, or the names of the last layers."""
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


def _refuse(path: Path, what: str, cause: Exception | None = None) -> NoReturn:
    raise SourceError(what, where=str(path), do=_SAVE_WHOLE) from cause


_NO_SCOPE = re.compile(r"[^A-Za-z0-9_.\\/>-]")


def scope(name: str) -> str:
    """Return the name, changed where TensorFlow does not accept it as a scope."""
    allowed = _NO_SCOPE.sub("_", name)
    return allowed if re.match(r"[A-Za-z0-9.]", allowed) else f"t{allowed}"


def make_layers_scopes(model: Any) -> None:
    """Give a Keras 3 model's layers and weights unique names that are valid scopes.
    In place; a space or an accent in a name ends a trace. Ask for inputs' and outputs' names before."""
    named = []
    for layer in model._flatten_layers(include_self=True, recursive=True):
        named += [layer, *getattr(layer, "operations", ())]  # the plain operations between layers
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
