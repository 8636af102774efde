"""The self-test and the trial of a bundle before it becomes active, each in a child process.

    proof = prove("selftest", bundle)       # every golden example, on the engine that an application would get
    proof = prove("trial", bundle)          # then a few hundred inferences, their time and peak memory

Rules:
- the child opens the bundle as an application does: same choice of engine, measured and remembered, same self-test;
- a crash, a signal and silence are refusals like any other; the installer itself never loads an engine;
- the child reads the file by its name and must find the very bundle that was verified;
- if no child can start (user-mode emulation: EDGEKIT_SELFTEST=in-process) it runs in this process.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from edgekit_runtime.bundle.jobs import Run, ask, bundle_job
from edgekit_runtime.install.trial_verdict import TrialCounts, judge, memory_promised, terms_of
from edgekit_runtime.system.children import may_start, python_module
from edgekit_runtime.system.children import run as run_child
from edgekit_runtime.system.errors import InstallError, SelfTestError

if TYPE_CHECKING:
    from edgekit_runtime.bundle.reader import Bundle

What = Literal["selftest", "trial"]


@dataclass(frozen=True)
class TrialOptions:
    """answers: inferences of a trial.
    most_s: seconds after which a slow model ends with fewer, but never fewer than `least`.
    silence_s: longest load or inference before the child counts as hung.
    recipe, engine: which to use, None for what an application gets here.
    run: starts the child.
    """

    answers: int = 200
    most_s: float = 60.0
    least: int = 20
    silence_s: float = 120.0
    recipe: str | None = None
    engine: str | None = None
    run: Run = field(default=run_child)


@dataclass(frozen=True)
class Proof:
    """engine: name and version.
    recipe: of the artifact that answered.
    text: the verdict, in words.
    seen: of a trial.
    """

    engine: str
    recipe: str
    text: str
    seen: TrialCounts | None = None


def prove(what: What, bundle: Bundle, how: TrialOptions | None = None) -> Proof:
    """Raises SelfTestError, EngineError, MissingExtraError, MemoryExceeded, InstallError.

    InstallError is trial-failed if the trial did not pass.
    """
    how = how or TrialOptions()
    terms = terms_of(bundle.manifest, how.least, 0.0)
    job: dict[str, Any] = {"what": what, **bundle_job(bundle), "answers": how.answers, "most_s": how.most_s}
    job |= {"least": how.least, "p99_ms": terms.p99_ms, "recipe": how.recipe, "engine": how.engine}
    if may_start():
        facts = _in_child(what, bundle, job, how)
    else:
        from edgekit_runtime.install.prove_child import run_trial

        facts = run_trial(job, lambda fact: None)
    engine, recipe = facts["engine"], facts["recipe"]
    if what == "selftest":
        return Proof(engine, recipe, facts["text"])
    seen = TrialCounts(**facts["seen"])
    promised = replace(terms, peak_mb=memory_promised(bundle.manifest, recipe, engine.partition(" ")[0]))
    verdict = judge(seen, promised)
    if verdict.says != "keep":
        raise InstallError(
            f"on trial with {recipe} on {engine}: {verdict.why}",
            where=str(bundle.path),
            do=verdict.do,
            code="trial-failed",
        )
    return Proof(engine, recipe, verdict.why, seen)


def _in_child(what: What, bundle: Bundle, job: dict[str, Any], how: TrialOptions) -> dict[str, Any]:
    doing = "self-test" if what == "selftest" else "trial"
    try:
        command = python_module("edgekit_runtime.install.prove_child")
        came = ask(command, job, silence_s=how.silence_s, otherwise=InstallError, run=how.run)
    except OSError as error:
        raise InstallError(
            f"no process can be started for the {doing}: {error.strerror or error}",
            where=str(bundle.path),
            do="Make room for one, then install again",
        ) from error
    name = came.crashed or came.interrupted
    if came.silent or name:
        how_it_ended = f"ended with {name}" if name else f"did not respond within {how.silence_s:.0f} s"
        why, do = f"the {doing} {how_it_ended}", "Do not use this bundle here: another engine or version may run it"
        if what == "selftest":
            raise SelfTestError(why, where=str(bundle.path), do=do)
        raise InstallError(why, where=str(bundle.path), do=do, code="trial-failed")
    if came.error is not None:
        raise came.error
    if came.result is None:
        last = came.last_words or "it said nothing"
        what_happened = f"the {doing} ended without a result: {last:.200}"
        raise InstallError(what_happened, where=str(bundle.path), do="Install it again")
    return came.result
