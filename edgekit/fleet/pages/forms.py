"""The page of alerts: active and past ones, with the forms to acknowledge and to silence.

    routes = AlertPages(tables, access, render).routes

Rules: an acknowledgement bears the viewer's name; a silence ends by itself; a form carries the viewer's token.

The pages of roll-outs: each with its waves and boards, and the operator's words as forms.

    routes = RolloutPages(tables, access, render).routes

Rules: what a word does is decided by `rollout_tables`; a form carries the viewer's token; only words that make sense in
a state are offered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from starlette.concurrency import run_in_threadpool  # noqa: TID253
from starlette.exceptions import HTTPException  # noqa: TID253
from starlette.requests import Request  # noqa: TID253
from starlette.responses import RedirectResponse, Response  # noqa: TID253
from starlette.routing import Route  # noqa: TID253

from edgekit.fleet.alerts.alert_tables import AlertTables
from edgekit.fleet.pages.access import Access, read_form
from edgekit.fleet.pages.numbers import ROW
from edgekit.fleet.rollouts.rollout_tables import RolloutTables
from edgekit.fleet.rollouts.rollouts import State, Word
from edgekit.fleet.store.fleet_errors import FleetError, StoreError

_HOURS = {"1": "an hour", "8": "8 hours", "24": "a day", "168": "a week"}
_NOBODY = "an operator"
_SHOWN = 200


class AlertPages:
    """render: (request, template, **values) to a page.
    stream: (request, template, read) to a part that stays live."""

    def __init__(
        self, tables: AlertTables, access: Access, render: Callable[..., Response], stream: Callable[..., Response]
    ) -> None:
        self._tables, self._access, self._render, self._stream = tables, access, render, stream
        self.routes = [
            Route("/alerts", self.all),
            Route("/stream/alerts", self.stream),
            Route(f"/alerts/{ROW}/acknowledge", self.acknowledge, methods=["POST"]),
            Route("/alerts/silence", self.silence, methods=["POST"]),
        ]

    async def all(self, request: Request) -> Response:
        return self._render(request, "alerts.html", **await run_in_threadpool(self._read))

    async def stream(self, request: Request) -> Response:
        return self._stream(request, "alerts-part.html", self._read)

    def _read(self) -> dict[str, Any]:
        lasting = self._tables.lasting(_SHOWN)
        over = [alert for alert in self._tables.list(active=False, limit=_SHOWN) if alert.cleared_ms]
        return {"lasting": lasting, "over": over, "silences": self._tables.silences(_now_ms()), "hours": _HOURS}

    async def acknowledge(self, request: Request) -> Response:
        viewer = request.scope["viewer"]
        await read_form(request, self._access, viewer)
        return await self._do(
            self._tables.acknowledge, request.path_params["number"], viewer.name or _NOBODY, _now_ms()
        )

    async def silence(self, request: Request) -> Response:
        form = await read_form(request, self._access, request.scope["viewer"])
        if form.get("hours") not in _HOURS:
            raise HTTPException(400, "Choose how long to be quiet.")
        until = _now_ms() + int(form["hours"]) * 3_600_000
        return await self._do(self._tables.silence, form.get("what", ""), until)

    async def _do(self, what: Callable[..., Any], *given: Any) -> Response:
        try:
            await run_in_threadpool(what, *given)
        except StoreError:
            raise
        except FleetError as error:
            raise HTTPException(404, str(error)) from error
        return RedirectResponse("/alerts", 303)


def _now_ms() -> int:
    return int(time.time() * 1000)


OFFERED: Mapping[State, tuple[Word, ...]] = {
    "running": ("pause", "abort", "undo"),
    "paused": ("resume", "abort", "undo"),
    "aborted": ("undo",),
    "undoing": (),
    "undone": (),
    "done": ("undo",),
}
_MEANS: Mapping[Word, str] = {
    "pause": "no further wave; boards that were ordered finish",
    "resume": "continue; the wave in hand needs no figures then",
    "abort": "end; orders are withdrawn, boards that moved stay",
    "undo": "end; boards that moved go back to their former bundle",
}
_MOST_BOARDS = 500


class RolloutPages:
    """render: (request, template, **values) to a page.
    stream: (request, template, read) to a part that stays live."""

    def __init__(
        self, tables: RolloutTables, access: Access, render: Callable[..., Response], stream: Callable[..., Response]
    ) -> None:
        self._tables, self._access, self._render, self._stream = tables, access, render, stream
        self.routes = [
            Route("/rollouts", self.all),
            Route("/stream/rollouts", self.stream_all),
            Route(f"/stream/rollouts/{ROW}", self.stream_one),
            Route(f"/rollouts/{ROW}", self.one),
            Route(f"/rollouts/{ROW}/{{word}}", self.speak, methods=["POST"]),
        ]

    async def all(self, request: Request) -> Response:
        found = await run_in_threadpool(self._tables.all)
        return self._render(request, "rollouts.html", rollouts=found)

    async def one(self, request: Request) -> Response:
        values = await run_in_threadpool(self._read, request.path_params["number"])
        return self._render(request, "rollout.html", **values)

    async def stream_all(self, request: Request) -> Response:
        return self._stream(request, "rollouts-part.html", lambda: {"rollouts": self._tables.all()})

    async def stream_one(self, request: Request) -> Response:
        number = request.path_params["number"]
        await run_in_threadpool(self._read, number)  # there is one
        return self._stream(request, "rollout-part.html", lambda: self._read(number), str(number))

    def _read(self, number: int) -> dict[str, Any]:
        """Raises HTTPException 404."""
        try:
            rollout = self._tables.get(number)
        except StoreError:
            raise
        except FleetError as error:
            raise HTTPException(404, error.what) from error
        waves: dict[int, dict[str, int]] = {}
        for (wave, want, phase), n in self._tables.phases(number).items():
            word = phase or ("ordered" if want in ("new", "former") else "not yet" if want == "" else "withdrawn")
            waves.setdefault(wave, {})[f"{word}, going back" if want == "former" else word] = n
        boards = self._tables.boards(number, _MOST_BOARDS)
        return {
            "rollout": rollout, "waves": waves, "offered": OFFERED[rollout.standing.state], "means": _MEANS,
            "boards": boards, "more": max(0, rollout.boards - len(boards)),
        }  # fmt: skip

    async def speak(self, request: Request) -> Response:
        await read_form(request, self._access, request.scope["viewer"])
        number, word = request.path_params["number"], request.path_params["word"]
        if word not in _MEANS:
            raise HTTPException(404, "There is no such word for a roll-out.")
        try:
            await run_in_threadpool(self._tables.speak, number, cast(Word, word), int(time.time() * 1000))
        except StoreError:
            raise
        except FleetError as error:
            raise HTTPException(409, str(error)) from error
        return RedirectResponse(f"/rollouts/{number}", 303)
