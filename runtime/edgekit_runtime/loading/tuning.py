"""Choosing the artifact and engine of this board: measured once in a child, and kept.

    verdict = tune(bundle, TuningOptions(threads=None))
    verdict.chosen, verdict.how, verdict.why

Rules:
- a bundle is measured for about `bound_s` seconds at its first opening on a board with these engines, GPU and driver.
  EDGEKIT_TUNE=off takes the bundle's default, EDGEKIT_TUNE=SECONDS another bound. Building for a GPU does not count;
- only a candidate that gives the golden answers may win, by the rule of `loading.election`; one that crashes or hangs
  costs its child alone;
- a candidate whose child was ended from outside is tried again, then left out of this opening, whose result is not
  kept;
- a measurement on a busy board, a close one, or one that left candidates untried is repeated by an opening ten minutes
  later or more, up to OPENINGS times: the chosen one first, then the untried. So is an old one, or one dated in the
  future, by which nothing fits into the memory;
- a verdict counts if no other user could write it (`files.read_own`); one that cannot be kept is logged once
  a process and says so in `why`;
- of two processes that open at once the second waits and reads the first one's verdict;
- a verdict may be postponed: the chosen one before, or the bundle's default, answers while the candidates are measured.
  If a process ended before that, the next opening measures first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from edgekit_runtime.bundle.jobs import Run, ask, bundle_job
from edgekit_runtime.bundle.reader import Bundle
from edgekit_runtime.engines.gpu_engine_cache import BUILD_S
from edgekit_runtime.engines.registry import available, version_of, with_vulkan
from edgekit_runtime.loading.candidates import (
    CandidateTrial,
    TuningCandidate,
    TuningOptions,
    TuningVerdict,
    candidates,
    untried_candidates,
)
from edgekit_runtime.loading.election import choose_verdict, read, store
from edgekit_runtime.loading.selftest import test_failure
from edgekit_runtime.system.board import cores, fingerprint, library_version, state_dir, vulkan_drivers
from edgekit_runtime.system.children import may_start, python_module
from edgekit_runtime.system.children import run as run_child
from edgekit_runtime.system.errors import EdgekitError, EngineError, MemoryExceeded, from_json
from edgekit_runtime.system.files import NOFOLLOW, first_unsafe, in_turn
from edgekit_runtime.system.memory import megabytes
from edgekit_runtime.system.records import record
from edgekit_runtime.system.sealed import name_of

BOUND_S = 5.0
"""Seconds of measuring, unless EDGEKIT_TUNE sets them."""
BESIDE = 2.0
"""Times the bound while a model answers: nothing waits for the verdict, but its requests disturb the measurement."""
GRACE_S = 60.0
"""Seconds that a child may be silent beyond its bound: slow boards, large models."""
_REFUSES_S = 600.0
"""Age in seconds from which an unsettled or refusing measurement is repeated."""
OPENINGS = 3
_FORMAT = "8"
"""Of the file of verdicts."""
_LOG = logging.getLogger("edgekit_runtime.loading")
_SAID: set[Path] = set()
_CHANCES = 2
"""Trials of a candidate whose child is ended from outside."""
_MOST_CHILDREN = 8


@record(frozen=True)
class Tuner:
    """bound_s: seconds for measuring; 0 takes the default.
    memory_mb: memory that the model may take, None for no limit.
    folder: of verdicts, None for the state folder.
    run: starts the child, as `subprocess.run` does.
    later: a verdict that must be measured is postponed, see `TuningVerdict.pending`.
    beside: a model answers meanwhile, so that a child may be silent for want of the processor.
    """

    bound_s: float = BOUND_S
    memory_mb: float | None = None
    folder: Path | None = None
    run: Run = run_child
    later: bool = False
    beside: bool = False

    @classmethod
    def from_environment(cls, memory_mb: float | None = None, environ: Mapping[str, str] | None = None) -> Tuner:
        """EDGEKIT_TUNE: `off`, or seconds, which `open_bundle` waits for. Raises EngineError."""
        text = (os.environ if environ is None else environ).get("EDGEKIT_TUNE", "").strip().lower()
        try:
            seconds = BOUND_S if not text else 0.0 if text == "off" else float(text)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < 3600:
            raise EngineError(f"'{text}' is neither 'off' nor a number of seconds", where="EDGEKIT_TUNE", do="Unset it")
        return cls(seconds, memory_mb, later=not text)


def offered_candidates(bundle: Bundle, wanted: TuningOptions) -> tuple[TuningCandidate, ...]:
    """The candidates that could run here, most promising first."""
    vulkan = with_vulkan() if vulkan_drivers() else ()
    return candidates(bundle.manifest, available(), wanted, cores=cores(), vulkan=vulkan)


def tune(bundle: Bundle, wanted: TuningOptions, tuning: Tuner | None = None) -> TuningVerdict:
    """The candidate that is to answer, and why, of at least one that is offered.

    Raises SelfTestError, EngineError or ModelFileError if no candidate passes, MemoryExceeded if none of those that
    pass fits.
    """
    tuning = tuning or Tuner.from_environment()
    offer = offered_candidates(bundle, wanted)
    if tuning.bound_s <= 0:
        return _default(offer, "EDGEKIT_TUNE=off")
    if not may_start():
        return _default(offer, "child processes cannot be started here")
    folder = (tuning.folder or state_dir()) / "tuning"
    parts = [_FORMAT, bundle.digest, fingerprint(), version_of("edgekit-deploy") or "unknown"]
    parts += [candidate.label + candidate.blob for candidate in offer]
    parts += [library_version(name) for name in dict.fromkeys(one.delegate for one in offer) if name is not None]
    if any(one.on_gpu for one in offer):
        from edgekit_runtime.engines.cuda import identity

        parts += [identity(), *vulkan_drivers(), *with_vulkan().values()]
    file = folder / f"{name_of(*parts)}.json"
    if (known := _read_verdict(bundle, offer, tuning, file)) is not None:
        return known
    if tuning.later and (meanwhile := _postponed(bundle, offer, tuning, file)) is not None:
        return meanwhile
    with in_turn(folder, tuning.bound_s + _grace_s(offer)):
        return _read_verdict(bundle, offer, tuning, file) or _measure(bundle, offer, tuning, file)


def _postponed(bundle: Bundle, offer: Sequence[TuningCandidate], tuning: Tuner, file: Path) -> TuningVerdict | None:
    """What answers until the candidates are measured; None if an earlier process never did."""
    with in_turn(file.parent, 0.0) as alone:
        if alone and _begun(file).exists():
            return None
        with contextlib.suppress(OSError):
            os.close(os.open(_begun(file), os.O_WRONLY | os.O_CREAT | NOFOLLOW, 0o600))
    known = read(file, offer, tuning.memory_mb, bundle.manifest.target.budget_ms)
    known = known or _default(offer, "the first answers do not wait for it")
    return replace(known, pending=True, why=f"{known.why}; the candidates are measured in the background")


def _begun(file: Path) -> Path:
    """There from a postponed verdict on until it is measured."""
    return file.with_suffix(".begun")


def _default(offer: Sequence[TuningCandidate], why: str) -> TuningVerdict:
    return TuningVerdict(untried_candidates(offer)[0], "default", f"not measured: {why}")


def _explain_unkept(verdict: TuningVerdict, offer: Sequence[TuningCandidate], file: Path) -> TuningVerdict:
    """The verdict with the reason why it was not kept, which is logged once per folder."""
    unsafe = first_unsafe(file)
    why = f"{unsafe.where}: {unsafe.what}" if unsafe else f"{file.parent} cannot be written"
    if file.parent not in _SAID:
        _SAID.add(file.parent)
        several = len({one.blob for one in offer}) > 1
        same = "pass pin='primary' to run the same artifact each time, " if several else ""
        _LOG.warning(
            "each start measures for seconds and may choose differently: the choice cannot be stored (%s). "
            "Set EDGEKIT_STATE_DIR to a lasting folder, %sor set EDGEKIT_TUNE=off", why, same,
        )  # fmt: skip
    return replace(verdict, why=f"{verdict.why}; not stored, so each start measures: {why}")


def _read_verdict(bundle: Bundle, offer: Sequence[TuningCandidate], tuning: Tuner, file: Path) -> TuningVerdict | None:
    """The stored verdict; None if it must be measured.

    Raises MemoryExceeded if nothing fits by a recent measurement.
    """
    everything = read(file, offer, None)
    if everything is None:
        return None
    fitting = read(file, offer, tuning.memory_mb, bundle.manifest.target.budget_ms)
    if fitting is not None and fitting.settled:
        return fitting
    age_s = _REFUSES_S
    with contextlib.suppress(OSError):
        age_s = time.time() - file.stat().st_mtime
    if not 0 <= age_s < _REFUSES_S:
        return None
    if fitting is None:
        raise _refusal(bundle, everything.tried, tuning.memory_mb)
    return fitting


def _measure(bundle: Bundle, offer: Sequence[TuningCandidate], tuning: Tuner, file: Path) -> TuningVerdict:
    before = read(file, offer, None)
    found = _TrialResults(list(offer), {one.candidate: one for one in before.tried if one.had_turn} if before else {})
    busy, started = _is_busy(), time.monotonic()
    chosen_before = before.chosen if before else None
    order = sorted(range(len(offer)), key=lambda n: (offer[n] != chosen_before, offer[n] in found.before))
    for _ in range(_MOST_CHILDREN):
        left = [number for number in order if number not in found.refused]
        bound_s = max(1.0, tuning.bound_s - (time.monotonic() - started))
        if not left or not _run_trial(bundle, left, found, bound_s, tuning):
            break
    tried = found.tried()
    if not any(one.p50_ms is not None or one.refused for one in tried):
        return _default(offer, "the child process measured nothing")
    champion = offer[found.champion] if found.champion is not None else None
    seconds = time.monotonic() - started
    openings = 1 if before is None else before.openings + 1
    settled = (found.settled and not busy and all(one.had_turn for one in tried)) or openings >= OPENINGS
    budget_ms, everything = bundle.manifest.target.budget_ms, None
    if champion is not None and not found.interrupted:
        everything = choose_verdict(tried, champion, None, settled, budget_ms)
    kept = everything is not None and store(file, replace(everything, seconds=seconds, openings=openings)).kept
    if not found.interrupted:
        with contextlib.suppress(OSError):
            _begun(file).unlink()
    verdict = choose_verdict(tried, champion, tuning.memory_mb, settled, budget_ms)
    if verdict is None:
        raise _refusal(bundle, tried, tuning.memory_mb)
    verdict = replace(verdict, seconds=seconds, kept=kept, openings=openings)
    return verdict if kept or everything is None else _explain_unkept(verdict, offer, file)


def _is_busy() -> bool:
    """Whether other processes took more than half of the cores over the last minute."""
    try:
        return os.getloadavg()[0] > max(1.0, cores() / 2)
    except OSError:
        return False


@dataclass
class _TrialResults:
    """Reports of the children so far, by the candidate's number in the whole offer."""

    offer: list[TuningCandidate]
    before: dict[TuningCandidate, CandidateTrial]
    """What an earlier opening found; it holds for those that have no turn now."""
    facts: dict[int, dict[str, Any]] = field(default_factory=dict)
    refused: dict[int, dict[str, str]] = field(default_factory=dict)
    champion: int | None = None
    settled: bool = True
    interrupted: list[int | None] = field(default_factory=list)
    """Candidates whose trial was ended from outside, once for each time."""

    def tried(self) -> tuple[CandidateTrial, ...]:
        facts = {**self.facts, **{number: {"refused": error} for number, error in self.refused.items()}}
        return tuple(
            CandidateTrial(candidate, **facts[number])
            if number in facts
            else self.before.get(candidate, CandidateTrial(candidate))
            for number, candidate in enumerate(self.offer)
        )


def _run_trial(bundle: Bundle, numbers: Sequence[int], found: _TrialResults, bound_s: float, tuning: Tuner) -> bool:
    """Try these candidates in a child. True if it died of one, so that another should continue."""
    offer = [found.offer[number] for number in numbers]
    job = {**bundle_job(bundle), "candidates": [asdict(one) for one in offer], "bound_s": bound_s}
    silence_s = bound_s + _grace_s(offer)
    try:
        came = ask(
            python_module("edgekit_runtime.loading.tuning_trial"), job, silence_s=silence_s, run=tuning.run, brief=True
        )
    except OSError:
        return False
    died = f"crashed with {came.crashed}" if came.crashed else ""
    blame = _listen(came.facts, numbers, found)
    if came.silent and tuning.beside and not (blame is not None and found.offer[blame].on_gpu):
        found.facts.clear()
        found.interrupted.append(None)
        return False
    if came.silent:
        died = f"did not respond within {silence_s:.0f} s"
    elif not died and came.result is None and came.error is None:
        died = "ended its process"  # a library's own check failed
    if came.interrupted:
        return _count_interruption(bundle, blame, found, came.interrupted)
    if died and blame is not None:
        candidate = found.offer[blame]
        found.facts.pop(blame, None)
        found.refused[blame] = test_failure(bundle, candidate.engine, candidate.version, died).as_json()
        return True
    return False


def _grace_s(offer: Sequence[TuningCandidate]) -> float:
    return GRACE_S + (BUILD_S if any(one.on_gpu for one in offer) else 0.0)


def _count_interruption(bundle: Bundle, number: int | None, found: _TrialResults, ended: str) -> bool:
    """The child was ended from outside: retry, or leave this candidate out. True to continue.

    number: None before its first candidate.
    """
    found.interrupted.append(number)
    if found.interrupted.count(number) >= _CHANCES:
        if number is None:
            return False
        found.facts.pop(number, None)
        found.refused[number] = EngineError(
            f"its trial was killed by {ended} {_CHANCES} times",
            where=str(bundle.path),
            do="Open it again; the system sends SIGKILL when it runs out of memory",
        ).as_json()
    return True


def _listen(facts: Sequence[dict[str, Any]], numbers: Sequence[int], found: _TrialResults) -> int | None:
    """Store the child's reports. Returns the candidate that was being loaded at the last one."""
    busy: int | None = None
    for fact in facts:
        if "enter" in fact:
            busy = numbers[fact["enter"]]
        elif "entered" in fact:
            number = numbers[fact.pop("entered")]
            found.facts[number] = {**fact, "runs": 1}
        elif "refused" in fact:
            found.refused[numbers[fact["refused"]]] = fact["error"]
        elif "champion" in fact:
            busy = None
            found.champion = None if fact["champion"] is None else numbers[fact["champion"]]
            found.settled = fact["settled"]
            for one in fact["tried"]:
                found.facts.setdefault(numbers[one.pop("number")], {}).update(one)
    return busy


def _refusal(bundle: Bundle, tried: Sequence[CandidateTrial], memory_mb: float | None) -> EdgekitError:
    """The error: too large, or the reason against the bundle's own choice, without a delegate."""
    passed = [one.memory_mb or 0.0 for one in tried if one.p50_ms is not None]
    if passed and memory_mb is not None:
        return MemoryExceeded(
            f"it needs {megabytes(min(passed))} MB without cache and batches, "
            f"and {megabytes(max(0.0, memory_mb))} MB are left",
            where=f"{bundle.manifest.name} ({bundle.path.name})",
            do=f"Allow {megabytes(min(passed) - memory_mb)} MB more, close another model, or build a smaller one",
        )
    own = [one for one in tried if one.refused is not None]
    if all(one.candidate.on_gpu for one in tried):
        why = "; ".join(f"{one.candidate.engine}: {(one.refused or {})['what']}" for one in own)
        return EngineError(f"no engine of a GPU runs it: {why}", where=str(bundle.path), do="See: edgekit doctor")
    first = next((one for one in own if one.candidate.delegate is None and not one.candidate.on_gpu), own[0])
    error = from_json(first.refused or {}, EngineError)
    error.where = error.where or str(bundle.path)
    return error
