"""Which engines of a GPU run on this machine, and why the others do not.

    for path in gpu_paths():
        print(path.engine, path.version, path.why or "runs")

Each tries a small model in a process of its own; without a driver or an engine no process is started.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from edgekit_runtime.engines import cuda
from edgekit_runtime.engines.isolated import IsolatedHost
from edgekit_runtime.engines.registry import ENGINES, EngineSetup, on_gpu, version_of_engine
from edgekit_runtime.system.errors import EdgekitError, EngineError, install_command

# ONNX: y = Relu(x), both FLOAT [N, 4].
_RELU = base64.b64decode(
    "CAg6PQoMCgF4EgF5IgRSZWx1EgFnWhQKAXgSDwoNCAESCQoDEgFOCgIIBGIUCgF5Eg8KDQgBEgkKAxIBTgoCCARCBAoAEBE="
)


@dataclass(frozen=True)
class GpuPath:
    """One engine of a GPU.

    version: None if not installed.
    why: the reason it does not run here; empty if it does.
    """

    engine: str
    version: str | None
    why: str

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "runs": not self.why}


def try_engine(name: str) -> None:
    """Load and run a small model in a process of its own. Raises EdgekitError."""
    host = IsolatedHost()
    try:
        (y,) = host.load(name, "onnx", _RELU, EngineSetup(keep=False)).run([np.array([[-1, 0, 1, 2]], np.float32)])
        if y.tolist() != [[0, 0, 1, 2]]:
            raise EngineError(f"{name} gives a wrong answer: {y.tolist()}")
    finally:
        host.close()


def gpu_paths(
    version: Callable[[str], str | None] = version_of_engine,
    absent: Callable[[], str] = cuda.absent,
    attempt: Callable[[str], None] = try_engine,
) -> tuple[GpuPath, ...]:
    """Every engine of a GPU, in the order of ENGINES.

    version: of an engine, None if not installed.
    absent: why there is no GPU, empty if there is one.
    attempt: raises EdgekitError for an engine that does not run.
    """
    found = []
    for name in filter(on_gpu, ENGINES):
        installed, why = version(name), ""
        if installed is None:
            why = f"not installed: {install_command(ENGINES[name].extra)}"
        elif not (why := absent()):
            try:
                attempt(name)
            except EdgekitError as error:
                why = error.what
        found.append(GpuPath(name, installed, why))
    return tuple(found)
