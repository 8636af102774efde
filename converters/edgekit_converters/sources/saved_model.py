"""TensorFlow SavedModel folders.

    source = load(Path("exported"), LoadOptions(signature="serving_default"))

Rules:
- one signature is the model: the named one, `serving_default`, or the only one; inputs and outputs have the signature's
  names, in alphabetical order;
- a SavedModel is a program: only what the signature reaches is imported, and an operator beyond arithmetic is refused
  before TensorFlow imports anything, unless the model is trusted;
- the folder's Python objects are not rebuilt: the signature's graph and the checkpoint are the model, and weights
  become constants.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from numpy.typing import NDArray

from edgekit_converters.recipe.artifact import TensorFlowNetwork
from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.recipe.foreign_code import import_tensorflow
from edgekit_converters.sources import tensorflow_source
from edgekit_converters.sources.load import check_unpacked
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.sources.shapes import check_finite, described_inputs, unique_names
from edgekit_converters.sources.source_model import Note, refusing, saved_model_sha256
from edgekit_converters.sources.tensorflow_source import TracedSource, describe_traced, state_error
from edgekit_runtime.contract.spec import TensorSpec

_PREFERRED, _INIT = "serving_default", "__saved_model_init_op"
_VARIABLES = ("VarHandleOp", "Variable", "VariableV2")
_RESTORES = {"RestoreV2", "RestoreSlice", "Restore", "AssignVariableOp", "Assign"}
_SAVE_AGAIN = "Save it again: model.export(folder) in Keras 3, tf.saved_model.save(model, folder) elsewhere"
_DO_WITHOUT = (
    "Save a signature that takes and returns numbers, without them (of a Keras model, the layers behind its text or "
    "lookup layer), or pass --trust-model if you know the file's author"
)


@dataclass(frozen=True)
class _Program:
    """A signature and the part of the graph that it runs. variables: names of their nodes."""

    graph: Any
    signature: Any
    saver: Any
    init: str = ""

    @property
    def inputs(self) -> list[str]:
        return sorted(self.signature.inputs)

    @property
    def outputs(self) -> list[str]:
        return sorted(self.signature.outputs)

    @property
    def variables(self) -> list[str]:
        return [node.name for node in self.graph.node if node.op in _VARIABLES]


def load(path: Path, options: LoadOptions) -> TracedSource:
    """Load a SavedModel.
    Raises SourceError for a damaged folder, an unclear choice of signature, or what edgekit does not run."""
    # The metagraph for serving, as it stands in the file
    import_tensorflow()
    from tensorflow.core.protobuf import saved_model_pb2

    model = saved_model_pb2.SavedModel()
    with refusing(path, "its saved_model.pb is damaged, or not a SavedModel", _SAVE_AGAIN):
        model.ParseFromString((path / "saved_model.pb").read_bytes())
    if not model.meta_graphs:
        _refuse(path, "its saved_model.pb contains no graph")
    serving = [graph for graph in model.meta_graphs if "serve" in graph.meta_info_def.tags]
    if not serving:
        tags = ", ".join(sorted({tag for graph in model.meta_graphs for tag in graph.meta_info_def.tags})) or "none"
        _refuse(path, f"it has no graph for serving (tags: {tags})")
    graph = serving[0]
    program, notes = _program(path, graph, _signature(path, graph, options), options)
    tf = import_tensorflow()
    unpacked, graphs = 0, (program.graph.node, *(function.node_def for function in program.graph.library.function))
    constants = [node for nodes in graphs for node in nodes if node.op == "Const"]
    for tensor in (node.attr["value"].tensor for node in constants):
        sides = [max(int(side.size), 0) for side in tensor.tensor_shape.dim]
        unpacked += math.prod(sides) * tf.dtypes.as_dtype(tensor.dtype).size
    check_unpacked(path, unpacked, (path / "saved_model.pb").stat().st_size, "saved_model.pb")
    check_finite(_floating(constants), where=str(path), may_be_infinite=lambda _: True)
    inputs = _inputs(program, options, str(path))
    function, weights = _function(path, program)
    check_finite(weights, where=str(path))

    def call(*tensors: Any) -> list[Any]:
        return list(function(*tensors))

    network, sha256 = TensorFlowNetwork(call, holds=function), saved_model_sha256(path, options)
    outputs = unique_names(program.outputs, where=str(path), kind="output")
    return describe_traced(network, inputs, outputs, path=path, format="saved-model", sha256=sha256, notes=notes)


def _program(path: Path, graph: Any, name: str, options: LoadOptions) -> tuple[_Program, tuple[Note, ...]]:
    """Return what the signature runs.
    Raises SourceError for operators beyond arithmetic, and for a state inside."""
    signature = graph.signature_def[name]
    odd = [key for info in (signature.inputs, signature.outputs) for key in info if not info[key].name]
    if odd:
        _refuse(path, f"'{odd[0]}' in its signature is not a plain tensor", "Save a signature with plain tensors")
    values = [info.name for info in (*signature.inputs.values(), *signature.outputs.values())]
    nodes = tensorflow_source.reachable_nodes(graph.graph_def, values)
    if tensorflow_source.writes_state(nodes):
        raise state_error([node.name for node in nodes if node.op in _VARIABLES], str(path))
    foreign = tensorflow_source.beyond_arithmetic(nodes)
    saver = graph.saver_def
    restored = tensorflow_source.reachable_nodes(graph.graph_def, [saver.restore_op_name])
    if any(node.op in _VARIABLES for node in nodes):
        foreign += sorted({*tensorflow_source.beyond_arithmetic(restored)} - _RESTORES - {*foreign})
    if not foreign:
        kept = [*values, saver.restore_op_name, saver.filename_tensor_name]
        return _Program(tensorflow_source.prune(graph.graph_def, kept), signature, saver), ()
    listed = ", ".join(foreign[:5]) + (", ..." if len(foreign) > 5 else "")
    what = f"it has operators that do more than arithmetic on numbers: {listed}"
    if not options.trust_model:
        _refuse(path, what, _DO_WITHOUT)
    init = next((info.name for info in graph.signature_def[_INIT].outputs.values()), "")
    note = Note("trusted-code", f"{what}; they may run, because the model is trusted")
    return _Program(graph.graph_def, signature, saver, init.partition(":")[0]), (note,)


def _function(path: Path, program: _Program) -> tuple[Any, Iterator[tuple[str, NDArray[Any]]]]:
    """Return a TensorFlow function of the signature's inputs, and its weights by name.
    The checkpoint's values replace variables."""
    tf, graph = import_tensorflow(), program.graph
    ends = [[info[key].name for key in sorted(info)] for info in (program.signature.inputs, program.signature.outputs)]
    names = {node.name for node in graph.node}
    for node in list(graph.node):
        reader = f"{node.name}/Read/ReadVariableOp"  # where TensorFlow's own freezing looks for a variable's value
        if node.op == "VarHandleOp" and reader not in names:
            graph.node.add(name=reader, op="ReadVariableOp", input=[node.name]).attr["dtype"].CopyFrom(
                node.attr["dtype"]
            )
    with refusing(path, "TensorFlow cannot load it:", _SAVE_AGAIN):
        with tf.Graph().as_default() as opened, tf.compat.v1.Session(graph=opened) as session:
            tf.compat.v1.import_graph_def(graph, name="")
            if program.variables:
                checkpoint = str(path / "variables" / "variables")
                session.run(program.saver.restore_op_name, {program.saver.filename_tensor_name: checkpoint})
            if program.init:
                session.run(program.init)
            freeze = tf.compat.v1.graph_util.convert_variables_to_constants
            kept = sorted({name.partition(":")[0] for side in ends for name in side})
            frozen = freeze(session, opened.as_graph_def(), kept)
        for function in frozen.library.function:
            function.attr.pop("_input_shapes", None)  # of before, when weights were arguments
        for nodes in (frozen.node, *(function.node_def for function in frozen.library.function)):
            for node in nodes:
                node.attr.pop("_gradient_op_type", None)  # swish has one, and the converter cannot save it
        _name_by_content(frozen)
        whole = tf.compat.v1.wrap_function(lambda: tf.compat.v1.import_graph_def(frozen, name=""), [])
        network = whole.prune(*ends)
    variables = {*program.variables}
    return network, _floating(node for node in frozen.node if node.name in variables)


def _name_by_content(graph: Any) -> None:
    """Add a digest of the whole graph to each function's name, wherever it is called.
    TensorFlow keeps one list of functions a process, and refuses a second one of a name: another model's, or the very
    model that this process has just saved."""
    digest = hashlib.sha256(graph.SerializeToString(deterministic=True)).hexdigest()[:12]
    names = {function.signature.name: f"{function.signature.name}_{digest}" for function in graph.library.function}
    for function in graph.library.function:
        function.signature.name = names[function.signature.name]
    for gradient in graph.library.gradient:
        gradient.function_name = names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        for node in nodes:
            node.op = names.get(node.op, node.op)
            for value in node.attr.values():
                for called in [value.func] if value.HasField("func") else value.list.func:
                    called.name = names.get(called.name, called.name)


def _signature(path: Path, graph: Any, options: LoadOptions) -> str:
    names = sorted(name for name in graph.signature_def if name != _INIT)
    if not names:
        _refuse(path, "it has no signature, so its inputs are unknown", _SAVE_AGAIN)
    if options.signature is not None:
        if options.signature not in names:
            _refuse(path, f"it has no signature '{options.signature}'", f"It has: {', '.join(names)}")
        return options.signature
    if _PREFERRED not in names and len(names) > 1:
        _refuse(path, f"it has {len(names)} signatures: {', '.join(names)}", f"Choose one: --signature {names[0]}")
    return _PREFERRED if _PREFERRED in names else names[0]


def _inputs(program: _Program, options: LoadOptions, where: str) -> tuple[TensorSpec, ...]:
    found = []
    for name in program.inputs:
        info = program.signature.inputs[name]
        if info.tensor_shape.unknown_rank:
            do = "Save it with an input signature"
            raise SourceError(f"input '{name}' has an unknown number of axes", where=where, do=do)
        shape = tuple(-1 if axis.size < 0 else int(axis.size) for axis in info.tensor_shape.dim)
        if name in options.shapes and shape[0] not in (-1, 1):
            what = f"input '{name}' has a fixed batch of {shape[0]}, which a SavedModel cannot be freed of"
            raise SourceError(what, where=where, do="Save it again with a free batch: tf.TensorSpec([None, ...])")
        dtype = import_tensorflow().dtypes.as_dtype(info.dtype)
        if dtype.name in ("string", "resource", "variant", "bfloat16"):
            what = f"input '{name}' has the dtype {dtype.name}, which no board's engine takes"
            do = "Choose a signature with number inputs (--signature), or save one that decodes nothing"
            raise SourceError(what, where=where, do=do)
        found.append((name, shape, dtype.as_numpy_dtype))
    return described_inputs(found, options, where=where, prefer="NHWC")


def _floating(constants: Iterable[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    tf = import_tensorflow()
    for node in constants:
        if tf.dtypes.as_dtype(node.attr["dtype"].type).is_floating:
            yield node.name, tf.make_ndarray(node.attr["value"].tensor)


def _refuse(path: Path, what: str, do: str = _SAVE_AGAIN, cause: Exception | None = None) -> NoReturn:
    raise SourceError(what, where=str(path), do=do) from cause
