"""TensorFlow SavedModel folders.

Rules: one signature is the model: the one that is named, `serving_default`, or the only one; a SavedModel is a program, so
operators that touch files or call Python are refused before TensorFlow loads anything; inputs and outputs are called as in
the signature, in alphabetical order.

    source = load(Path("exported"), LoadOptions(signature="serving_default"))
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import SourceError
from edgekit_converters.sources.description import Note
from edgekit_converters.sources.digest import folder_sha256, with_options
from edgekit_converters.sources.finite import check_finite
from edgekit_converters.sources.names import unique_names
from edgekit_converters.sources.options import LoadOptions
from edgekit_converters.sources.quiet import import_tensorflow, quiet
from edgekit_converters.sources.shapes import check_inputs, check_named, image_layout, pin
from edgekit_converters.sources.traced import Network, Origin, TracedSource, described
from edgekit_runtime.tensors import TensorSpec

__all__ = ["load"]

_PREFERRED, _INIT = "serving_default", "__saved_model_init_op"
_UNSAFE = frozenset(["ReadFile", "WriteFile", "MatchingFiles", "PyFunc", "PyFuncStateless", "EagerPyFunc"])
_SAVE_AGAIN = "Save it again: model.export(folder) in Keras 3, tf.saved_model.save(model, folder) elsewhere"


def load(path: Path, options: LoadOptions) -> TracedSource:
    """Raises SourceError for a damaged folder, an unclear choice of signature, or what edgekit does not run."""
    graph = _graph(path)
    notes = _checked_operators(path, graph, options)
    name = _signature(path, graph, options)
    check_finite(_constants(graph.graph_def), where=str(path), may_be_infinite=lambda _: True)
    tf = import_tensorflow()
    try:
        with quiet():
            loaded = tf.saved_model.load(str(path), tags=list(graph.meta_info_def.tags))
            function = loaded.signatures[name]
    except Exception as error:  # noqa: BLE001 - TensorFlow raises a dozen unrelated types on a damaged folder
        _refuse(path, f"TensorFlow cannot load it: {_reason(error)}", cause=error)
    variables = list(function.variables)
    check_finite(((v.name.removesuffix(":0"), np.asarray(v)) for v in variables if _is_number(v)), where=str(path))
    specs = function.structured_input_signature[1]
    names, outputs = sorted(specs), sorted(function.structured_outputs)
    inputs = _inputs(names, specs, options, str(path))

    def call(*tensors: Any) -> list[Any]:
        answers = function(**dict(zip(names, tensors, strict=True)))
        return [answers[output] for output in outputs]

    digest = with_options(folder_sha256(path, _files(path)), options)
    origin = Origin(path, "saved-model", digest, notes)
    network = Network(call, variables, holds=loaded)
    return described(network, origin, inputs, unique_names(outputs, where=str(path), kind="output"))


def _graph(path: Path) -> Any:
    """The metagraph for serving, as it stands in the file."""
    import_tensorflow()
    from tensorflow.core.protobuf import saved_model_pb2

    model = saved_model_pb2.SavedModel()
    try:
        model.ParseFromString((path / "saved_model.pb").read_bytes())
    except OSError as error:
        _refuse(path, f"saved_model.pb cannot be read: {error.strerror or error}", "Check its permissions", error)
    except Exception as error:  # noqa: BLE001 - protobuf's DecodeError lives in the C++ package or the Python one
        _refuse(path, "its saved_model.pb is damaged, or no SavedModel", cause=error)
    if not model.meta_graphs:
        _refuse(path, "its saved_model.pb holds no graph")
    serving = [graph for graph in model.meta_graphs if "serve" in graph.meta_info_def.tags]
    if not serving:
        tags = ", ".join(sorted({tag for graph in model.meta_graphs for tag in graph.meta_info_def.tags})) or "none"
        _refuse(path, f"no graph in it is for serving (tags: {tags})")
    return serving[0]


def _checked_operators(path: Path, graph: Any, options: LoadOptions) -> tuple[Note, ...]:
    found = sorted({node.op for node in _nodes(graph.graph_def)} & _UNSAFE)
    if not found:
        return ()
    what = f"it has operators that reach beyond the network: {', '.join(found)}"
    if not options.trust_model:
        _refuse(path, what, "Save it without them, or pass --trust-model if you know the file's author")
    return (Note("trusted-code", f"{what}; they may run, because the model is trusted"),)


def _signature(path: Path, graph: Any, options: LoadOptions) -> str:
    names = sorted(name for name in graph.signature_def if name != _INIT)
    if not names:
        _refuse(path, "it has no signature: nothing says what its inputs are", _SAVE_AGAIN)
    if options.signature is not None:
        if options.signature not in names:
            _refuse(path, f"it has no signature '{options.signature}'", f"It has: {', '.join(names)}")
        return options.signature
    if _PREFERRED not in names and len(names) > 1:
        _refuse(path, f"it has {len(names)} signatures: {', '.join(names)}", f"Choose one: --signature {names[0]}")
    return _PREFERRED if _PREFERRED in names else names[0]


def _inputs(names: list[str], specs: Any, options: LoadOptions, where: str) -> tuple[TensorSpec, ...]:
    check_named((*options.shapes, *options.constants), names, where=where)
    unique_names(names, where=where, kind="input")
    described_inputs = []
    for name in names:
        if specs[name].shape.rank is None:
            raise SourceError(
                f"input '{name}' does not say how many axes it has", where=where, do="Save it with an input signature"
            )
        shape = tuple(-1 if n is None else int(n) for n in specs[name].shape)
        if name in options.shapes:
            if shape[0] not in (-1, 1):
                raise SourceError(
                    f"input '{name}' has a fixed batch of {shape[0]}, which a SavedModel cannot be freed of",
                    where=where,
                    do="Save it again with a free batch: tf.TensorSpec([None, ...])",
                )
            shape = pin(name, shape, options.shapes[name], where=where)
        layout = image_layout(shape, prefer="NHWC")
        described_inputs.append(TensorSpec(name, name, _dtype(specs[name], name, where), shape, layout))
    check_inputs(described_inputs, where=where)
    return tuple(described_inputs)


def _dtype(spec: Any, name: str, where: str) -> str:
    if spec.dtype.name in ("string", "resource", "variant", "bfloat16"):
        raise SourceError(
            f"input '{name}' has the dtype {spec.dtype.name}, which no board's engine takes",
            where=where,
            do="Choose a signature with number inputs (--signature), or save one that decodes nothing",
        )
    return str(np.dtype(spec.dtype.as_numpy_dtype).name)


def _nodes(graph_def: Any) -> Iterator[Any]:
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def _constants(graph_def: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    tf = import_tensorflow()
    for node in _nodes(graph_def):
        if node.op == "Const" and tf.dtypes.as_dtype(node.attr["dtype"].type).is_floating:
            yield node.name, tf.make_ndarray(node.attr["value"].tensor)


def _is_number(variable: Any) -> bool:
    return hasattr(variable, "dtype") and bool(getattr(variable.dtype, "is_floating", False))


def _files(path: Path) -> list[Path]:
    folders = [path / "variables", path / "assets"]
    files = [file for folder in folders if folder.is_dir() for file in folder.rglob("*") if file.is_file()]
    return [path / "saved_model.pb", *files]


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return (text[:300] + "...") if len(text) > 300 else text or type(error).__name__


def _refuse(path: Path, what: str, do: str = _SAVE_AGAIN, cause: Exception | None = None) -> NoReturn:
    raise SourceError(what, where=str(path), do=do) from cause
