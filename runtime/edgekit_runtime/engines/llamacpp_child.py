"""The child of `LlamaProcess`: llama.cpp's server, asked through pipes.

Arguments: the file descriptors of the model's memory and of the lifeline. Requests come on stdin, answers go to what
was stdout. llama.cpp opens a port on loopback in any case; its key is made here and forgotten.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
from typing import Any

from edgekit_runtime.engines.arena import frame, frames
from edgekit_runtime.engines.isolated_child import die_with
from edgekit_runtime.engines.registry import one_line, quiet_stderr
from edgekit_runtime.system.children import leave_no_core
from edgekit_runtime.system.errors import EdgekitError, EngineError, InputError

_BATCH = 256
"""Tokens of a prompt between two looks at whether it was cancelled."""


class _Answers:
    """Frames to the parent, whole, from any thread."""

    def __init__(self, fd: int) -> None:
        self._file, self._lock = os.fdopen(fd, "wb"), threading.Lock()

    def say(self, operation: bytes, value: dict[str, Any]) -> None:
        with self._lock:
            self._file.write(frame(operation, json.dumps(value).encode()))
            self._file.flush()


def main(arguments: list[str]) -> int:
    memory, lifeline = map(int, arguments)
    die_with(lifeline)
    answers = _Answers(os.dup(1))
    os.dup2(2, 1)
    requests, server = os.fdopen(os.dup(0), "rb"), None
    cancelled: set[int] = set()
    for operation, body in frames(requests):
        job = json.loads(body)
        if operation == b"l":
            try:
                server = _load(job, memory)
            except Exception as error:  # noqa: BLE001 - the parent gets every error
                what = f"llama.cpp refuses the model: {one_line(str(error))}"
                answers.say(b"e", {"error": EngineError(what, do="Upgrade xllamacpp, or use another file").as_json()})
                return 0
            answers.say(b"l", {})
        elif operation == b"c":
            cancelled.add(job["number"])
        else:
            threading.Thread(target=_answer, args=(server, job, answers, cancelled), daemon=True).start()
    os._exit(0)  # what still generates has no reader


def _load(job: dict[str, Any], memory: int) -> Any:
    if job["confidential"]:
        leave_no_core()
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = f"/proc/self/fd/{memory}" if sys.platform == "linux" else f"/dev/fd/{memory}"
    params.n_ctx, params.n_parallel, params.kv_unified = job["context"], job["slots"], True
    params.n_batch = params.n_ubatch = _BATCH
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = job["threads"]
    params.cache_ram_mib, params.ctx_shift, params.fit_params, params.warmup = 0, False, False, False
    params.endpoint_slots = params.endpoint_props = params.ui = False
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [secrets.token_hex(32)]
    params.verbosity = -1
    with quiet_stderr():
        return xllamacpp.Server(params)


def _answer(server: Any, job: dict[str, Any], answers: _Answers, cancelled: set[int]) -> None:
    """One request; each event is a frame. Returning True from the callback ends it."""
    number, failed = job["number"], None

    def event(text: str) -> bool:
        nonlocal failed
        if number in cancelled:
            return True
        value = json.loads(text) if isinstance(text, (str, bytes)) else text
        if isinstance(value, dict) and (error := value.get("error", value if "code" in value else None)) is not None:
            failed = _refusal(error)
            return True
        answers.say(b"t", {"number": number, "event": json.dumps(value)})
        return False

    try:
        handle = server.handle_chat_completions if job["way"] == "chat" else server.handle_completions
        result = handle(job["body"], event)
        if result is not None:
            event(result)
    except Exception as error:  # noqa: BLE001 - the parent gets every error
        failed = failed or EngineError(f"llama.cpp: {one_line(str(error))}")
    cancelled.discard(number)
    if failed is not None:
        answers.say(b"e", {"number": number, "error": failed.as_json()})
    else:
        answers.say(b"d", {"number": number})


def _refusal(error: object) -> EdgekitError:
    """llama.cpp's own words as an error of ours."""
    said = error if isinstance(error, dict) else {"message": error}
    what = one_line(str(said.get("message", said)))
    if said.get("type") == "exceed_context_size_error":
        what = f"the prompt has {said.get('n_prompt_tokens')} tokens, and the model's cache holds {said.get('n_ctx')}"
        return InputError(what, do="Shorten it, or allow more with ModelLimits(kv_mb=)", code="context-full")
    if said.get("code") == 400:
        return InputError(f"llama.cpp refuses the request: {what}")
    return EngineError(f"llama.cpp: {what}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
