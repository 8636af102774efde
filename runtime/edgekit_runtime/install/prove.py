"""The self-test and the trial of a bundle before anything answers with it, each in a process of its own.

    told = prove("selftest", bundle)       # every golden example, on the engine that an application would get
    told = prove("trial", bundle)          # then a few hundred inferences, timed, and the most memory that they took

Rules:
- the child opens the bundle as an application does: the same choice of engine, measured and remembered, the same self-test;
- a crash, a signal and silence beyond the bound are refusals like any other; the installer itself never loads an engine;
- the child reads the file by its name and must find the very bundle that was verified;
- where no child can be started (user-mode emulation: EDGEKIT_SELFTEST=in-process) it happens in this process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from edgekit_runtime.children import crashed, environment, interrupted, may_start, python_module
from edgekit_runtime.children import run as run_child
from edgekit_runtime.errors import EdgekitError, InstallError, SelfTestError, from_json
from edgekit_runtime.install.promise import Seen, judge, memory_promised, terms_of

if TYPE_CHECKING:
    import subprocess

    from edgekit_runtime.bundle import Bundle

__all__ = ["Proof", "Proving", "prove"]

What = Literal["selftest", "trial"]


@dataclass(frozen=True)
class Proving:
    """answers: inferences of a trial. most_s: seconds after which it ends with fewer, of a slow model; least: never fewer.

    silence_s: how long loading, or one inference, may take before the child counts as hung. recipe, engine: what is to answer,
    None for whatever an application gets here. run: starts the child.
    """

    answers: int = 200
    most_s: float = 60.0
    least: int = 20
    silence_s: float = 120.0
    recipe: str | None = None
    engine: str | None = None
    run: Callable[..., subprocess.CompletedProcess[str]] = field(default=run_child)


@dataclass(frozen=True)
class Proof:
    """engine: name and version. recipe: of the artifact that answered. told: the verdict, in words. seen: of a trial."""

    engine: str
    recipe: str
    told: str
    seen: Seen | None = None


def prove(what: What, bundle: Bundle, how: Proving | None = None) -> Proof:
    """Raises SelfTestError, InstallError (trial-failed), EngineError, MissingExtraError, MemoryExceeded, InstallError."""
    how = how or Proving()
    terms = terms_of(bundle.manifest, how.least, 0.0)
    job = {
        "what": what,
        "path": str(bundle.path),
        "digest": bundle.digest,
        "answers": how.answers,
        "most_s": how.most_s,
        "least": how.least,
        "p99_ms": terms.p99_ms,
        "recipe": how.recipe,
        "engine": how.engine,
    }
    facts = _in_child(what, bundle, job, how) if may_start() else _here(bundle, job)
    engine, recipe = facts["engine"], facts["recipe"]
    if what == "selftest":
        return Proof(engine, recipe, facts["told"])
    seen = Seen(**facts["seen"])
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


def _here(bundle: Bundle, job: dict[str, Any]) -> dict[str, Any]:
    from edgekit_runtime.install.prove_child import proved

    return proved(job, bundle.secret, lambda: None)


def _in_child(what: What, bundle: Bundle, job: dict[str, Any], how: Proving) -> dict[str, Any]:
    from subprocess import TimeoutExpired

    job = {**job, "key": bundle.secret.handed() if bundle.secret is not None else None}
    doing = "self-test" if what == "selftest" else "trial"
    try:
        done = how.run(
            python_module("edgekit_runtime.install.prove_child"),
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=how.silence_s,
            env=environment(),
        )
    except TimeoutExpired as error:
        raise _failed(what, bundle, f"the {doing} did not come back within {how.silence_s:.0f} s") from error
    except OSError as error:
        raise InstallError(
            f"no process can be started for the {doing}: {error.strerror or error}",
            where=str(bundle.path),
            do="Make room for one, then install again",
        ) from error
    if name := crashed(done.returncode) or interrupted(done.returncode):
        raise _failed(what, bundle, f"the {doing} ended with {name}")
    facts = _last(done.stdout)
    if facts is None:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise InstallError(f"the {doing} came to no end: {last:.200}", where=str(bundle.path), do="Install it again")
    if "error" in facts:
        raise from_json(facts["error"], InstallError)
    return facts


def _failed(what: What, bundle: Bundle, why: str) -> EdgekitError:
    where, do = str(bundle.path), "Do not use this bundle here: another engine or version may run it"
    if what == "selftest":
        return SelfTestError(why, where=where, do=do)
    return InstallError(why, where=where, do=do, code="trial-failed")


def _last(text: str) -> dict[str, Any] | None:
    for line in reversed(text.splitlines()):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and ("error" in value or "engine" in value):
            return value
    return None
