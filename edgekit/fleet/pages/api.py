"""/api/v1: what the pages show, as JSON and as CSV, for scripts and spreadsheets.

    GET /api/v1/devices?state=late&sort=-p99&limit=500      {"count": 12, "devices": [...]}
    GET /api/v1/devices.csv                                 every board, a line each

Rules:
- an answer only grows: names of fields stay what they are within v1;
- filters are those of the pages' addresses; times are milliseconds since 1970, latencies milliseconds;
- JSON is ASCII, so what cannot be seen is escaped; CSV escapes it as the pages do, and no cell begins like a formula.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from starlette.concurrency import run_in_threadpool  # noqa: TID253
from starlette.requests import Request  # noqa: TID253
from starlette.responses import Response  # noqa: TID253
from starlette.routing import Route  # noqa: TID253

from edgekit.fleet.alerts.alert_tables import AlertTables
from edgekit.fleet.pages.charts import mean_ms
from edgekit.fleet.pages.lists import RANGES, ListQuery, range_of, whole_number
from edgekit.fleet.pages.show import conditions, shown
from edgekit.fleet.rollouts.rollout_tables import RolloutTables
from edgekit.fleet.store.records import GROUPS, SORTS, STATES, FleetDevice, GroupBy, Resolution, Rollup, now_ms
from edgekit.fleet.store.sql import SqlStore
from edgekit_runtime.telemetry.window import DEVICE_ID

MOST = 10_000
_USUAL = 1000
_RESOLUTIONS: Mapping[str, Resolution] = {"1h": "5m", "6h": "5m", "1d": "15m", "7d": "1h", "14d": "1h"}
_ROLLUP = (
    "start_ms", "length_ms", "model", "version", "profile", "boards", "windows", "n", "rate", "errors", "hits",
    "misses", "host", "over", "blocked", "compared", "differed", "clipped", "values", "dropped", "p50", "p95", "p99",
    "temp", "cpu", "mem", "psi",
)  # fmt: skip
_INDEX = {
    "devices": "boards: q, state, site, group, model, version, profile, sort, limit, offset",
    "devices/{id}": "one board",
    "devices/{id}/history": "its roll-ups: range",
    "counts": "boards by state: by, and the filters of devices",
    "history": "roll-ups of all boards by model, version and profile: model, version, profile, range",
    "events": "what happened, the latest first: device, kind, before, limit",
    "alerts": "alerts, the latest first; cleared_ms is 0 while one lasts",
    "rollouts": "roll-outs, the latest first, with plan and state",
    "totals": "sums of the fleet",
}
_VALUES = {"state": STATES, "sort": (*SORTS, *(f"-{one}" for one in SORTS)), "by": (*GROUPS,), "range": (*RANGES,)}
_Found = tuple[list[dict[str, Any]], dict[str, Any]]
"""Rows, and the fields next to them."""


class FleetApi:
    """routes: for the server. All but single objects also come as `.csv`."""

    def __init__(
        self, store: SqlStore, alerts: AlertTables | None = None, rollouts: RolloutTables | None = None
    ) -> None:
        self._store, self._alerts_of, self._rollouts_of = store, alerts, rollouts
        tables = {
            "devices": self._devices, "devices/{name}/history": self._device_history, "counts": self._counts,
            "history": self._history, "events": self._events, "alerts": self._alerts, "rollouts": self._rollouts,
        }  # fmt: skip
        whole = {**tables, "devices": self._all_devices}
        self.routes = [
            Route("/api/v1", self._index),
            Route("/api/v1/totals", self._totals),
            *(Route(f"/api/v1/{path}", _answer(path, table, as_csv=False)) for path, table in tables.items()),
            *(Route(f"/api/v1/{path}.csv", _answer(path, table, as_csv=True)) for path, table in whole.items()),
            Route("/api/v1/devices/{name}", self._device),
        ]

    async def _index(self, request: Request) -> Response:
        return _json({f"/api/v1/{path}": what for path, what in _INDEX.items()})

    async def _totals(self, request: Request) -> Response:
        return _json(asdict(await run_in_threadpool(self._store.totals)))

    async def _device(self, request: Request) -> Response:
        row = await run_in_threadpool(self._find, request)
        return _json({"error": "no such device"}, 404) if row is None else _json(_of_device(row))

    def _find(self, request: Request) -> FleetDevice | None:
        name = request.path_params["name"]
        return self._store.device(name) if DEVICE_ID.match(name) else None

    def _devices(self, request: Request) -> _Found:
        params = request.query_params
        limit, offset = whole_number(params.get("limit", ""), _USUAL), whole_number(params.get("offset", ""), 0)
        query = replace(ListQuery.read(params).query, limit=min(limit, MOST), offset=offset)
        rows, count = self._store.devices(query)
        return [_of_device(row) for row in rows], {"count": count}

    def _all_devices(self, request: Request) -> _Found:
        """All rows unless limited: a file has no next page."""
        if "limit" in request.query_params:
            return self._devices(request)
        query = replace(ListQuery.read(request.query_params).query, limit=MOST, offset=0)
        found: list[dict[str, Any]] = []
        while True:
            rows, count = self._store.devices(query)
            found += map(_of_device, rows)
            query = replace(query, offset=query.offset + MOST)
            if not rows or query.offset >= count:
                return found, {"count": count}

    def _device_history(self, request: Request) -> _Found | None:
        row = self._find(request)
        if row is None:
            return None
        span = range_of(request.query_params)
        resolution: Resolution = "15m" if span == "6h" else _RESOLUTIONS[span]
        return [_of_rollup(one) for one in self._store.device_history(row.id, _since(span), resolution)], {}

    def _history(self, request: Request) -> _Found:
        params = request.query_params
        span = range_of(params)
        model, version, profile = (params.get(name) for name in ("model", "version", "profile"))
        found = self._store.history(model, version, profile, _since(span), _RESOLUTIONS[span])
        return [_of_rollup(one) for one in found], {}

    def _counts(self, request: Request) -> _Found:
        by = request.query_params.get("by")
        grouped: GroupBy | None = by if by in GROUPS else None  # type: ignore[assignment]
        names = GROUPS[grouped] if grouped is not None else ()
        found = self._store.counts(grouped, ListQuery.read(request.query_params).query)
        return [
            {
                **dict(zip(names, count.key, strict=True)),
                "devices": count.devices,
                **{state: count.states[state] for state in STATES},
            }
            for count in found
        ], {}

    def _events(self, request: Request) -> _Found:
        params = request.query_params
        device, kind = params.get("device") or None, params.get("kind")
        before = whole_number(params.get("before", ""), 0) or None
        limit = min(whole_number(params.get("limit", ""), _USUAL), MOST)
        return [asdict(event) for event in self._store.events(device, limit, (kind,) if kind else (), before)], {}

    def _alerts(self, request: Request) -> _Found:
        found = self._alerts_of.list(active=False, limit=MOST) if self._alerts_of is not None else []
        return [asdict(alert) for alert in found], {}

    def _rollouts(self, request: Request) -> _Found:
        return ([] if self._rollouts_of is None else [asdict(rollout) for rollout in self._rollouts_of.all()]), {}


def _answer(path: str, table: Callable[[Request], _Found | None], *, as_csv: bool) -> Any:
    name = path.rpartition("/")[2]

    async def answer(request: Request) -> Response:
        for key, values in _VALUES.items():  # a page ignores another value; a script would not notice
            if (given := request.query_params.get(key)) and given not in values:
                return _json({"error": f"unknown {key} {given!r:.40}. Use one of: {', '.join(values)}"}, 400)
        found = await run_in_threadpool(table, request)
        if found is None:
            return _json({"error": "no such device"}, 404)
        if not as_csv:
            return _json({**found[1], name: found[0]})
        headers = {"content-disposition": f'attachment; filename="{name}.csv"'}
        return Response(await run_in_threadpool(_csv, found[0]), media_type="text/csv; charset=utf-8", headers=headers)

    return answer


def _json(value: Mapping[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(value, separators=(",", ":")), status, media_type="application/json")


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Nested objects as columns `latency.device`; lists are left to JSON."""
    flat = [dict(_flat(row)) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerows([columns, *([_cell(row.get(name)) for name in columns] for row in flat)])
    return text.getvalue()


def _flat(row: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif name == "conditions":
            yield before + name, " ".join(value)
        elif not isinstance(value, list):
            yield before + name, value


def _cell(value: Any) -> Any:
    """Quote text that a spreadsheet would run as a formula."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return int(value)
    if not isinstance(value, str):
        return value
    text = str(shown(value))
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text


def _of_device(row: FleetDevice) -> dict[str, Any]:
    return {**asdict(row), "conditions": conditions(row)}


def _of_rollup(rollup: Rollup) -> dict[str, Any]:
    ranks = dict(zip(("p50", "p95", "p99"), rollup.quantiles(0.5, 0.95, 0.99), strict=True))
    row = {name: ranks[name] if name in ranks else getattr(rollup, name) for name in _ROLLUP}
    row["error_codes"] = dict(rollup.error_codes)
    row["stages_mean"] = {name: mean_ms(histogram) for name, histogram in rollup.stages.items()}
    return row


def _since(span: str) -> int:
    return now_ms() - RANGES[span]
