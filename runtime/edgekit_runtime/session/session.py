"""One session: a frame's way, a stage a method (see the package for the rules)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import Any

from edgekit_runtime.answer import Answer
from edgekit_runtime.contract.adapt import Carry, adapters
from edgekit_runtime.contract.finish import Finisher
from edgekit_runtime.errors import EdgekitError, InputError, SessionError
from edgekit_runtime.forked import ForkGuard, promised
from edgekit_runtime.intake import Intake, own
from edgekit_runtime.request import checked_budget
from edgekit_runtime.session.parts import SessionParts, Tensors
from edgekit_runtime.session.turns import Turns, closed

__all__ = ["Session"]


@dataclass(slots=True)
class _Frame:
    """A frame on its way: the caller's tensors, as the artifact takes them."""

    budget_ms: float | None
    tensors: Tensors = field(default_factory=list)
    start: float = field(default_factory=perf_counter)
    timings: dict[str, float] = field(default_factory=dict)
    asked: float = 0.0


class Session:
    """Made by `model.session()`. Every method may be called from any thread; frames have one order, that of the calls.

    So there is neither a `priority` nor a `stale_ok` here: no frame may pass another, and no frame has an older answer.
    """

    def __init__(self, parts: SessionParts, forget: Callable[[Session], None] = lambda session: None) -> None:
        entry, self.contract = parts.entry, parts.contract.of_caller
        self._parts, self._forget, self._guard = parts, forget, ForkGuard()
        self._intake = Intake(self.contract, parts.ready)
        self._carry = Carry(parts.contract, entry.inputs, entry.outputs)
        self._adapters = adapters(parts.contract, self._carry.asked, parts.ready)
        self._finisher = Finisher(self.contract, entry.outputs)
        self._turns = Turns()
        self._worker: ThreadPoolExecutor | None = None
        self._serving: int | None = None
        self._torn = False
        self._state = self._carry.begin()
        self._engine = parts.load() if parts.contract.state == "internal" else None
        self._frames = 0

    @property
    def frames(self) -> int:
        """Answered since the session began or was reset."""
        return self._frames

    def predict(self, inputs: Any, *, budget_ms: float | None = None) -> Answer:
        """The next frame's answer, waiting for it, and for those that were asked for before.

        inputs, budget_ms: as `model.predict` takes them, without the states that are carried. A budget that is missed is told
        (`answer.met_budget`); no frame is left out for it. Raises InputError, EngineError, SessionError, ClosedError.
        """
        frame = self._arrive(inputs, budget_ms, keep=False)
        self._wait()
        try:
            return self._answer(frame)
        except BaseException as error:
            self._parts.failed(error)
            raise
        finally:
            self._turns.give()

    def submit(self, inputs: Any, *, budget_ms: float | None = None) -> Future[Answer]:
        """As `predict`, without waiting. Bad input raises here; the future carries later errors. Cancelled before its turn,
        the frame is never fed."""
        frame = self._arrive(inputs, budget_ms, keep=True)
        answer: Future[Answer] = promised()
        if self._worker is None:
            with self._turns.lock:
                self._worker = self._worker or ThreadPoolExecutor(1, thread_name_prefix="edgekit-session")
        worker = self._worker

        def begin() -> None:
            try:
                worker.submit(self._serve, frame, answer)
            except RuntimeError:  # closed between the question and its turn, or the interpreter ends
                self._turns.give()
                if answer.set_running_or_notify_cancel():
                    answer.set_exception(closed())

        self._turns.take(begin, answer)
        return answer

    async def apredict(self, inputs: Any, *, budget_ms: float | None = None) -> Answer:
        """As `predict`, for asyncio. Decoding runs here; the engine runs in the session's thread."""
        import asyncio

        return await asyncio.wrap_future(self.submit(inputs, budget_ms=budget_ms))

    def reset(self) -> None:
        """Wait for the frames that were asked for, then forget them: the next one is a first one. Raises ClosedError."""
        self._check_open()
        self._wait()
        try:
            if self._engine is not None:
                self._engine.close()
                self._torn = True  # until the new one is there
                self._engine = self._parts.load()
            self._state, self._frames, self._torn = self._carry.begin(), 0, False
        finally:
            self._turns.give()

    def close(self, timeout_s: float = 5.0) -> None:
        """Fail what waits with ClosedError, wait at most timeout_s for the running frame, free the session's engine.

        In a forked child it does nothing: the engine and the frames are the parent's.
        """
        if self._guard.forked:
            return
        if self._turns.close(self._free, timeout_s) and self._worker is not None:
            self._worker.shutdown(wait=False)
        self._forget(self)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # One frame, a stage a method.

    def _arrive(self, inputs: Any, budget_ms: float | None, *, keep: bool) -> _Frame:
        """decode, adapt. keep: the caller may reuse its arrays before the engine has read them."""
        budget_ms = self._parts.budget_ms if budget_ms is None else checked_budget(budget_ms)
        self._check_open()
        frame = _Frame(budget_ms)
        try:
            self._refuse_state(inputs)
            named = self._intake.take(inputs)
            items, _ = self._intake.decode(named)
            decoded = perf_counter()
            frame.tensors = [adapter(items[name]) for name, adapter in self._adapters]
            if keep:
                frame.tensors = own(frame.tensors, named)
        except EdgekitError as error:
            self._parts.failed(error)
            raise
        frame.asked = perf_counter()
        frame.timings["decode"] = (decoded - frame.start) * 1e3
        frame.timings["adapt"] = (frame.asked - decoded) * 1e3
        return frame

    def _answer(self, frame: _Frame) -> Answer:
        """run, finish. The caller has the turn."""
        waited = perf_counter() - frame.asked
        result, queued, ran = self._run(frame.tensors)
        before = perf_counter()
        outputs = self._finisher(result)
        now = perf_counter()
        self._frames += 1
        timings = frame.timings
        timings["queue"], timings["engine"] = (waited + queued) * 1e3, ran * 1e3
        timings["finish"] = (now - before) * 1e3
        timings["total"] = total = (now - frame.start) * 1e3
        met = None if frame.budget_ms is None else total <= frame.budget_ms
        self._parts.answered(total, met, timings)
        parts = self._parts
        return Answer(outputs, "device", timings, met, self.contract, artifact=parts.entry.recipe, engine=parts.engine)

    def _run(self, tensors: Tensors) -> tuple[Tensors, float, float]:
        """(outputs, seconds in the engine's queue, seconds of the inference), and the state moved on."""
        if self._torn:
            raise SessionError(
                "the state is not known since an inference failed",
                do="Call session.reset(), or open another session",
            )
        if self._engine is None:
            served = self._parts.run(self._carry.feed(tensors, self._state))
            self._state = self._carry.after(served.result)
            return served.result, served.queued_s, served.ran_s
        before = perf_counter()
        self._torn = True
        result = self._engine.run(tensors)
        self._torn = False
        return result, 0.0, perf_counter() - before

    def _serve(self, frame: _Frame, answer: Future[Answer]) -> None:
        """A submitted frame, in the session's thread, which has the turn."""
        self._serving = threading.get_ident()
        try:
            if not answer.set_running_or_notify_cancel():
                self._turns.give()
                return
            try:
                result = self._answer(frame)
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                self._turns.give()
                self._parts.failed(error)
                answer.set_exception(error)
                return
            self._turns.give()
            answer.set_result(result)
        finally:
            self._serving = None

    def _wait(self) -> None:
        """Until it is this caller's turn. Raises ClosedError where the session is closed meanwhile."""
        if self._serving == threading.get_ident():
            raise SessionError(
                "a callback of the session's own future asks the session to wait, and holds up its thread",
                do="Call session.submit() there",
            )
        self._turns.wait()

    def _check_open(self) -> None:
        self._guard.check()
        if self._turns.closed:
            raise closed()

    def _refuse_state(self, inputs: Any) -> None:
        if not isinstance(inputs, Mapping):
            return
        carried = {pair.input for pair in self._parts.contract.carried or ()} & inputs.keys()
        if carried:
            names = ", ".join(spec.name for spec in self.contract.inputs)
            raise InputError(f"'{min(carried)}' is the state, which the session carries", do=f"Pass {names} alone")

    def _free(self) -> None:
        if self._engine is not None:
            self._engine.close()
