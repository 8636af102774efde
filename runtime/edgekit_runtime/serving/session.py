"""Sessions of a model with a state: a frame's way, its turn, and how many may be open.

    with model.session() as session:
        answer = session.predict(frame)

Rules:
- first come, first served, one frame at a time;
- a waiting caller that is interrupted leaves the line;
- closing refuses waiting and new frames, and frees the engine once no frame runs.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from numpy.typing import NDArray

from edgekit_runtime.bundle.manifest import ArtifactEntry
from edgekit_runtime.contract.adapt import Carry, Finisher, adapters
from edgekit_runtime.contract.spec import Contract, TensorSpec
from edgekit_runtime.engines.registry import Engine
from edgekit_runtime.serving.request import Answer, Intake, Request, checked_budget, own
from edgekit_runtime.system.closing import ClosedOnExit
from edgekit_runtime.system.errors import ClosedError, EdgekitError, InputError, SessionError, model_closed
from edgekit_runtime.system.records import record
from edgekit_runtime.system.threads import ForkGuard, fork_safe_future

MOST_SESSIONS = 16
"""Sessions that may be open at once if each has an engine of its own."""
Tensors = list[NDArray[Any]]


class TimedRun(Protocol):
    """One inference.

    result: the engine's outputs.
    queued_s, ran_s: seconds in the engine's queue, and of the run.
    """

    @property
    def result(self) -> Tensors: ...
    @property
    def queued_s(self) -> float: ...
    @property
    def ran_s(self) -> float: ...


@record(frozen=True)
class SessionParts:
    """What sessions need of their model.

    ready: input tensors of the primary artifact, whose form callers may pass.
    engine: name and version.
    run: one inference on the model's own engine, in turn with all other callers; for a state that is carried.
    load: another engine of the same bytes, fresh; for a state inside the engine.
    answered: called with every answer (total milliseconds, whether the budget was met, milliseconds by stage).
    failed: called for every frame without an answer.
    dropped: called with a number of frames that were left out for newer ones.
    most: sessions with an engine of their own that may be open at once.
    budget_ms: of a frame for which its caller names none.
    """

    contract: Contract
    entry: ArtifactEntry
    ready: Sequence[TensorSpec]
    engine: str
    run: Callable[[Tensors], TimedRun]
    load: Callable[[], Engine]
    answered: Callable[[float, bool | None, Mapping[str, float]], None]
    failed: Callable[[BaseException], None]
    dropped: Callable[[int], None] = lambda frames: None
    most: int = MOST_SESSIONS
    budget_ms: float | None = None


def needs_session(contract: Contract) -> SessionError:
    """The error of `predict` for a model that keeps a state."""
    kept = "inside" if contract.state == "internal" else "that is carried from answer to answer"
    return SessionError(
        f"the model keeps a state {kept}, so one answer depends on those before it",
        do="Ask it in order: with model.session() as session: session.predict(frame)",
    )


class Session(ClosedOnExit["Session"]):
    """A session of a stateful model, returned by `model.session()`. Frames run in call order.

    Thread-safe. There is no `priority` and no `stale_ok`, because frames depend on earlier ones.
    """

    def __init__(self, parts: SessionParts, forget: Callable[[Session], None] = lambda session: None) -> None:
        entry, self.contract = parts.entry, parts.contract.of_caller
        self._parts, self._forget, self._guard = parts, forget, ForkGuard()
        self._intake = Intake(self.contract, parts.ready)
        self._carry = Carry(parts.contract, entry.inputs, entry.outputs)
        self._adapters = adapters(parts.contract, self._carry.asked, parts.ready)
        self._finisher = Finisher(self.contract, entry.outputs)
        self.count_dropped = parts.dropped
        self._turns = Turns()
        self._worker: ThreadPoolExecutor | None = None
        self._serving: int | None = None
        self._torn = False
        self._state = self._carry.begin()
        self._engine = parts.load() if parts.contract.state == "internal" else None
        self._frames = 0

    @property
    def frames(self) -> int:
        """Frames answered since the session began or was reset."""
        return self._frames

    def predict(self, inputs: Any, *, budget_ms: float | None = None) -> Answer:
        """Answer the next frame; waits for it and for earlier frames.

        inputs, budget_ms: as for `model.predict`, without the states. A missed budget only sets `answer.met_budget`;
        no frame is skipped.
        Raises InputError, EngineError, SessionError, ClosedError.
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
        """As `predict`, without waiting. Bad input raises here; the future carries later errors.

        A frame cancelled before its turn never runs.
        """
        frame = self._arrive(inputs, budget_ms, keep=True)
        answer: Future[Answer] = fork_safe_future()
        if self._worker is None:
            with self._turns.lock:
                self._worker = self._worker or ThreadPoolExecutor(1, thread_name_prefix="edgekit-session")
        worker = self._worker

        def begin(turn: Future[None]) -> None:
            error = turn.exception()
            if error is None:
                try:
                    worker.submit(self._serve, frame, answer)
                except Exception as failed:  # noqa: BLE001 - the future would only log it
                    self._turns.give()
                    # closed between the question and its turn, or the interpreter ends
                    error = closed_error() if isinstance(failed, RuntimeError) else failed
            if error is not None and answer.set_running_or_notify_cancel():
                answer.set_exception(error)

        self._turns.take().add_done_callback(begin)
        return answer

    async def apredict(self, inputs: Any, *, budget_ms: float | None = None) -> Answer:
        """As `predict`, for asyncio. Decodes in this thread; the engine runs in the session's."""
        import asyncio

        return await asyncio.wrap_future(self.submit(inputs, budget_ms=budget_ms))

    def reset(self) -> None:
        """Wait for earlier frames, then reset the state to its initial value.

        Raises ClosedError.
        """
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
        """Fail waiting frames with ClosedError, wait for the running one, free the engine.

        In a forked child it does nothing.
        """
        if self._guard.forked:
            return
        if self._turns.close(self._free, timeout_s) and self._worker is not None:
            self._worker.shutdown(wait=False)
        self._forget(self)

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
        """Run a frame and move the state on. Returns (outputs, seconds queued, seconds of the run)."""
        if self._torn:
            raise SessionError(
                "the state is unknown because an inference failed", do="Call session.reset(), or open another session"
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
        """Wait for this caller's turn. Raises ClosedError if the session is closed meanwhile."""
        if self._serving == threading.get_ident():
            raise SessionError(
                "a callback of the session's own future must not wait for the session",
                do="Call session.submit() there",
            )
        self._turns.wait()

    def _check_open(self) -> None:
        self._guard.check()
        if self._turns.closed:
            raise closed_error()

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


@dataclass(slots=True)
class _Frame(Request):
    """A frame on its way: the caller's tensors, as the artifact takes them."""

    tensors: Tensors = field(default_factory=list)
    asked: float = 0.0


class Sessions:
    """A model's sessions. Thread-safe."""

    def __init__(self, parts: SessionParts) -> None:
        self._parts = parts
        self._lock = threading.Lock()
        self._open = weakref.WeakSet[Session]()  # an unreferenced one is closed by being collected
        self._opening = 0
        self._closed = False

    def open(self) -> Session:
        """A session in its first state.

        Raises SessionError (no state, too many), ClosedError, EngineError.
        """
        contract = self._parts.contract
        if contract.state == "none":
            raise SessionError("the model is stateless and has no sessions", do="Ask it with model.predict(...)")
        with self._lock:
            if self._closed:
                raise model_closed()
            if contract.state == "internal" and len(self._open) + self._opening >= self._parts.most:
                raise SessionError(
                    f"{self._parts.most} sessions are open, the most allowed when each has its own engine",
                    do="Close one: session.close(), or a with block",
                )
            self._opening += 1
        try:
            session = Session(self._parts, self._forget)
        except BaseException:
            with self._lock:
                self._opening -= 1
            raise
        with self._lock:
            self._opening -= 1
            self._open.add(session)
            late = self._closed
        if late:
            session.close()
            raise model_closed()
        return session

    def close(self, timeout_s: float = 5.0) -> None:
        """Close all, and open no more."""
        with self._lock:
            self._closed = True
            sessions = list(self._open)
        until = perf_counter() + timeout_s
        for session in sessions:
            session.close(max(0.0, until - perf_counter()))

    def _forget(self, session: Session) -> None:
        with self._lock:
            self._open.discard(session)


class Turns:
    """The line of callers: who has the turn gives it on, once. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._waiting = deque[Future[None]]()
        self._busy = False
        self._idle = threading.Event()
        self._free: Callable[[], None] | None = None
        self.closed = False

    def take(self) -> Future[None]:
        """Done when the turn has come; fails when the session is closed before. Raises ClosedError."""
        turn: Future[None] = Future()  # of this caller alone: a shared one's lock would outlive a fork
        with self.lock:
            if self.closed:
                raise closed_error()
            if self._busy:
                self._waiting.append(turn)
                return turn
            self._busy = True
        turn.set_result(None)
        return turn

    def wait(self) -> None:
        """Return when the turn has come. Raises ClosedError; interrupted, it leaves the line."""
        turn = self.take()
        try:
            turn.result()
        except BaseException:
            if not turn.cancel() and turn.exception() is None:
                self.give()
            raise

    def give(self) -> None:
        """To the next in line."""
        while True:
            with self.lock:
                if not self._waiting:
                    self._busy, free = False, None
                    if self.closed:
                        free, self._free = self._free, None
                    break
                turn = self._waiting.popleft()
            if turn.set_running_or_notify_cancel():
                turn.set_result(None)
                return
        if free is not None:
            free()
            self._idle.set()

    def close(self, free: Callable[[], None], timeout_s: float) -> bool:
        """Refuse new and waiting callers; `free` is called once the turn is free.

        True if this call closed it.
        """
        with self.lock:
            if self.closed:
                return False
            self.closed, busy = True, self._busy
            waiting, self._waiting = self._waiting, deque()
            self._free = free if busy else None
        for turn in waiting:
            if turn.set_running_or_notify_cancel():
                turn.set_exception(closed_error())
        if busy:
            self._idle.wait(timeout_s)
        else:
            free()
        return True


def closed_error() -> ClosedError:
    return ClosedError("the session was closed", do="Open another one: model.session()")
