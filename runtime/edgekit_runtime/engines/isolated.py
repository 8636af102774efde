"""An engine in a process of its own; a crash or a hang ends only that process.

    host = IsolatedHost()
    engine = host.load("litert", "tflite", data, EngineSetup(threads=2))
    outputs = engine.run([tensor])          # EngineHung if it takes too long; the next run starts the process again

Rules:
- one child for all variants of a model; a fresh Python, never a fork, so the application may have threads;
- a run beyond its limit ends the child: its caller gets EngineHung, the next one a new child;
- a child that dies is a typed error with the signal's name; after MOST_DEATHS in a row none is started;
- the parent's death ends the child, even inside a kernel that holds everything else; every child is reaped;
- tensors travel through shared memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any

from numpy.typing import NDArray

from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.engines.arena import Arena, Layout, frame, read_frame, read_layout
from edgekit_runtime.engines.gpu_engine_cache import BUILD_S
from edgekit_runtime.engines.registry import Engine, EngineInfo, EngineSetup, on_gpu
from edgekit_runtime.system.board import resident_mb
from edgekit_runtime.system.children import crash_signal, environment, interrupt_signal, may_start, python_module
from edgekit_runtime.system.errors import EdgekitError, EngineError, EngineHung
from edgekit_runtime.system.strict_json import from_json
from edgekit_runtime.system.watchdog import limit_s as longest

LOAD_LIMIT_S = 120.0
MOST_DEATHS = 5
"""Deaths in a row, without an answer between them."""
_END_S = 2.0


@dataclass(frozen=True)
class _Artifact:
    engine: str
    format: str
    data: bytes
    setup: EngineSetup


class IsolatedHost:
    """A child process and the artifacts loaded in it. One thread at a time, but `kill` from any.

    limit_s: returns the seconds a run may last; called before each.
    confidential: the artifacts were encrypted, so a crash must not write them to disk.
    """

    def __init__(self, limit_s: Callable[[], float] | None = None, *, confidential: bool = False) -> None:
        if sys.platform == "win32" or not may_start():
            raise EngineError("the engine cannot run in its own process here", do="Open the bundle with isolate=False")
        self._limit_s = limit_s or self._patience_s
        self._confidential = confidential
        self._artifacts: list[_Artifact] = []
        self._child: EngineChild | None = None
        self._slowest_s = 0.0
        self._deaths = 0
        self._open = 0
        self._layouts: dict[int, tuple[Layout, Layout]] = {}
        self.restarts = 0

    def _patience_s(self) -> float:
        """That of a watched run, or of building on a GPU, whose driver compiles at the first run."""
        compiles = not self._slowest_s and any(on_gpu(one.engine, one.setup.kernels) for one in self._artifacts)
        return BUILD_S if compiles else longest(self._slowest_s)

    def load(self, engine: str, format: str, data: bytes, setup: EngineSetup) -> IsolatedEngine:  # noqa: A002
        """Load an artifact. Raises EngineError, also if the child dies of it."""
        artifact = _Artifact(engine, format, data, setup)
        child = self._running()
        answer = self._load(child, artifact)
        self._artifacts.append(artifact)
        self._open += 1
        return IsolatedEngine(self, len(self._artifacts) - 1, answer)

    def run(self, number: int, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """One inference of the engine with that number. Raises EngineError, EngineHung."""
        child = self._running()
        known = self._layouts.get(number)
        arena = child.arena
        layout = arena.write(inputs)
        body = number.to_bytes(2, "little")
        if known is None or layout != known[0]:
            body += json.dumps(layout).encode()
        start = monotonic()
        operation, answer = self._ask(child, frame(b"r", body), self._limit_s())
        self._slowest_s = max(self._slowest_s, monotonic() - start)
        self._deaths = 0
        if operation == b"e":
            self._layouts.pop(number, None)
            raise _error(answer)
        outputs = read_layout(json.loads(answer)) if answer else self._layouts[number][1]
        self._layouts[number] = (layout, outputs)
        return arena.read(outputs)

    def leave_gpu(self, engine: IsolatedEngine) -> IsolatedEngine:
        """Start a child with everything on the processor, at the next run."""
        self._artifacts = [replace(one, setup=replace(one.setup, kernels="default")) for one in self._artifacts]
        if self._child is not None:
            self._child.end(0)
        engine.info = replace(engine.info, kernels="default", gpu="")
        return engine

    def reset(self, number: int) -> None:
        operation, answer = self._ask(self._running(), frame(b"z", number.to_bytes(2, "little")), LOAD_LIMIT_S)
        if operation == b"e":
            raise _error(answer)

    def kill(self) -> None:
        """End the child now. A run that waits for it fails; the next one starts it again."""
        child = self._child
        if child is not None:
            child.process.kill()

    def release(self) -> None:
        """Close one of its engines; with the last one the child ends."""
        self._open -= 1
        if self._open <= 0:
            self.close()

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end(_END_S)

    @property
    def pid(self) -> int | None:
        return self._child.process.pid if self._child is not None else None

    @property
    def dead(self) -> str | None:
        """Reason the isolated engine died for good, or None while it is alive."""
        child = self._child
        if self._deaths < MOST_DEATHS or (child is not None and child.process.poll() is None):
            return None
        return self._too_many_deaths().what

    @property
    def resident_mb(self) -> float | None:
        return resident_mb(self.pid) if self.pid is not None else None

    def _running(self) -> EngineChild:
        """The child. If it died it is started again with everything that was loaded."""
        if self._child is not None and self._child.process.poll() is None:
            return self._child
        if self._deaths >= MOST_DEATHS:
            raise self._too_many_deaths()
        again = self._child is not None or bool(self._artifacts)
        if self._child is not None:
            self._child.end(0)
        self._child = child = EngineChild()
        self._layouts.clear()
        try:
            for artifact in self._artifacts:
                self._load(child, artifact)
        except EngineError:
            if child.process.poll() is None:  # it lives, but cannot answer without its model
                self._deaths += 1
                child.end(0)
            raise
        if again:
            self.restarts += 1
        return child

    def _too_many_deaths(self) -> EngineError:
        return EngineError(
            f"the engine's process died {self._deaths} times in a row and will not be restarted",
            do="Open the bundle again, or use another engine",
        )

    def _load(self, child: EngineChild, artifact: _Artifact) -> dict[str, Any]:
        import numpy as np

        child.arena.write([np.frombuffer(artifact.data, np.uint8)])
        setup = artifact.setup
        job = {
            "engine": artifact.engine,
            "format": artifact.format,
            "size": len(artifact.data),
            "confidential": self._confidential,
            "setup": asdict(replace(setup, keep=setup.keep and not self._confidential)),
        }
        limit_s = LOAD_LIMIT_S + (BUILD_S if on_gpu(artifact.engine, setup.kernels) else 0.0)
        operation, answer = self._ask(child, frame(b"l", json.dumps(job).encode()), limit_s)
        child.arena.shrink()
        if operation == b"e":
            raise _error(answer)
        value: dict[str, Any] = json.loads(answer)
        return value

    def _ask(self, child: EngineChild, request: bytes, limit_s: float) -> tuple[bytes, bytes]:
        """Send and wait. Raises EngineHung after limit_s, EngineError if the child died."""
        try:
            os.write(child.to_child, request)
            if not child.poll.poll(limit_s * 1e3):
                child.end(0)
                self._deaths += 1
                raise EngineHung(
                    f"the engine did not answer within {limit_s:.3g} s; its process was killed and will be restarted",
                    do="Try again; if it happens often, use another engine or board",
                )
            answer = read_frame(child.from_child)
        except OSError:  # a broken pipe: it died before it was asked
            answer = None
        if answer is None:
            self._deaths += 1
            code = child.end(_END_S)
            cause = crash_signal(code) or interrupt_signal(code) or f"exit code {code}"
            raise EngineError(f"the engine's process died ({cause}); it will be restarted", do="Try again")
        return answer


class IsolatedEngine(Engine):
    """One artifact in the child."""

    def __init__(self, host: IsolatedHost, number: int, answer: dict[str, Any]) -> None:
        self.host = host
        self._number = number
        self._closed = False
        self.info = EngineInfo(**answer["info"])
        self.inputs = from_json(tuple[TensorSpec, ...], answer["inputs"], "inputs", nulls=True)
        self.outputs = from_json(tuple[TensorSpec, ...], answer["outputs"], "outputs", nulls=True)

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        if self._closed:
            raise EngineError("the engine was closed", do="Open the bundle again")
        return self.host.run(self._number, inputs)

    def reset(self) -> None:
        self.host.reset(self._number)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.host.release()


class EngineChild:
    """The process and its pipes. It ends when our end of the lifeline does, even by our death.

    module: run with the file descriptors of the arena and of the lifeline.
    arena: one that outlives it; None for its own."""

    def __init__(self, module: str = "edgekit_runtime.engines.isolated_child", arena: Arena | None = None) -> None:
        self.arena, self._own = (Arena.create(), True) if arena is None else (arena, False)
        lifeline, self._lifeline = os.pipe()
        try:
            self.process = subprocess.Popen(
                python_module(module, str(self.arena.fd), str(lifeline)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(self.arena.fd, lifeline),
                env=environment(),
                start_new_session=True,  # a Ctrl-C on the terminal is the application's to handle
            )
        except OSError as error:
            if self._own:
                self.arena.close()
            os.close(self._lifeline)
            raise EngineError(f"the engine's process cannot be started: {error}") from error
        finally:
            os.close(lifeline)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.to_child = self.process.stdin.fileno()
        self.from_child = self.process.stdout.fileno()
        self.poll = select.poll()
        self.poll.register(self.from_child, select.POLLIN)
        self._ending = threading.Lock()

    def end(self, patience_s: float) -> int:
        """Ask it to end, kill it after patience_s, reap it, free everything. Returns its exit code.

        Idempotent.
        """
        with self._ending:
            for pipe in (self.process.stdin, self.process.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
            if self._lifeline >= 0:
                if not patience_s:
                    self.process.kill()
                try:
                    self.process.wait(patience_s or None)
                except subprocess.TimeoutExpired:
                    self.process.kill()
                os.close(self._lifeline)
                self._lifeline = -1
                if self._own:
                    self.arena.close()
            return self.process.wait()


def _error(answer: bytes) -> EdgekitError:
    value = json.loads(answer)
    return EngineError(value["what"], where=value["where"], do=value["do"])
