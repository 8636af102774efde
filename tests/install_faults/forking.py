"""A process that has everything imported, and forks one child for each thing that is done to a root.

    python tests/install_faults/forking.py          # a job a line on stdin, as JSON

A job is a list of steps; the child takes them one after the other and notes what came of each before it begins the
next:

    ["cli", "install", "new.ekb", "--root", "/tmp/r"]     # the real command line: its exit code, stdout and stderr
    ["ask", "/tmp/r"]                                      # open_bundle, one answer, close
    ["start", "/tmp/r"]                                    # open_bundle, one answer, and killed: never closed
    ["watch", "/tmp/r", answers]                           # open_bundle, that many answers, then the trial is judged
    ["put", SOURCE, "/tmp/r", {"trust": ..., ...}]         # install() itself: with a child that crashes or hangs, an
                                                           # impatient download; all that the command line does
                                                           # not offer

With "stop" the child halts before its first step, so that a tracer can be there from its first system call on. With
"witness" every journal that is written is noted in that file, by a word; with "die" as well the child kills itself as
soon as the journal of that word is written: a power cut in that state.

Rule: the child is what a new process would be, the imports aside: nothing of a bundle is loaded before it is forked.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
from dataclasses import replace
from typing import Any


def load() -> None:
    """Everything that an install imports on its way, the engine included."""
    import ai_edge_litert.interpreter
    import cryptography.hazmat.primitives.asymmetric.ed25519
    import numpy

    import edgekit.cli.install
    import edgekit.cli.main
    import edgekit.cli.progress
    import edgekit_profiles.detect
    import edgekit_runtime.install.open_active
    import edgekit_runtime.loading
    import edgekit_runtime.loading.readiness
    import edgekit_runtime.serving.model

    assert numpy, cryptography
    assert ai_edge_litert, edgekit
    assert edgekit_profiles, edgekit_runtime


def cli(*arguments: str) -> dict[str, Any]:
    from edgekit.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    code: Any = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(arguments))
        except SystemExit as ended:
            code = ended.code
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def ask(root: str) -> dict[str, Any]:
    """What answers there, by a real answer."""
    from edgekit_runtime import open_bundle

    with open_bundle(root) as model:
        return _asked(model)


def start(root: str) -> dict[str, Any]:
    """As an application that dies at once."""
    from edgekit_runtime import open_bundle

    _asked(open_bundle(root))
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed")


def watch(root: str, answers: int) -> dict[str, Any]:
    """As an application in use, its trial judged by what was promised and by so many answers, in no time at all."""
    from edgekit_runtime import open_bundle
    from edgekit_runtime.install.open_active import TrialWatch

    with open_bundle(root, cache=False) as model:
        held = model._journey.opened.held
        assert held is not None
        watching = TrialWatch(model, held, terms=replace(held.terms, answers=answers, seconds=0.0))
        told = [_asked(model) for _ in range(answers)]
        verdict = watching.look()
        return {"verdict": verdict.says, "why": verdict.why, "first": told[0], **_asked(model)}


def put(source: str, root: str, how: dict[str, Any]) -> dict[str, Any]:
    """silence_s: of a download. child: Python code that is started in place of the self-test or the trial, for a
    second.
    """
    from edgekit_runtime.install import (
        BoardIdentity,
        DownloadLimits,
        FetchOptions,
        InstallOptions,
        TrialOptions,
        install,
    )
    from edgekit_runtime.system.children import run

    def other(command: list[str], **options: Any) -> Any:
        job = json.loads(options["input"])["what"]
        if job == how["instead_of"]:
            command, options["timeout"] = [sys.executable, "-c", how["child"]], 1.0
        return run(command, **options)

    silence = how.get("silence_s", 30.0)
    proving = TrialOptions(run=other) if "child" in how else TrialOptions()
    done = install(
        source,
        root,
        InstallOptions(
            trust=(how["trust"],),
            board=BoardIdentity(("x86-64",)),
            trial=how.get("trial", "here"),
            fetching=FetchOptions(DownloadLimits(silence_s=silence, tries=2), sleep=lambda s: None),
            proving=proving,
        ),
    )
    return {"state": done.state, "generation": done.generation.number, "version": done.generation.version}


def _asked(model: Any) -> dict[str, Any]:
    import numpy

    told = model.describe()
    answer = model.predict(numpy.full((8, 8, 3), (230, 20, 20), numpy.uint8))
    installed = told["installed"] or {"generation": None, "state": None}
    return {
        "version": told["version"],
        "label": answer.top(1)[0].label,
        "generation": installed["generation"],
        "state": installed["state"],
    }


STEPS = {"cli": cli, "ask": ask, "start": start, "watch": watch, "put": put}


def child(job: dict[str, Any]) -> int:
    os.environ.update(job.get("env", {}))
    notes = os.open(job["notes"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if "witness" in job:
        _witness(job["witness"], job.get("die"))
    if job.get("stop"):
        os.kill(os.getpid(), signal.SIGSTOP)
    for step in job["steps"]:
        _note(notes, json.dumps(_done(*step)))
    return 0


def _note(notes: int, line: str) -> None:
    """By a system call that nothing else makes: faults are injected into the others."""
    os.writev(notes, [f"{line}\n".encode()])


def _witness(file: str, die: str | None) -> None:
    from edgekit_runtime.install.journal import Journal
    from edgekit_runtime.install.layout import Root

    notes, written = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), Root.write_journal

    def write(root: Root, journal: Journal) -> None:
        written(root, journal)
        word = _word(journal)
        _note(notes, word)
        if word == die:
            os.kill(os.getpid(), signal.SIGKILL)

    Root.write_journal = write


def _word(journal: Any) -> str:
    attempt = journal.attempt
    if attempt is None:
        return "committed" if journal.failure is None else "refused"
    if attempt.state == "fetching" and attempt.header:
        return "kept" if journal.failure is not None else "accepted"
    return f"{attempt.state} {attempt.tries}" if attempt.tries > 1 else attempt.state


def _done(name: str, *arguments: Any) -> dict[str, Any]:
    """What a step returns, or the code and the message of the error that it raised."""
    from edgekit_runtime.system.errors import EdgekitError

    try:
        return STEPS[name](*arguments)
    except EdgekitError as error:
        return {"error": error.code, "what": str(error)}


def serve() -> int:
    load()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                code = child(job)
            except BaseException:  # a child never goes on as its parent
                import traceback

                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        if job.get("stop"):
            os.waitpid(pid, os.WUNTRACED)
            print(json.dumps(pid), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(serve())
