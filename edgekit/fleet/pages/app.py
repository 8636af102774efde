"""The pages: a list of the fleet and a page a device, live by server-sent events.

Rules:
- pages read device rows and roll-ups, never raw windows, and never block the event loop;
- everything that a board said is text: autoescape is on, and the content security policy allows no script but ours;
- it works offline: the plotting script comes out of the installed plotly wheel;
- nothing here writes.

    app = make_app(store, Facts(lambda: ingest.refused, lambda: {"connected": True}, "mqtt://127.0.0.1"))
"""

from __future__ import annotations

import asyncio  # noqa: TID253 - this module is only loaded by a server
import importlib.util
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader  # noqa: TID253
from starlette.applications import Starlette  # noqa: TID253
from starlette.concurrency import run_in_threadpool  # noqa: TID253
from starlette.middleware import Middleware  # noqa: TID253
from starlette.requests import Request  # noqa: TID253
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse  # noqa: TID253
from starlette.routing import Mount, Route  # noqa: TID253
from starlette.staticfiles import StaticFiles  # noqa: TID253
from starlette.types import ASGIApp, Message, Receive, Scope, Send  # noqa: TID253

from edgekit.fleet.pages.show import FILTERS
from edgekit.fleet.store import Device, Quarter, Store
from edgekit_runtime.errors import MissingExtraError
from edgekit_runtime.telemetry import DEVICE_ID

__all__ = ["Facts", "make_app", "series"]

PAGE = 100
_HERE = Path(__file__).parent
_DAY_MS = 24 * 3600 * 1000
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'{inline}; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
}


@dataclass(frozen=True)
class Facts:
    """What the pages ask of the server.

    refused: payloads by word.
    health: a few figures.
    broker: its URL, no secrets.
    """

    refused: Callable[[], Mapping[str, int]]
    health: Callable[[], Mapping[str, Any]]
    broker: str
    every_s: float = 1.0


def make_app(store: Store, facts: Facts) -> Starlette:
    """Raises MissingExtraError when the plotting script is not installed."""
    pages = _Pages(store, facts)
    routes = [
        Route("/", pages.fleet),
        Route("/device/{name}", pages.device),
        Route("/device/{name}/series", pages.series),
        Route("/stream", pages.stream_fleet),
        Route("/stream/device/{name}", pages.stream_device),
        Route("/healthz", pages.healthz),
        Route("/static/plotly.min.js", pages.plotly),
        Mount("/static", StaticFiles(directory=_HERE / "static")),
    ]
    return Starlette(routes=routes, middleware=[Middleware(_Secured)], exception_handlers={404: pages.missing})


class _Secured:
    """Security headers on every answer. Plotly sets styles of its own, so the device page allows those and nothing
    more.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        inline = " 'unsafe-inline'" if scope["path"].startswith("/device/") else ""
        extra = _HEADERS | {"content-security-policy": _POLICY.format(inline=inline)}

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in extra.items())]
            await send(message)

        await self._app(scope, receive, secured)


class _Pages:
    def __init__(self, store: Store, facts: Facts) -> None:
        self._store, self._facts = store, facts
        self._plotly = _plotly_script()
        self._jinja = Environment(
            loader=FileSystemLoader(_HERE / "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True
        )
        self._jinja.filters.update(FILTERS)
        self._parts = self._jinja.get_template("parts.html").module

    def _render(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        return HTMLResponse(self._jinja.get_template(template).render(**values), status)

    async def fleet(self, request: Request) -> Response:
        q, state = request.query_params.get("q", "")[:100], request.query_params.get("state", "")
        rows = _filtered(await run_in_threadpool(self._store.fleet), q, state)
        pages = max(1, -(-len(rows) // PAGE))
        page = min(max(1, _whole(request.query_params.get("page"), 1)), pages)
        return self._render(
            "fleet.html",
            rows=rows[(page - 1) * PAGE : page * PAGE],
            totals=await run_in_threadpool(self._store.totals),
            refused=dict(self._facts.refused()), health=dict(self._facts.health()),
            q=q, state=state, filtered=bool(q or state), page=page, pages=pages,
            earlier=urlencode({"q": q, "state": state, "page": page - 1}),
            later=urlencode({"q": q, "state": state, "page": page + 1}),
            query=urlencode({"q": q, "state": state, "page": page, "n": len(rows)}),
            broker=self._facts.broker,
        )  # fmt: skip

    async def device(self, request: Request) -> Response:
        row = await self._find(request)
        if row is None:
            return await self.missing(request, None)
        events = await run_in_threadpool(self._store.events, row.id, 30)
        return self._render("device.html", row=row, events=events)

    async def series(self, request: Request) -> Response:
        row = await self._find(request)
        if row is None:
            return JSONResponse({"error": "no such device"}, 404)
        quarters = await run_in_threadpool(self._store.quarters, row.id, _now_ms() - _DAY_MS)
        return JSONResponse(series(row, quarters))

    async def healthz(self, request: Request) -> Response:
        """200 while the store answers and the broker is there; 503 otherwise."""
        try:
            totals = asdict(await run_in_threadpool(self._store.totals))
        except Exception as error:  # noqa: BLE001 - whatever it is, this is where it is told
            return JSONResponse({"ok": False, "what": str(error)}, 503)
        health = dict(self._facts.health())
        ok = bool(health.get("connected", True))
        return JSONResponse({"ok": ok, **health, **totals, "refused": dict(self._facts.refused())}, 200 if ok else 503)

    async def plotly(self, request: Request) -> Response:
        return FileResponse(self._plotly, media_type="text/javascript", headers={"cache-control": "max-age=86400"})

    async def missing(self, request: Request, _error: Any) -> Response:
        name = request.path_params.get("name", "")
        what = f"No device {name} has reported here." if DEVICE_ID.match(name) else "There is no such page."
        return self._render("missing.html", 404, what=what)

    # What changes, as it changes.

    async def stream_fleet(self, request: Request) -> Response:
        params = request.query_params
        q, state, shown = params.get("q", "")[:100], params.get("state", ""), _whole(params.get("n"), 0)
        return _stream(self._fleet_changes(q, state, shown))

    async def _fleet_changes(self, q: str, state: str, shown: int) -> AsyncIterator[str]:
        seen, told = -1, ""
        while True:
            rows = await run_in_threadpool(self._store.fleet, seen)
            if rows:
                first, seen = seen < 0, max(row.changed for row in rows)
                if (
                    not first
                    and not state
                    and len(_filtered(await run_in_threadpool(self._store.fleet), q, "")) > shown
                ):
                    yield _event("reload", "")
                yield _event("replace", "".join(str(self._parts.fleet_row(row)) for row in rows))  # type: ignore[attr-defined]
            sums, health = await run_in_threadpool(self._store.totals), dict(self._facts.health())
            totals = str(self._parts.totals(sums, dict(self._facts.refused()), health))  # type: ignore[attr-defined]
            if totals != told:
                told = totals
                yield _event("replace", totals)
            elif not rows:
                yield ": nothing new\n\n"
            await asyncio.sleep(self._facts.every_s)

    async def stream_device(self, request: Request) -> Response:
        row = await self._find(request)
        return _stream(self._device_changes(row)) if row is not None else await self.missing(request, None)

    async def _device_changes(self, row: Device) -> AsyncIterator[str]:
        seen = row.changed
        while True:
            now = await run_in_threadpool(self._store.device, row.id)
            if now is not None and now.changed != seen:
                seen = now.changed
                events = await run_in_threadpool(self._store.events, row.id, 30)
                listed = self._jinja.get_template("events.html").render(events=events)
                figures = self._jinja.get_template("figures.html").render(row=now)
                yield _event("replace", f'{figures}<ul class="events" id="events">{listed}</ul>')
                yield _event("series", "")
            else:
                yield ": nothing new\n\n"
            await asyncio.sleep(self._facts.every_s)

    async def _find(self, request: Request) -> Device | None:
        name = request.path_params["name"]
        return await run_in_threadpool(self._store.device, name) if DEVICE_ID.match(name) else None


def series(row: Device, quarters: Sequence[Quarter]) -> dict[str, Any]:
    """What the charts show: a point a quarter of an hour, then one a window where the row still has them."""
    oldest = row.recent[0][0] if row.recent else None
    points: list[list[Any]] = [
        [q.start_ms + 450_000, q.p50, q.p95, q.p99, q.rate, q.temp]
        for q in quarters
        if oldest is None or q.start_ms + 900_000 <= oldest
    ]
    points += row.recent
    columns: Iterator[list[Any]] = (list(column) for column in zip(*points, strict=True)) if points else iter([[]] * 6)
    names = ("t", "p50", "p95", "p99", "rate", "temp")
    return {**dict(zip(names, columns, strict=True)), "budget_ms": row.budget_ms}


def _filtered(rows: list[Device], q: str, state: str) -> list[Device]:
    wanted = q.lower()
    found = [row for row in rows if wanted in f"{row.id} {row.model} {row.version} {row.profile}".lower()]
    if state in ("online", "offline"):
        found = [row for row in found if row.online == (state == "online")]
    elif state == "late":
        found = [row for row in found if row.budget_ms and row.p99 is not None and row.p99 > row.budget_ms]
    return found


def _stream(changes: AsyncIterator[str]) -> Response:
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(changes, media_type="text/event-stream", headers=headers)


def _event(name: str, html: str) -> str:
    """JSON keeps line breaks out of the data lines."""
    return f"event: {name}\ndata: {json.dumps(html)}\n\n"


def _whole(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 7 else otherwise


def _plotly_script() -> Path:
    spec = importlib.util.find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("fleet", "drawing charts")
    return Path(next(iter(spec.submodule_search_locations))) / "package_data" / "plotly.min.js"


def _now_ms() -> int:
    return int(time.time() * 1000)
