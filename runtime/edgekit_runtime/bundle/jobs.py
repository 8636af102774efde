"""A job for a child process and its outcome: the protocol between edgekit and its children.

    came = ask(python_module("edgekit_runtime.loading.tuning_trial"), job, silence_s=60.0)     # the parent
    came.facts, came.result, came.error, came.crashed

    sys.exit(serve(work))                # the child; work(job, say) returns the result

Rules:
- the job is one JSON object on standard input, with the key of an encrypted bundle: every user can read command lines;
- the child writes one JSON object a line: facts, then a "result" or an "error". Any other line is an engine's notice;
- an EdgekitError of the child has the same type in the parent, by its code; too little memory is MemoryExceeded;
- what a child said before it died counts; a child dies with its parent;
- processes that answer many requests use frames instead (`engines.isolated`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit_runtime.system.children import crash_signal, die_with_parent, environment, interrupt_signal
from edgekit_runtime.system.children import run as run_child
from edgekit_runtime.system.errors import BundleError, EdgekitError, errno_of, from_json
from edgekit_runtime.system.memory import scarce
from edgekit_runtime.system.records import field, record

if TYPE_CHECKING:
    import subprocess

    from edgekit_runtime.bundle.reader import Bundle

Say = Callable[[dict[str, Any]], None]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
"""Starts a child as `subprocess.run` does."""


@record(frozen=True)
class ChildOutcome:
    """What a child said, and how it ended.

    result: None if it did not finish.
    crashed: signal that it caused itself, else empty.
    interrupted: signal from outside, else empty.
    silent: it said nothing for too long and was killed.
    last_words: last line of its standard error."""

    facts: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    error: EdgekitError | None = None
    crashed: str = ""
    interrupted: str = ""
    silent: bool = False
    last_words: str = ""


def ask(
    command: list[str],
    job: dict[str, Any],
    *,
    silence_s: float,
    otherwise: type[EdgekitError] = EdgekitError,
    run: Run = run_child,
    brief: bool = False,
) -> ChildOutcome:
    """Start a child, give it the job, and wait unless it is silent for `silence_s`.

    otherwise: type of an error whose code the runtime does not know.
    brief: NumPy starts no threads, which take a quarter of its import.
    Raises OSError if no child can be started."""
    from subprocess import TimeoutExpired

    try:
        env = {**({"OPENBLAS_NUM_THREADS": "1"} if brief else {}), **environment()}
        done = run(command, input=json.dumps(job), capture_output=True, text=True, timeout=silence_s, env=env)
    except TimeoutExpired as silence:
        output = silence.stdout or ""
        return ChildOutcome(list(_objects(output.decode() if isinstance(output, bytes) else output)), silent=True)
    facts, result, refusal = [], None, None
    for one in _objects(done.stdout):
        if one.keys() == {"result"}:
            result = one["result"]
        elif one.keys() == {"error"}:
            refusal = one["error"]
        else:
            facts.append(one)
    error = None
    if refusal is not None:
        error = from_json(refusal, otherwise)
        error.errno = refusal.get("errno")
    last_words = (done.stderr.strip().splitlines() or [""])[-1]
    code = done.returncode
    return ChildOutcome(facts, result, error, crash_signal(code), interrupt_signal(code), last_words=last_words)


def serve(work: Callable[[dict[str, Any], Say], dict[str, Any]]) -> int:
    """In the child: do the job and report the outcome. Returns the exit status."""
    die_with_parent()
    out = sys.stdout  # an engine may replace it

    def say(fact: dict[str, Any]) -> None:
        out.write(json.dumps(fact) + "\n")
        out.flush()

    job = json.load(sys.stdin)
    try:
        with scarce(job.get("path", "")):
            say({"result": work(job, say)})
    except EdgekitError as error:
        say({"error": {**error.as_json(), "errno": errno_of(error)}})
        return 1
    return 0


def bundle_job(bundle: Bundle, source: str | None = None) -> dict[str, Any]:
    """The part of a job that names a bundle. source: opened instead of its path."""
    key = bundle.secret.to_pipe() if bundle.secret is not None else None
    return {"path": source or str(bundle.path.absolute()), "digest": bundle.digest, "key": key}


def bundle_of(job: dict[str, Any]) -> Bundle:
    """In the child: the bundle that the parent verified.
    Raises BundleError if its path now names another file."""
    from edgekit_runtime.bundle.reader import read_bundle
    from edgekit_runtime.bundle.secrets import Secret

    bundle = read_bundle(Path(job["path"]), secret=Secret.from_pipe(job["key"]))
    if bundle.digest != job["digest"]:
        raise BundleError("the file was replaced while it was opened", where=job["path"], do="Try it again")
    return bundle


def _objects(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue  # an engine that writes to stdout, or a line that a crash cut off
        if isinstance(value, dict):
            yield value
