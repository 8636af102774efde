"""The engine protocol, the table of engines, and the one function that chooses."""

from __future__ import annotations

import importlib
import importlib.metadata
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from edgekit_runtime.errors import EngineError, MissingExtraError
from edgekit_runtime.tensors import TensorSpec

__all__ = ["ENGINES", "Engine", "EngineInfo", "EngineKind", "available", "load_engine", "pick"]


@dataclass(frozen=True)
class EngineInfo:
    """What is running: the engine's name and version, its threads, and whether it uses reference kernels."""

    name: str
    version: str
    threads: int
    reference_kernels: bool = False


class Engine(AbstractContextManager["Engine", None]):
    """Two methods and three facts: what an engine has to bring. Leaving the `with` block closes it.

    inputs, outputs: named as the file names them, in the engine's order.
    """

    info: EngineInfo
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @abstractmethod
    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """One inference. Arrays carry the batch axis and have exactly the declared dtypes; the result is the caller's."""

    @abstractmethod
    def close(self) -> None: ...

    def reset(self) -> None:
        """Forget what earlier runs left inside the model (TFLite variables). An engine without such memory does nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class EngineKind:
    """A row of the table: which format it runs, the distribution and extra that bring it, and its loader."""

    format: str
    distribution: str
    extra: str
    loader: str


# In order of preference within a format.
ENGINES: dict[str, EngineKind] = {
    "litert": EngineKind("tflite", "ai-edge-litert", "litert", "edgekit_runtime.engines.tflite:load_litert"),
    "tflite-runtime": EngineKind(
        "tflite", "tflite-runtime", "tflite", "edgekit_runtime.engines.tflite:load_tflite_runtime"
    ),
    "onnxruntime": EngineKind("onnx", "onnxruntime", "onnx", "edgekit_runtime.engines.onnx:load_onnxruntime"),
}


def available() -> dict[str, str]:
    """Installed engines and their versions, from package metadata: nothing heavy is imported."""
    found = {}
    for name, kind in ENGINES.items():
        try:
            found[name] = importlib.metadata.version(kind.distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def pick(format: str, installed: dict[str, str] | None = None) -> str:  # noqa: A002
    """The engine for a format: `ai-edge-litert` where it is installed, `tflite-runtime` where it is not; ONNX Runtime.

    Raises MissingExtraError, with the command that adds an engine, when none is installed.
    """
    installed = available() if installed is None else installed
    candidates = [name for name, kind in ENGINES.items() if kind.format == format]
    if not candidates:
        raise EngineError(f"no engine runs the format '{format}'", do=f"Known formats: {', '.join(_formats())}")
    for name in candidates:
        if name in installed:
            return name
    raise MissingExtraError(ENGINES[candidates[0]].extra, f"running a {format} artifact")


def load_engine(
    format: str,  # noqa: A002
    data: bytes,
    *,
    threads: int = 1,
    engine: str | None = None,
    reference_kernels: bool = False,
) -> Engine:
    """Load an artifact's bytes into an engine (default: what `pick` chooses).

    reference_kernels: TFLite only; the plain kernels, which give tflite-runtime the same bits on x86 and ARM.
    Raises EngineError when the engine refuses the bytes, MissingExtraError when it is not installed.
    """
    name = engine or pick(format)
    kind = ENGINES.get(name)
    if kind is None:
        raise EngineError(f"there is no engine '{name}'", do=f"Engines: {', '.join(ENGINES)}")
    if kind.format != format:
        raise EngineError(f"engine '{name}' runs {kind.format}, not {format}")
    module, function = kind.loader.split(":")
    loader = getattr(importlib.import_module(module), function)
    try:
        loaded: Engine = loader(data, threads=threads, reference_kernels=reference_kernels)
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtraError(kind.extra, f"engine '{name}'") from error
    except ImportError as error:
        if name not in available():
            raise MissingExtraError(kind.extra, f"engine '{name}'") from error
        raise EngineError(
            f"engine '{name}' is installed and cannot be imported: {error}",
            do=f"Run: pip install --force-reinstall {kind.distribution}",
        ) from error
    return loaded


def _formats() -> list[str]:
    return sorted({kind.format for kind in ENGINES.values()})
