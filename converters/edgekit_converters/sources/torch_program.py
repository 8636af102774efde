"""PyTorch: how a person's network is found, called with examples, and taken apart into named tensors.

Rules: a `.pt2` with parts that torch would run is refused unless it is trusted (`torch_archive`); a function is the person's
own code and is simply called; networks are put in inference mode on the CPU; inputs are called as the parameters
of `forward`, outputs as their keys or fields.

    names, values = flat({"boxes": boxes, "scores": scores})        # ["boxes", "scores"]
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import traceback
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from edgekit_converters.errors import SourceError, one_line
from edgekit_converters.sources import torch_archive
from edgekit_converters.sources.options import LoadOptions
from edgekit_converters.sources.quiet import quiet
from edgekit_converters.sources.shapes import check_named
from edgekit_runtime.errors import MissingExtraError

__all__ = ["Called", "called", "flat", "import_torch", "open_program"]

_SAVE_AGAIN = "Save it again: torch.export.save(torch.export.export(model.eval(), example_inputs), path)"


def import_torch(where: str) -> Any:
    """The torch module. Raises MissingExtraError with the command that adds it."""
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
    """A `.pt2` file -> its ExportedProgram, and what had to be trusted in it. Raises SourceError."""
    torch = import_torch(str(path))
    try:
        pieces = tuple(torch_archive.code(torch, path))
    except (
        zipfile.BadZipFile,
        OSError,
        ValueError,
        AttributeError,
        KeyError,
        TypeError,
        EOFError,
        RuntimeError,
    ) as error:
        _refuse(path, "this is not a torch.export file, or it is damaged", cause=error)
    if pieces and not options.trust_model:
        _refuse(
            path,
            f"it holds what torch would run when it opens it: {pieces[0]}",
            "Save it with standard operators and without custom objects, or pass --trust-model if you know the file's author",
        )
    try:
        with quiet(), contextlib.nullcontext(path) if pieces else torch_archive.checked_copy(path) as file:
            return torch.export.load(str(file)), pieces
    except Exception as error:  # noqa: BLE001 - torch raises a dozen unrelated types on a damaged or foreign file
        _refuse(path, f"torch {torch.__version__} cannot read it: {one_line(error)}", cause=error)


@dataclass(frozen=True)
class Called:
    """A network and one call of it. names: of the inputs. examples: tensors with a batch of 1. free: of any batch."""

    module: Any
    names: tuple[str, ...]
    examples: tuple[Any, ...]


def called(spec: str, options: LoadOptions) -> Called:
    """`module:function` -> the network that it returns, alone or with example inputs: a tensor, a sequence or a dict.

    Raises SourceError where the function is missing, fails, or returns something else; and where inputs have no shapes.
    """
    torch = import_torch(spec)
    returned = _result(spec)
    module, examples = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not isinstance(module, torch.nn.Module):
        raise SourceError(
            f"returns a {type(module).__name__}, not a torch.nn.Module",
            where=spec,
            do="Return the network, or (network, example_inputs)",
        )
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
    check_named((*options.shapes, *options.constants), names, where=spec)
    if len(names) != len(tensors) or not names:
        raise SourceError(
            f"gives {len(tensors)} example inputs; forward takes {len(parameters)}",
            where=spec,
            do="Return one an input",
        )
    missing = [
        name for name, tensor in zip(names, tensors, strict=True) if tensor is None and name not in options.shapes
    ]
    if missing:
        asked = " ".join(f"--shape {name}=1,3,224,224" for name in missing)
        raise SourceError(
            f"the shape of its input{'s' if len(missing) > 1 else ''} {', '.join(missing)} is not known",
            where=spec,
            do=f"Give it, such as {asked}, or return (network, example_inputs)",
        )
    made = [_example(torch, spec, n, t, options) for n, t in zip(names, tensors, strict=True)]
    return Called(module, tuple(names), tuple(made))


def _example(torch: Any, spec: str, name: str, tensor: Any, options: LoadOptions) -> Any:
    """One item of it."""
    if name in options.shapes:
        dtype = tensor.dtype if isinstance(tensor, torch.Tensor) else torch.float32
        sizes = options.shapes[name]
        return torch.randn(sizes, dtype=dtype) if dtype.is_floating_point else torch.zeros(sizes, dtype=dtype)
    if not isinstance(tensor, torch.Tensor) or tensor.dim() == 0:
        raise SourceError(
            f"its example for the input '{name}' is no tensor with a batch axis",
            where=spec,
            do="Return tensors whose first axis is the batch; fix other arguments in the function",
        )
    return tensor[:1].detach().to("cpu")


def _result(spec: str) -> Any:
    name, _, function = spec.partition(":")
    try:
        with _working_directory_on_path(), quiet():
            return getattr(importlib.import_module(name), function)()
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # a module may call sys.exit
        if isinstance(error, ModuleNotFoundError) and name.startswith(error.name or "?"):
            what, do = f"there is no Python module '{name}' here", "Run edgekit where the module lies, or install it"
        elif isinstance(error, AttributeError) and f"'{function}'" in str(error):
            what, do = f"the module has no function '{function}'", "Check the name after the colon"
        else:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            what = (
                f"it failed with {type(error).__name__}: {one_line(error)} ({Path(frame.filename).name}:{frame.lineno})"
            )
            do = "Mend the function"
        raise SourceError(what, where=spec, do=do) from error


@contextlib.contextmanager
def _working_directory_on_path() -> Iterator[None]:
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(Path.cwd()))


def flat(outputs: Any, name: str = "") -> tuple[list[str], list[Any]]:
    """Every tensor that a network returned, called after its key, its field or its place; one alone is `output`."""
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
        more = flat(value, key)
        names += more[0]
        values += more[1]
    return names, values


def _refuse(path: Path, what: str, do: str = _SAVE_AGAIN, cause: Exception | None = None) -> NoReturn:
    raise SourceError(what, where=str(path), do=do) from cause
