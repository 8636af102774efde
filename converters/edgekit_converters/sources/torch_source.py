"""PyTorch networks: `module.pt2` of torch.export, and `module:function` that returns one.

    source = load(Path("net.pt2"), LoadOptions())
    source = load_function(Path("nets:make"), LoadOptions(shapes={"image": (1, 3, 224, 224)}))

Rules:
- a `.pt2` with parts that torch would run is refused unless it is trusted (`torch_archive`); a function is the user's
  own code and is simply called;
- networks run in inference mode on the CPU; inputs have the names of `forward`'s parameters, outputs those of keys or
  fields;
- answers are torch's own. ONNX comes from torch.onnx's exporter for exported programs, once, when the network is
  opened, and must give the same answers;
- the batch is free if torch can export it so, else 1;
- a network that changes its own buffers while it answers keeps a state inside and is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats.onnx_file import rename
from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.recipe.foreign_code import quiet, working_folder_on_path
from edgekit_converters.recipe.user_function import failed, find_function
from edgekit_converters.sources import checked_onnx, float_onnx, shapes, torch_archive
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.sources.source_model import Note, SourceModel, model_sha256, refusing
from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.system.errors import MissingExtraError

_SAVE_AGAIN = "Save it again: torch.export.save(torch.export.export(model.eval(), example_inputs), path)"


def import_torch(where: str) -> Any:
    """Import torch. Raises MissingExtraError with the command that installs it."""
    try:
        with quiet():
            import onnxscript  # noqa: F401  torch.onnx needs it and says so only when it is too late
            import torch
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "onnxscript"):
            raise
        raise MissingExtraError("torch", "reading a PyTorch model", where=where) from error
    return torch


def open_program(path: Path, options: LoadOptions) -> tuple[Any, tuple[str, ...]]:
    """Open a `.pt2` file: its ExportedProgram, and what had to be trusted in it.
    Raises SourceError."""
    torch = import_torch(str(path))
    with refusing(path, "this is not a torch.export file, or it is damaged", _SAVE_AGAIN):
        pieces = tuple(torch_archive.code(torch, path))
    if pieces and not options.trust_model:
        do = "Save it with standard operators and without custom objects"
        do += ", or pass --trust-model if you know the file's author"
        raise SourceError(f"it contains what torch would run on opening it: {pieces[0]}", where=str(path), do=do)
    opened = contextlib.nullcontext(path) if pieces else torch_archive.checked_copy(path)
    with refusing(path, f"torch {torch.__version__} cannot read it:", _SAVE_AGAIN), opened as file:
        return torch.export.load(str(file)), pieces


@dataclass(frozen=True)
class NetworkCall:
    """A network and the arguments of one call.
    names: of the inputs.
    examples: tensors with a batch of 1."""

    module: Any
    names: tuple[str, ...]
    examples: tuple[Any, ...]


def call_network(spec: str, options: LoadOptions) -> NetworkCall:
    """Call `module:function`, which returns the network, alone or with example inputs.
    These are a tensor, a sequence or a dict.
    Raises SourceError if the function is missing, fails, or returns something else, or if inputs have no shapes."""
    torch = import_torch(spec)
    returned = _result(spec)
    module, examples = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not isinstance(module, torch.nn.Module):
        do = "Return the network, or (network, example_inputs)"
        raise SourceError(f"returns a {type(module).__name__}, not a torch.nn.Module", where=spec, do=do)
    module = module.to("cpu").eval()
    parameters = [p for p in inspect.signature(module.forward).parameters.values() if p.kind != p.VAR_KEYWORD]
    if isinstance(examples, Mapping):
        names, tensors = [str(key) for key in examples], list(examples.values())
    elif examples is not None:
        tensors = list(examples) if isinstance(examples, (tuple, list)) else [examples]
        names = [p.name for p in parameters][: len(tensors)]
    else:
        names = [p.name for p in parameters if p.default is p.empty and p.kind != p.VAR_POSITIONAL]
        tensors = [None] * len(names)
    shapes.check_named((*options.shapes, *options.constants), names, where=spec)
    if len(names) != len(tensors) or not names:
        do = "Return one an input"
        raise SourceError(f"gives {len(tensors)} example inputs; forward takes {len(parameters)}", where=spec, do=do)
    missing = [
        name for name, tensor in zip(names, tensors, strict=True) if tensor is None and name not in options.shapes
    ]
    if missing:
        example = " ".join(f"--shape {name}=1,3,224,224" for name in missing)
        what = f"the shape of its input{'s' if len(missing) > 1 else ''} {', '.join(missing)} is not known"
        raise SourceError(what, where=spec, do=f"Give it, such as {example}, or return (network, example_inputs)")
    made = [_example(torch, spec, n, t, options) for n, t in zip(names, tensors, strict=True)]
    return NetworkCall(module, tuple(names), tuple(made))


def _example(torch: Any, spec: str, name: str, tensor: Any, options: LoadOptions) -> Any:
    """Return one item of an example input."""
    if name in options.shapes:
        dtype = tensor.dtype if isinstance(tensor, torch.Tensor) else torch.float32
        sizes = options.shapes[name]
        return torch.randn(sizes, dtype=dtype) if dtype.is_floating_point else torch.zeros(sizes, dtype=dtype)
    if not isinstance(tensor, torch.Tensor) or tensor.dim() == 0:
        do = "Return tensors whose first axis is the batch; fix other arguments in the function"
        raise SourceError(f"its example for the input '{name}' is not a tensor with a batch axis", where=spec, do=do)
    return tensor[:1].detach().to("cpu")


def _result(spec: str) -> Any:
    with working_folder_on_path(), quiet():
        function = find_function(spec, SourceError, "Check the name after the colon")
        try:
            return function()
        except (Exception, SystemExit) as error:  # a function that exits is one that fails, not the end of a build
            raise failed(spec, error, SourceError) from error


def flatten_outputs(outputs: Any, name: str = "") -> tuple[list[str], list[Any]]:
    """Return names and values of the outputs: by key, field or position."""
    if isinstance(outputs, Mapping):
        items = [(str(key), value) for key, value in outputs.items()]
    elif hasattr(outputs, "_fields"):
        items = list(zip(outputs._fields, outputs, strict=True))
    elif isinstance(outputs, (tuple, list)):
        items = [(f"{name or 'output'}_{i}" if len(outputs) > 1 else name, value) for i, value in enumerate(outputs)]
    elif outputs is None:
        return [], []
    else:
        return [name or "output"], [outputs]
    names, values = list[str](), list[Any]()
    for key, value in items:
        more = flatten_outputs(value, key)
        names += more[0]
        values += more[1]
    return names, values


_OPSET = 18  # what the exporter writes by itself; boards' engines take it


@dataclass(frozen=True, eq=False, kw_only=True)
class TorchSource(SourceModel):
    """A PyTorch network.
    module: called with tensors in the order of `inputs`.
    model: its ONNX form, with the contract's names."""

    module: Any = field(repr=False)
    model: Any = field(repr=False)

    def predict(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Run the network in torch, on the CPU, on a batch of any size."""
        return self.answered(inputs, lambda arrays: _answers(self.module, arrays)[1], at_once=self.free_batch)

    @cached_property
    def _onnx(self) -> bytes:
        return float_onnx.finish_onnx(self.model, self)


def load(path: Path, options: LoadOptions) -> TorchSource:
    """Load a `.pt2` file. Raises SourceError with the reason."""
    program, pickled = open_program(path, options)
    notes = tuple(
        Note("trusted-code", f"it holds {part}, which may have run, because the model is trusted") for part in pickled
    )
    names = [str(name) for name in program.graph_signature.user_inputs]
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    sizes = {name: tuple(int(n) if isinstance(n, int) else -1 for n in values[name].shape) for name in names}
    specs = _specs([(name, sizes[name], values[name].dtype) for name in names], options, str(path))
    return _source(path, program, specs, options, notes)


def _specs(found: Iterable[tuple[str, tuple[int, ...], Any]], options: LoadOptions, where: str) -> Sequence[TensorSpec]:
    plain = [(name, shape, str(dtype).removeprefix("torch.")) for name, shape, dtype in found]
    return shapes.described_inputs(plain, options, where=where, prefer="NCHW")


def load_function(path: Path, options: LoadOptions) -> TorchSource:
    """Load `module:function`. The sha256 is of the ONNX form: the code is not the model."""
    where = str(path)
    call = call_network(where, options)
    shapes.check_finite(_weights(call.module.state_dict()), where=where)
    program, free = _exported(call, where)
    named = zip(call.names, call.examples, strict=True)
    sizes = [(name, (-1 if free else 1, *example.shape[1:]), example.dtype) for name, example in named]
    specs = _specs(sizes, LoadOptions(), where)
    source = _source(path, program, specs, options, ())
    return replace(source, sha256=hashlib.sha256(source.onnx()).hexdigest())


def _exported(call: NetworkCall, where: str) -> tuple[Any, bool]:
    """Export the network; also return whether its batch is free."""
    torch = import_torch(where)
    pairs = tuple(
        torch.cat([example, example]) for example in call.examples
    )  # a batch of 1 would be taken for a constant
    batch = torch.export.Dim("batch", min=1, max=1024)
    # Constraint violations and data-dependent shapes have no common type: what is wrong for good fails below as well.
    with contextlib.suppress(Exception), quiet(), torch.no_grad():
        dynamic = tuple({0: batch} for _ in pairs)
        return torch.export.export(call.module, pairs, dynamic_shapes=dynamic), True
    do = "Check --shape, and take branches that depend on values out of forward"
    with refusing(where, "torch.export cannot trace it:", do), torch.no_grad():
        return torch.export.export(call.module, call.examples), False


def _source(
    path: Path, program: Any, inputs: Sequence[TensorSpec], options: LoadOptions, notes: tuple[Note, ...]
) -> TorchSource:
    where = str(path)
    shapes.check_finite(_weights(program.state_dict), where=where)
    module = program.module()
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    zeros = [np.zeros((1, *spec.shape[1:]), spec.dtype) for spec in inputs]
    names = shapes.unique_names(_run(module, zeros, where)[0], where=where, kind="output")
    changed = next((name for name, buffer in module.named_buffers() if not buffer.equal(before[name])), None)
    if changed is not None:
        what = f"the model keeps a state inside: answering writes to its buffer '{changed}'"
        raise SourceError(what, where=where, do="Give it its state as an input and return the new one as an output")
    outputs = shapes.measured_outputs(
        [(n, n) for n in names], lambda arrays: _run(module, arrays, where)[1], inputs, where=where
    )
    model = _onnx_form(program, inputs, names, where)
    checked_onnx.pin_shapes(where, model, options)
    float_onnx.check_suppression(model, inputs, where, "")
    pairs = shapes.state_pairs(inputs, outputs)
    return TorchSource(
        path=path,
        format="torch-export" if path.is_file() else "torch-module",
        sha256=model_sha256(path, options) if path.is_file() else "",
        inputs=tuple(inputs),
        outputs=outputs,
        state="explicit" if pairs else "none",
        state_pairs=pairs,
        notes=notes,
        module=module,
        model=model,
    )


def _onnx_form(program: Any, inputs: Sequence[TensorSpec], outputs: Sequence[str], where: str) -> Any:
    torch = import_torch(where)
    with refusing(where, "torch cannot write it as ONNX:", "Replace the operator that it names"):
        model = torch.onnx.export(program, dynamo=True, opset_version=_OPSET, verbose=False).model_proto
    del model.metadata_props[:]
    for node in model.graph.node:
        del node.metadata_props[:]  # stack traces of the author's machine
        node.doc_string = ""
    pairs = [*zip(model.graph.input, (spec.name for spec in inputs), strict=True)]
    pairs += zip(model.graph.output, outputs, strict=True)
    rename(model, {value.name: name for value, name in pairs})
    checked_onnx.check_graph(where, model)
    if unused := float_onnx.unused_inputs(model.graph):
        raise SourceError(f"its input '{unused[0]}' is unused", where=where, do="Leave it out of forward")
    return model


def _run(module: Any, arrays: list[NDArray[Any]], where: str) -> tuple[list[str], list[NDArray[Any]]]:
    with refusing(where, "the model does not run:", "Check --shape"):
        return _answers(module, arrays)


def _answers(module: Any, arrays: Sequence[NDArray[Any]]) -> tuple[list[str], list[NDArray[Any]]]:
    """Return names and values of the outputs."""
    import torch

    with torch.no_grad():
        names, values = flatten_outputs(module(*(torch.from_numpy(array) for array in arrays)))
    return names, [np.array(value.detach()) for value in values]


def _weights(tensors: Any) -> Any:
    return ((name, np.asarray(tensor.detach())) for name, tensor in tensors.items() if tensor.is_floating_point())
