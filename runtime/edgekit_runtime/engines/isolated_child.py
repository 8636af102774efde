"""The child of `IsolatedHost`: loads artifacts and runs them, one request after another.

Arguments: the file descriptors of the arena and of the lifeline. Requests come on stdin, answers go to what was stdout,
an engine's own output to stderr. It ends with stdin, and with the lifeline even in the middle of a run.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from edgekit_runtime.engines.arena import Arena, Layout, frame, layout_of, read_frame, read_layout
from edgekit_runtime.engines.registry import Engine, EngineSetup, load_with
from edgekit_runtime.system.children import leave_no_core
from edgekit_runtime.system.errors import EdgekitError, EngineError


@dataclass
class _ServedEngine:
    """An engine and the layouts of its last run."""

    engine: Engine
    inputs: Layout = ()
    outputs: Layout = ()


def main(arguments: list[str]) -> int:
    engines: list[_ServedEngine] = []
    return serve(arguments, lambda request, arena: _answer(request, arena, engines))


def serve(arguments: list[str], answer_of: Callable[[tuple[bytes, bytes], Arena], bytes]) -> int:
    """Answer each frame of stdin, also with what `answer_of` raises."""
    arena_fd, lifeline = map(int, arguments)
    die_with(lifeline)
    answers = os.dup(1)
    os.dup2(2, 1)
    arena = Arena(arena_fd)
    while (request := read_frame(0)) is not None:
        try:
            answer = answer_of(request, arena)
        except EdgekitError as error:
            answer = frame(b"e", json.dumps(error.as_json()).encode())
        except Exception as error:  # noqa: BLE001 - the parent gets every error
            described = EngineError(f"the inference failed: {error!r}").as_json()
            answer = frame(b"e", json.dumps(described).encode())
        os.write(answers, answer)
    return 0


def _answer(request: tuple[bytes, bytes], arena: Arena, engines: list[_ServedEngine]) -> bytes:
    operation, body = request
    if operation == b"l":
        return frame(b"l", json.dumps(_load(json.loads(body), arena, engines)).encode())
    served = engines[int.from_bytes(body[:2], "little")]
    if operation == b"z":
        served.engine.reset()
        return frame(b"z")
    if len(body) > 2:
        served.inputs = read_layout(json.loads(body[2:]))
        served.outputs = ()
    outputs = served.engine.run(arena.views(served.inputs))
    layout = layout_of(outputs)
    arena.write(outputs)  # over the inputs: they have been read
    if layout == served.outputs:
        return frame(b"o")
    served.outputs = layout
    return frame(b"o", json.dumps(layout).encode())


def _load(job: dict[str, Any], arena: Arena, engines: list[_ServedEngine]) -> dict[str, Any]:
    if job["confidential"]:
        leave_no_core()
    (view,) = arena.views(((0, "|u1", (job["size"],)),))
    data = view.tobytes()
    del view
    arena.forget()
    engine = load_with(job["engine"], job["format"], data, EngineSetup(**job["setup"]))
    engines.append(_ServedEngine(engine))
    tensors = {"inputs": [asdict(one) for one in engine.inputs], "outputs": [asdict(one) for one in engine.outputs]}
    return {"info": asdict(engine.info), **tensors}


def die_with(lifeline: int) -> None:
    """Let SIGIO end this process at once when the other end of the lifeline is closed."""
    import fcntl

    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    with contextlib.suppress(OSError):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        if os.read(lifeline, 1) == b"":  # it was gone before we listened
            os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
