"""The generation that a model uses, and its trial by the application.

    watch = TrialWatch(model, held)
    watch.start()               # a thread that looks once a second
    watch.look()                # "wait", "keep" or "back"; tests call it themselves

Rules:
- enough is seen after 200 inferences of the device and 60 seconds, over all starts; a dead engine decides at once;
- `keep` commits the generation; `back` points `current` at the previous one and swaps this model to it, so that no
  request is lost. A model with a state stays, and the next start has the previous one;
- if another process or the owner decides first, this model follows.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgekit_runtime.install.journal import AttemptFailed, StepPassed, react
from edgekit_runtime.install.layout import Generation, Root, timestamp
from edgekit_runtime.install.lock import Lease, alone
from edgekit_runtime.install.settling import apply
from edgekit_runtime.install.trial import (
    TrialCounts,
    TrialStart,
    TrialTerms,
    TrialVerdict,
    judge,
    read_counts,
    write_counts,
)
from edgekit_runtime.system.errors import EdgekitError, InstallError
from edgekit_runtime.system.threads import begin

if TYPE_CHECKING:
    from edgekit_runtime.bundle.trust_finding import TrustDecision
    from edgekit_runtime.serving.model import Model

_LOOK_S = 1.0
_WAIT_S = 10.0
_ENGINES_OWN = ("engine", "engine-hung", "memory")
"""Codes of errors that the generation is to blame for."""


class WatchedGeneration:
    """A generation that a model uses. start: of its trial, None if committed."""

    def __init__(
        self, root: Root, generation: Generation, lease: Lease, decision: TrustDecision, start: TrialStart | None
    ) -> None:
        self.root, self.generation = root, generation
        self.signature_text = generation.signature_text if generation.unsigned else decision.text
        self.terms = TrialTerms()
        self.state = "committed" if start is None else "trial"
        self._lease, self._start = lease, start
        self._watch: TrialWatch | None = None

    @property
    def number(self) -> int:
        return self.generation.number

    def describe(self) -> dict[str, Any]:
        """For `Model.describe()`."""
        return {
            "root": str(self.root.path),
            "generation": self.generation.number,
            "state": self.state,
            "vouched": self.signature_text,
            "unsigned": self.generation.unsigned,
            "rollout_seq": self.generation.seq,
        }

    def accompany(self, model: Model) -> None:
        """Begin to watch a trial; closing the model ends it."""
        if self._start is not None and self._watch is None:
            self._watch = TrialWatch(model, self)
            self._watch.start()
            model.close_with(self._watch)

    def end_trial(self, state: str) -> None:
        """state: `committed` or `rolled-back`. The start then counts as no failure."""
        self.state = state
        if self._start is not None:
            self._start.end()
            self._start = None

    def close(self) -> None:
        """The model does not use it any more. Idempotent."""
        if self._watch is not None:
            self._watch.leave()
        if self._start is not None:
            self._start.end()
            self._start = None
        self._lease.release()


class TrialWatch:
    """clock: monotonic seconds. terms: None for what the bundle promised."""

    def __init__(
        self,
        model: Model,
        held: WatchedGeneration,
        *,
        terms: TrialTerms | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model, self._held, self._clock = model, held, clock
        self._terms = terms if terms is not None else held.terms
        self._before = read_counts(held.root, held.generation.number)
        self._began = clock()
        self._last = TrialCounts()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._go, name="edgekit-trial", daemon=True)
        begin(self._thread)

    def seen(self) -> TrialCounts:
        """Of this start."""
        measured, health = self._model.measured(), self._model.health()
        infer = measured.counted.stages.get("infer")
        failures = sum(measured.counted.errors.get(code, 0) for code in _ENGINES_OWN)
        dead = "" if health.ok or health.state == "closed" else health.reason
        if infer is None:
            return TrialCounts(failures=failures, seconds=self._clock() - self._began, dead=dead)
        late, limit_ms = 0, self._terms.p99_ms
        if limit_ms is not None:  # as far as the buckets show: a value in the limit's own bucket counts as in time
            per_octave = 2.0**infer.scale
            late = sum(n for index, n in infer.buckets.items() if 2.0 ** (index / per_octave) >= limit_ms)
        return TrialCounts(infer.count, late, failures, self._clock() - self._began, infer.quantile(0.99), None, dead)

    def look(self) -> TrialVerdict:
        """Measure, judge, and act on the verdict.

        Raises EdgekitError if the root cannot be written; the next look tries again.
        """
        root, number = self._held.root, self._held.generation.number
        journal = root.journal()
        if journal.on_trial != number:
            return self._follow(journal.current == number)
        self._last = self.seen()
        verdict = judge(self._before.plus(self._last), self._terms)
        if verdict.says == "keep":
            with alone(root.lock_file, wait_s=0.0):
                journal = root.journal()
                if journal.on_trial == number:
                    apply(root, journal, react(journal, StepPassed()))
                    root.events.append("committed", **{**self._held.generation.facts(), "why": verdict.why})
            return self._follow(kept=True)
        if verdict.says == "back":
            give_up(root, number, InstallError(verdict.why, where=f"generation {number}", code="trial-failed"))
            if root.journal().on_trial == number:
                raise InstallError(
                    "the trial failed, and the root cannot be written yet", where=str(root.path), code="install-busy"
                )
            return replace(self._follow(kept=False), why=verdict.why)
        return verdict

    def _follow(self, kept: bool) -> TrialVerdict:
        self._over.set()
        self._held.end_trial("committed" if kept else "rolled-back")
        if kept:
            return TrialVerdict("keep")
        with _logged_errors("the previous generation cannot be opened while this one answers"):
            self._model.swap(self._held.root.path)
        return TrialVerdict("back")

    def leave(self) -> None:
        """Stop watching, as the model changes or closes. Its answers count for the next start."""
        if self._over.is_set():
            return
        self._over.set()
        with contextlib.suppress(EdgekitError):
            self._last = self.seen()
            root, number = self._held.root, self._held.generation.number
            with alone(root.lock_file, wait_s=_LOOK_S):
                if root.journal().on_trial == number:
                    write_counts(root, number, replace(self._before.plus(self._last), dead=""))

    def close(self) -> None:
        """With the model."""
        self.leave()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(2 * _LOOK_S)

    def _go(self) -> None:
        while not self._over.wait(_LOOK_S):
            with _logged_errors("the trial cannot be looked after"):
                self.look()


def give_up(root: Root, number: int, error: EdgekitError) -> None:
    """Roll back if this generation is on trial. What the disk refuses the next start does."""
    with contextlib.suppress(InstallError), alone(root.lock_file, wait_s=_WAIT_S):
        journal = root.journal()
        if journal.on_trial == number:
            event = AttemptFailed(error.code, str(error), timestamp(time.time()))
            apply(root, journal, react(journal, event))
            root.events.append("rolled-back", code=error.code, what=str(error), generation=number)


@contextlib.contextmanager
def _logged_errors(what: str) -> Iterator[None]:
    try:
        yield
    except EdgekitError as error:
        if error.code == "install-busy":
            return
        logging.getLogger("edgekit_runtime").warning("%s: %s", what, error)
