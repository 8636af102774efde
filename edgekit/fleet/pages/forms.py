"""The page of alerts: active and past ones, with the forms to acknowledge and to silence.

    routes = AlertPages(tables, access, render).routes

Rules: an acknowledgement bears the viewer's name; a silence ends by itself; a form carries the viewer's token.

The pages of roll-outs: each with its waves and boards, and the operator's actions as forms.

    routes = RolloutPages(tables, access, render).routes

Rules: what a word does is decided by `rollout_tables`; a form carries the viewer's token; only words that make sense in
a state are offered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from starlette.concurrency import run_in_threadpool  # noqa: TID253
from starlette.convertors import IntegerConvertor, register_url_convertor  # noqa: TID253
from starlette.exceptions import HTTPException  # noqa: TID253
from starlette.requests import Request  # noqa: TID253
from starlette.responses import RedirectResponse, Response  # noqa: TID253
from starlette.routing import Route  # noqa: TID253

from edgekit.fleet.alerts.alert_tables import AlertTables
from edgekit.fleet.pages.access import Access, read_form
from edgekit.fleet.pages.lists import DIGITS
from edgekit.fleet.rollouts.rollout_tables import RolloutTables
from edgekit.fleet.rollouts.shadows import describe
from edgekit.fleet.rollouts.waves import State, Word, possible
from edgekit.fleet.store.fleet_errors import FleetError, StoreError
from edgekit.fleet.store.records import now_ms
from edgekit_runtime.install.orders import FINAL

ROW = "{number:row}"
"""In a route: with more digits there is no such page."""


class _Row(IntegerConvertor):
    regex = DIGITS


register_url_convertor("row", _Row())
_HOURS = {"1": "an hour", "8": "8 hours", "24": "a day", "168": "a week"}
_NOBODY = "an operator"
_SHOWN = 200


class _FormPages:
    """render: (request, template, **values) to a page.
    stream: (request, template, read) to a part that stays live."""

    def __init__(self, access: Access, render: Callable[..., Response], stream: Callable[..., Response]) -> None:
        self._access, self._render, self._stream = access, render, stream

    def _live(self, name: str, read: Callable[[], dict[str, Any]]) -> list[Route]:
        """/NAME, and what streams its part."""

        async def page(request: Request) -> Response:
            return self._render(request, f"{name}.html", **await run_in_threadpool(read))

        async def stream(request: Request) -> Response:
            return self._stream(request, f"{name}-part.html", read)

        return [Route(f"/{name}", page), Route(f"/stream/{name}", stream)]


class AlertPages(_FormPages):
    def __init__(self, tables: AlertTables, *pages: Any) -> None:
        super().__init__(*pages)
        self._tables = tables
        self.routes = [
            *self._live("alerts", self._read),
            Route(f"/alerts/{ROW}/acknowledge", self.acknowledge, methods=["POST"]),
            Route("/alerts/silence", self.silence, methods=["POST"]),
        ]

    def _read(self) -> dict[str, Any]:
        lasting = self._tables.lasting(_SHOWN)
        over = [alert for alert in self._tables.list(active=False, limit=_SHOWN) if alert.cleared_ms]
        return {"lasting": lasting, "over": over, "silences": self._tables.silences(now_ms()), "hours": _HOURS}

    async def acknowledge(self, request: Request) -> Response:
        viewer = request.scope["viewer"]
        await read_form(request, self._access, viewer)
        return await self._do(self._tables.acknowledge, request.path_params["number"], viewer.name or _NOBODY, now_ms())

    async def silence(self, request: Request) -> Response:
        form = await read_form(request, self._access, request.scope["viewer"])
        if form.get("hours") not in _HOURS:
            raise HTTPException(400, "Choose a duration.")
        until = now_ms() + int(form["hours"]) * 3_600_000
        return await self._do(self._tables.silence, form.get("what", ""), until)

    async def _do(self, what: Callable[..., Any], *given: Any) -> Response:
        with _refused(404):
            await run_in_threadpool(what, *given)
        return RedirectResponse("/alerts", 303)


@contextmanager
def _refused(status: int) -> Iterator[None]:
    """Raise FleetError as HTTPException; a failing store stays StoreError."""
    try:
        yield
    except StoreError:
        raise
    except FleetError as error:
        raise HTTPException(status, str(error)) from error


_MEANS: Mapping[Word, str] = {
    "pause": "no further waves; boards with an order finish it",
    "resume": "continue; the current wave is not compared",
    "abort": "end; pending orders are withdrawn, updated boards stay",
    "undo": "end; updated boards return to their previous bundle",
}
_VERDICTS: Mapping[State, tuple[str, str]] = {
    "running": ("on", "In progress."),
    "paused": ("wait", "Paused: no further wave begins."),
    "aborted": ("bad", "Stopped: boards that moved keep the new version."),
    "undoing": ("bad", "Going back: boards that moved return to their former version."),
    "undone": ("bad", "Rolled back: boards that moved have their former version again."),
    "done": ("on", "Done: every wave has committed."),
}
"""Class and words of a roll-out's state."""
_MOST_BOARDS = 500


def phase_words(want: str, phase: str) -> tuple[str, str]:
    """(words, class) of boards with this order and report."""
    if want == "shadow":
        words = "shadow runs" if phase == "shadowing" else f"{phase or 'ordered'}, shadow"
        return words, "on" if phase == "shadowing" else "bad" if phase in FINAL else "wait"
    if want == "former":
        return ("back on the former version" if phase == "committed" else f"{phase or 'ordered'}, going back"), "bad"
    if phase in ("", "shadowing"):
        return {"new": ("ordered", "wait"), "": ("not yet", "off")}.get(want, ("withdrawn", "off"))
    return phase, "on" if phase == "committed" else "bad" if phase in FINAL else "wait"


class RolloutPages(_FormPages):
    def __init__(self, tables: RolloutTables, *pages: Any) -> None:
        super().__init__(*pages)
        self._tables = tables
        self.routes = [
            *self._live("rollouts", lambda: {"rollouts": tables.all(), "verdicts": _VERDICTS}),
            Route(f"/stream/rollouts/{ROW}", self.stream_one),
            Route(f"/rollouts/{ROW}", self.one),
            Route(f"/rollouts/{ROW}/{{word}}", self.speak, methods=["POST"]),
        ]

    async def one(self, request: Request) -> Response:
        values = await run_in_threadpool(self._read, request.path_params["number"])
        return self._render(request, "rollout.html", **values)

    async def stream_one(self, request: Request) -> Response:
        number = request.path_params["number"]
        await run_in_threadpool(self._read, number)  # there is one
        return self._stream(request, "rollout-part.html", lambda: self._read(number), str(number))

    def _read(self, number: int) -> dict[str, Any]:
        """Raises HTTPException 404."""
        with _refused(404):
            rollout = self._tables.get(number)
        waves: dict[int, list[tuple[str, str, int]]] = {}
        for (wave, want, phase), n in self._tables.phases(number).items():
            waves.setdefault(wave, []).append((*phase_words(want, phase), n))
        shadows = self._tables.shadows(rollout)
        boards = [(row, *phase_words(row.want, row.phase)) for row in self._tables.boards(number, _MOST_BOARDS)]
        return {
            "rollout": rollout, "waves": waves, "offered": possible(rollout.standing.state), "means": _MEANS,
            "boards": boards, "more": max(0, rollout.boards - len(boards)), "verdicts": _VERDICTS,
            "figures": self._tables.figures(number), "shadows": shadows, "shown": describe(shadows) if shadows else "",
        }  # fmt: skip

    async def speak(self, request: Request) -> Response:
        await read_form(request, self._access, request.scope["viewer"])
        number, word = request.path_params["number"], request.path_params["word"]
        if word not in _MEANS:
            raise HTTPException(404, "Unknown action for a roll-out.")
        with _refused(409):
            await run_in_threadpool(self._tables.speak, number, cast(Word, word), now_ms())
        return RedirectResponse(f"/rollouts/{number}", 303)
