"""The pages: what is wrong, every board, models compared, events, the server itself.

Rules:
- pages read device rows and roll-ups, never raw windows, and never block the event loop;
- the store filters, sorts and pages; the address has the parameters;
- everything that a board said is text: autoescape is on, what cannot be seen is shown escaped, and the content security
  policy allows no script but ours;
- it works offline: charts are drawn here, and no script or style comes from elsewhere;
- what changes something is a form with the viewer's token.

    app = make_app(store, Facts(lambda: ingest.refused, lambda: {"connected": True}, "mqtt://127.0.0.1"))
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader  # noqa: TID253
from starlette.applications import Starlette  # noqa: TID253
from starlette.concurrency import run_in_threadpool  # noqa: TID253
from starlette.exceptions import HTTPException  # noqa: TID253
from starlette.middleware import Middleware  # noqa: TID253
from starlette.requests import Request  # noqa: TID253
from starlette.responses import (  # noqa: TID253
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import BaseRoute, Mount, Route  # noqa: TID253
from starlette.staticfiles import StaticFiles  # noqa: TID253

from edgekit.fleet.alerts.alert_tables import Alert, AlertTables
from edgekit.fleet.pages.access import SESSION_S, Access, TooManyError, Viewer, read_form
from edgekit.fleet.pages.api import FleetApi
from edgekit.fleet.pages.charts import DEVICE_CHARTS, ERRORS, compare, device_charts, finest, fleet_charts, model_charts
from edgekit.fleet.pages.forms import AlertPages, RolloutPages
from edgekit.fleet.pages.guard import COOKIE, Guard, Names, address_of, asking
from edgekit.fleet.pages.lists import PAGE, RANGES, ListQuery, range_of, whole_number
from edgekit.fleet.pages.live import Live, Part, in_every_state
from edgekit.fleet.pages.metrics import FleetMetrics
from edgekit.fleet.pages.show import FILTERS, TABLES, WORDS, lag_s, shown
from edgekit.fleet.rollouts.rollout_tables import RolloutTables
from edgekit.fleet.store.records import GROUPS, STATES, Event, FleetDevice, Query, Resolution, Totals, now_ms
from edgekit.fleet.store.sql import SqlStore
from edgekit_runtime.telemetry.metrics import CONTENT_TYPE
from edgekit_runtime.telemetry.window import DEVICE_ID

_HERE = Path(__file__).parent
_SIGN_IN = "sign in"
_NOBODY = Viewer("", "")
"""For what is drawn for all viewers alike."""
_EVENTS = 100
CURVES_MS = 20_000
_GROUPS = {
    "model": "model and version", "build": "model, version and profile", "profile": "profile", "site": "site",
    "group": "group",
}  # fmt: skip
EVENT_KINDS = (
    "online", "offline", "model", "boot", "epoch", "lost", "refused", "install", "rollback", "trial", "throttling",
    "spool",
)  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """What the pages show of the server.

    refused: payloads by word.
    health: a few figures.
    broker: its URL, no secrets.
    """

    refused: Callable[[], Mapping[str, int]]
    health: Callable[[], Mapping[str, Any]]
    broker: str
    every_s: float = 1.0


def make_app(
    store: SqlStore, facts: Facts, access: Access | None = None, names: Names | None = None,
    more: Sequence[BaseRoute] = (), rollouts: RolloutTables | None = None,
    alerts: AlertTables | None = None,
) -> Starlette:  # fmt: skip
    """access: None lets everybody in.
    more: routes of other rooms. `app.state.live.close()` ends the streams."""
    access = access or Access.open()
    menu = [("/alerts", "Alerts")] * (alerts is not None) + [("/rollouts", "Roll-outs")] * (rollouts is not None)
    pages = _Pages(store, facts, access, menu, alerts)
    routes: list[BaseRoute] = [
        Route("/", pages.fleet),
        Route("/device/{name}", pages.device),
        Route("/device/{name}/charts", pages.device),
        Route("/device/{name}/forget", pages.forget, methods=["POST"]),
        Route("/models", pages.models),
        Route("/model", pages.model),
        Route("/events", pages.events),
        Route("/health", pages.health),
        Route("/stream", pages.stream_fleet),
        Route("/stream/device/{name}", pages.stream_device),
        Route("/stream/events", pages.stream_events),
        Route("/stream/health", pages.stream_health),
        Route("/sign-in", pages.sign_in),
        Route("/sign-in", pages.signed_in, methods=["POST"]),
        Route("/sign-out", pages.sign_out, methods=["POST"]),
        Route("/healthz", pages.healthz),
        Route("/metrics", pages.metrics),
        *FleetApi(store, alerts, rollouts).routes,
        *(AlertPages(alerts, access, pages.render, pages.stream_part).routes if alerts is not None else ()),
        *(RolloutPages(rollouts, access, pages.render, pages.stream_part).routes if rollouts is not None else ()),
        *more,
        Mount("/static", StaticFiles(directory=_HERE / "static", packages=[("edgekit.charts", "static")])),
    ]
    guard = Middleware(Guard, access=access, names=names or Names())
    app = Starlette(
        routes=routes, middleware=[guard], exception_handlers={404: pages.missing, HTTPException: pages.refused}
    )
    app.state.live = pages.live
    return app


def front_alerts(tables: AlertTables | None) -> list[Alert]:
    return tables.lasting() if tables is not None else []


class _TemplateParts:
    """Parts of the stream, from the same templates as the pages."""

    def __init__(self, jinja: Environment, store: SqlStore, facts: Facts, alerts: AlertTables | None) -> None:
        self._jinja, self._store, self._facts, self._alerts = jinja, store, facts, alerts
        self._parts: Any = jinja.get_template("parts.html").module
        self._curves: tuple[int, Any] = (0, "")

    def row(self, row: FleetDevice) -> str:
        return str(self._parts.fleet_row(row))

    def totals(self, totals: Totals) -> str:
        """The totals, with the alerts and the fleet's curves below."""
        sums = self._parts.totals(totals, dict(self._facts.refused()), dict(self._facts.health()))
        return f"{sums}{self._parts.alerts(front_alerts(self._alerts))}{self.curves(totals.online)}"

    def curves(self, online: int) -> Any:
        """The last six hours of the fleet, drawn at most every CURVES_MS for all viewers."""
        at_ms = now_ms()
        if at_ms - self._curves[0] >= CURVES_MS:
            found = self._store.history(None, None, None, at_ms - RANGES["6h"], "15m", stages=False)
            if found and at_ms - found[0].start_ms < 2 * RANGES["1h"]:
                found = self._store.history(None, None, None, found[0].start_ms, "5m", stages=False)
            self._curves = at_ms, self._parts.curves(fleet_charts(found, online, at_ms))
        return self._curves[1]

    def device(self, row: FleetDevice) -> str:
        figures = self._jinja.get_template("figures.html").render(row=row, newest=self._store.newest(row.id))
        listed = self._jinja.get_template("events.html").render(events=self._store.events(row.id, 30), named=False)
        return f'{figures}<ul class="events" id="events">{listed}</ul>'


class _Pages:
    def __init__(
        self, store: SqlStore, facts: Facts, access: Access, more: Sequence[tuple[str, str]], alerts: AlertTables | None
    ) -> None:
        self._alerts = alerts
        self._store, self._facts, self._access = store, facts, access
        self._jinja = Environment(
            loader=FileSystemLoader(_HERE / "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
            finalize=shown,
        )  # fmt: skip
        self._jinja.filters.update(FILTERS)
        self._jinja.globals.update(
            WORDS=WORDS, STATES=STATES, RANGES=tuple(RANGES), GROUPS=_GROUPS, FIELDS=GROUPS, TABLES=TABLES, zip=zip
        )
        menu = (("/", "Boards"), ("/models", "Models"), *more, ("/events", "Events"), ("/health", "Server"))
        self._jinja.globals["MENU"] = menu
        self._drawn = _TemplateParts(self._jinja, store, facts, alerts)
        self._metrics = FleetMetrics(store, facts.refused, facts.health)
        self.live = Live(store, self._drawn, facts.every_s)

    def render(self, request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        page = self._jinja.get_template(template)
        viewer, can_leave, here = request.scope["viewer"], self._access.needs_password, request.url.path
        return HTMLResponse(page.render(viewer=viewer, can_leave=can_leave, here=here, **values), status)

    # The fleet.

    async def fleet(self, request: Request) -> Response:
        return await run_in_threadpool(self._fleet, request, ListQuery.read(request.query_params))

    def _above(self, asked: ListQuery) -> dict[str, Any]:
        """The header of a list or of groups."""
        (counts,) = self._store.counts(None, in_every_state(asked.query))
        return {**self._of_server(), "asked": asked, "counts": counts, "alerts": front_alerts(self._alerts)}

    def _of_server(self) -> dict[str, Any]:
        return {
            "totals": self._store.totals(), "refused": dict(self._facts.refused()),
            "health": dict(self._facts.health()), "broker": self._facts.broker,
        }  # fmt: skip

    def _groups(self, asked: ListQuery) -> dict[str, Any]:
        return {**self._above(asked), "groups": self._store.counts(asked.by, asked.query)}

    def _fleet(self, request: Request, asked: ListQuery) -> Response:
        if asked.by is not None:
            return self.render(request, "groups.html", **self._groups(asked))
        values = self._above(asked)
        front = not asked.narrowed and asked.page == 1
        values["curves"] = self._drawn.curves(values["totals"].online) if front else ""
        rows, count = self._store.devices(asked.query)
        pages = max(1, -(-count // PAGE))
        if asked.page > pages:
            asked = values["asked"] = ListQuery(asked.given, pages, asked.by)
            rows, count = self._store.devices(asked.query)
        return self.render(request, "fleet.html", rows=rows, count=count, pages=pages, per_page=PAGE, **values)

    async def device(self, request: Request) -> Response:
        row = await self._find(request)
        if row is None:
            return await self.missing(request, None)
        values = await run_in_threadpool(self._of_device, row, range_of(request.query_params))
        part = request.url.path.endswith("/charts")  # which the page's script asks for again
        return self.render(request, "device-charts.html" if part else "device.html", **values)

    def _of_device(self, row: FleetDevice, span: str) -> dict[str, Any]:
        at_ms, events = now_ms(), self._store.events(row.id, 200)
        since_ms = at_ms - RANGES[span]
        # about 300 points at most; five minutes are kept for an hour, a quarter for 14 days
        coarse = self._store.device_history(row.id, since_ms, "15m" if RANGES[span] <= RANGES["1d"] else "1h")
        rollups = finest(coarse, self._store.device_history(row.id, since_ms, "5m"))
        charts = device_charts(row, rollups, events, since_ms, at_ms=at_ms)
        absent = [name for name in DEVICE_CHARTS if name not in charts and name != ERRORS] if charts else []
        newest = self._store.newest(row.id)
        return {
            "row": row, "newest": newest, "events": events[:30], "range": span, "charts": charts, "absent": absent,
        }  # fmt: skip

    async def forget(self, request: Request) -> Response:
        await read_form(request, self._access, request.scope["viewer"])
        row = await self._find(request)
        if row is None or not await run_in_threadpool(self._store.forget, row.id):
            return await self.missing(request, None)
        return RedirectResponse("/", 303)

    # Models, events, and the server itself.

    async def models(self, request: Request) -> Response:
        groups = await run_in_threadpool(self._store.counts, "model")
        names: dict[str, list[Any]] = {}
        for group in groups:
            names.setdefault(group.key[0], []).append(group)
        return self.render(request, "models.html", models=names)

    async def model(self, request: Request) -> Response:
        name = request.query_params.get("name", "")[:64]
        span = range_of(request.query_params)
        rollups = await run_in_threadpool(self._model_history, name, span)
        counts = await run_in_threadpool(self._store.counts, "model", Query(model=name))
        if not rollups and not counts:
            return await self.missing(request, None)
        lines = await run_in_threadpool(compare, rollups)
        builds = await run_in_threadpool(self._store.builds, name)
        budgets = {(one.version, one.profile): one.budget_ms for one in builds}
        charts = await run_in_threadpool(model_charts, rollups, now_ms())
        return self.render(
            request, "model.html", name=name, lines=lines, counts=counts, range=span, budgets=budgets, charts=charts
        )

    def _model_history(self, name: str, span: str) -> list[Any]:
        length = RANGES[span]
        resolution: Resolution = "5m" if length <= RANGES["6h"] else "15m" if length <= RANGES["1d"] else "1h"
        return self._store.history(name, None, None, now_ms() - length, resolution)

    async def events(self, request: Request) -> Response:
        params = request.query_params
        kind = params.get("kind", "") if params.get("kind") in EVENT_KINDS else ""
        number = whole_number(params.get("before", ""), 0) or None
        found = await run_in_threadpool(self._latest, kind, number)
        more = found[_EVENTS - 1].id if len(found) > _EVENTS else None
        return self.render(
            request, "events-page.html", events=found[:_EVENTS], kind=kind, kinds=EVENT_KINDS, more=more,
            before=number,
        )  # fmt: skip

    async def health(self, request: Request) -> Response:
        return self.render(request, "health.html", **await run_in_threadpool(self._server))

    def _latest(self, kind: str, before: int | None = None) -> list[Event]:
        """A page of events plus one."""
        return self._store.events(None, _EVENTS + 1, (kind,) if kind else (), before)

    def _server(self) -> dict[str, Any]:
        found = self._of_server()
        return {**found, "sizes": self._store.sizes(), "lag_s": lag_s(found["totals"].newest_ms, now_ms())}

    async def healthz(self, request: Request) -> Response:
        """200 while the store answers and takes what comes, and the broker is connected; else 503."""
        try:
            totals = asdict(await run_in_threadpool(self._store.totals))
        except Exception as error:  # noqa: BLE001 - whatever it is, this is where it is said
            return JSONResponse({"ok": False, "what": str(error)}, 503)
        health = dict(self._facts.health())
        ok = bool(health.get("connected", True)) and not health.get("store_error")
        if request.scope["viewer"] is None:
            return JSONResponse({"ok": ok}, 200 if ok else 503)
        came = {"refused": dict(self._facts.refused()), "lag_s": lag_s(totals["newest_ms"], now_ms())}
        return JSONResponse({"ok": ok, **health, **totals, **came}, 200 if ok else 503)

    async def metrics(self, request: Request) -> Response:
        text = await run_in_threadpool(self._metrics.text, now_ms())
        return Response(text, media_type=CONTENT_TYPE)

    async def missing(self, request: Request, _error: Any) -> Response:
        name = request.path_params.get("name", "")
        what = f"No device {name} has reported yet." if DEVICE_ID.match(name) else "Page not found."
        return self.render(request, "missing.html", 404, title="Not found", what=what)

    async def refused(self, request: Request, error: Any) -> Response:
        return self.render(request, "missing.html", error.status_code, title="Request refused", what=error.detail)

    # Signing in and out.

    async def sign_in(self, request: Request) -> Response:
        if not self._access.needs_password:
            return await self.missing(request, None)
        return self._sign_in_page(request, request.query_params.get("next", "/"))

    def _sign_in_page(self, request: Request, there: str, status: int = 200, wrong: str = "") -> HTMLResponse:
        token = self._access.form_token(_SIGN_IN)
        return self.render(request, "sign-in.html", status, there=_within(there), token=token, wrong=wrong)

    async def signed_in(self, request: Request) -> Response:
        if not self._access.needs_password:
            return await self.missing(request, None)
        form = await read_form(request, self._access, Viewer("", self._access.form_token(_SIGN_IN)))
        there, peer = _within(form.get("next", "/")), address_of(request, self._access)
        try:
            token = await run_in_threadpool(self._access.sign_in, peer, form.get("password", ""))
        except TooManyError as error:
            page = self._sign_in_page(request, there, 429, f"Too many attempts. Try again in {error.wait_s:.0f} s.")
            page.headers["retry-after"] = f"{error.wait_s:.0f}"
            return page
        if token is None:
            return self._sign_in_page(request, there, 403, "Wrong password.")
        answer = RedirectResponse(there, 303)
        encrypted = request.headers.get("origin", "").startswith("https:")
        answer.set_cookie(COOKIE, token, max_age=int(SESSION_S), httponly=True, samesite="strict", secure=encrypted)
        return answer

    async def sign_out(self, request: Request) -> Response:
        await read_form(request, self._access, request.scope["viewer"])
        self._access.sign_out(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("/sign-in", 303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    # What changes, as it changes.

    async def stream_fleet(self, request: Request) -> Response:
        asked = ListQuery.read(request.query_params)
        if asked.by is None:
            return self._stream(request, asked.query)
        return self.stream_part(request, "groups-part.html", lambda: self._groups(asked), asked.link())

    async def stream_device(self, request: Request) -> Response:
        row = await self._find(request)
        return self._stream(request, row.id) if row is not None else await self.missing(request, None)

    async def stream_events(self, request: Request) -> Response:
        kind = request.query_params.get("kind", "")
        kind = kind if kind in EVENT_KINDS else ""
        return self.stream_part(request, "events-part.html", lambda: {"events": self._latest(kind)[:_EVENTS]}, kind)

    async def stream_health(self, request: Request) -> Response:
        return self.stream_part(request, "health-part.html", self._server)

    def stream_part(
        self, request: Request, template: str, read: Callable[[], Mapping[str, Any]], of: str = ""
    ) -> Response:
        """Stream a part of a page, rendered once for all viewers. of: its subject, if several."""

        def draw() -> str:
            return self._jinja.get_template(template).render(viewer=_NOBODY, **read())

        return self._stream(request, Part(f"{template} {of}", draw))

    def _stream(self, request: Request, of: Query | Part | str) -> Response:
        said = request.headers.get("last-event-id") or request.query_params.get("after", "")
        after = whole_number(said, -1)
        who = asking(request, self._access)

        def allowed() -> bool:
            """Whether the session lasts. A Basic password was checked when the stream began."""
            return bool(who.basic) or self._access.viewer(who) is not None

        changes: AsyncIterator[str] = self.live.follow(of, after, allowed)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(changes, media_type="text/event-stream", headers=headers)

    async def _find(self, request: Request) -> FleetDevice | None:
        name = request.path_params["name"]
        return await run_in_threadpool(self._store.device, name) if DEVICE_ID.match(name) else None


def _within(there: str) -> str:
    """The path if it is on this server, else `/`."""
    return there if there.startswith("/") and not there.startswith(("//", "/\\")) and there.isprintable() else "/"
