"""The page of alerts: active and past ones, with the forms to acknowledge and to silence.

    routes = AlertPages(tables, access, render).routes

Rules: an acknowledgement bears the viewer's name; a silence ends by itself; a form carries the viewer's token.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool  # noqa: TID253
from starlette.exceptions import HTTPException  # noqa: TID253
from starlette.requests import Request  # noqa: TID253
from starlette.responses import RedirectResponse, Response  # noqa: TID253
from starlette.routing import Route  # noqa: TID253

from edgekit.fleet.alert_tables import AlertTables
from edgekit.fleet.errors import FleetError, StoreError
from edgekit.fleet.pages.access import Access, read_form
from edgekit.fleet.pages.numbers import ROW

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
