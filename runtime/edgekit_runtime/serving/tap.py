"""Copies of requests for what looks at them beside their callers: a shadow, samples.

    tap(journey).add(listener)          # and `remove`; without listeners no request takes another path

Rules:
- a caller's answer is there before a listener sees it, and nothing that a listener does is raised into the caller;
- callers of `submit` and `apredict` may overwrite their inputs meanwhile: a listener says before the answer whether it
  wants the request.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol

from edgekit_runtime.contract.decode import copy_in
from edgekit_runtime.serving.journey import Journey
from edgekit_runtime.serving.request import Answer, Request


class RequestListener(Protocol):
    def wants(self, answer: Answer | None) -> bool:
        """answer: by the device; None before there is one."""

    def take(self, copied: dict[str, Any], answer: Answer, budget_ms: float | None) -> None:
        """copied: inputs that the caller cannot change, as `Intake.take` gives them."""


def tap(journey: Journey) -> Tap:
    """The journey's one."""
    if journey.tap is None:
        journey.tap = Tap(journey)
    found: Tap = journey.tap
    return found


class Tap:
    def __init__(self, journey: Journey) -> None:
        self._journey, self._listeners = journey, tuple[RequestListener, ...]()
        self._predict = journey.predict

    def add(self, listener: RequestListener) -> None:
        if not self._listeners:
            self._open()
        self._listeners += (listener,)

    def remove(self, listener: RequestListener) -> None:
        self._listeners = tuple(one for one in self._listeners if one is not listener)
        if not self._listeners:
            for name in ("travel", "submit", "wait"):
                self._journey.__dict__.pop(name, None)
            self._journey.predict = self._predict

    def _open(self) -> None:
        journey, inner = self._journey, self._predict
        travel, submit, wait = journey.travel, journey.submit, journey.wait

        def predict(inputs: Any, budget_ms: float | None, start: float) -> Answer:
            answer = inner(inputs, budget_ms, start)
            self._after(inputs, answer, budget_ms)
            return answer

        def travel_too(request: Request, inputs: Any, **how: Any) -> Answer:
            answer = travel(request, inputs, **how)
            self._after(inputs, answer, request.budget_ms)
            return answer

        def submit_too(request: Request, inputs: Any) -> Future[Answer]:
            before = self._before(inputs)
            return self._follow(submit(request, inputs), before, request.budget_ms)

        async def wait_too(request: Request, inputs: Any) -> Answer | Future[Answer]:
            before = self._before(inputs)
            answer = await wait(request, inputs)
            if not isinstance(answer, Answer):
                return self._follow(answer, before, request.budget_ms)
            self._give(before, answer, request.budget_ms)
            return answer

        journey.predict = predict
        journey.travel, journey.submit, journey.wait = travel_too, submit_too, wait_too  # type: ignore[method-assign]

    def _after(self, inputs: Any, answer: Answer, budget_ms: float | None) -> None:
        if answer.source != "device":
            return
        try:
            wanting = [one for one in self._listeners if one.wants(answer)]
            if wanting:
                self._give((wanting, self._copy(inputs)), answer, budget_ms)
        except Exception as error:  # noqa: BLE001 - the caller has its answer
            self._journey.faults.note("tap", error)

    def _before(self, inputs: Any) -> tuple[list[RequestListener], dict[str, Any]] | None:
        try:
            wanting = [one for one in self._listeners if one.wants(None)]
            return (wanting, self._copy(inputs)) if wanting else None
        except Exception as error:  # noqa: BLE001 - the caller gets its own error, if that is one
            self._journey.faults.note("tap", error)
            return None

    def _copy(self, inputs: Any) -> dict[str, Any]:
        return {name: copy_in(value) for name, value in self._journey.intake.take(inputs).items()}

    def _give(
        self, before: tuple[list[RequestListener], dict[str, Any]] | None, answer: Answer, budget_ms: float | None
    ) -> None:
        if before is not None and answer.source == "device":
            for listener in before[0]:
                self._journey.faults.shield("tap", lambda one=listener: one.take(before[1], answer, budget_ms))  # type: ignore[misc]

    def _follow(
        self,
        answer: Future[Answer],
        before: tuple[list[RequestListener], dict[str, Any]] | None,
        budget_ms: float | None,
    ) -> Future[Answer]:
        def done(ended: Future[Answer]) -> None:
            if not ended.cancelled() and ended.exception() is None:
                self._give(before, ended.result(), budget_ms)

        if before is not None:
            answer.add_done_callback(done)
        return answer
