"""Live updates of the pages (server-sent events): one poll of the store for all viewers.

    live = Live(store, drawn, every_s=1.0)
    async for event in live.follow(query, after=1203, allowed=lambda: True): ...

Rules:
- the store is asked once a round, however many viewers there are, and not at all without one;
- a viewer gets the rows of its own list and no others; boards that enter or leave that list, too;
- the list itself is asked again every `list_s`, and a part that is drawn as a whole every `part_s`, once for all who
  look at the same;
- a viewer that reads too slowly loads its page again;
- after a lost connection only what changed since is sent (Last-Event-ID).
"""

from __future__ import annotations

import asyncio  # noqa: TID253 - this module is only loaded by a server
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from starlette.concurrency import run_in_threadpool  # noqa: TID253

from edgekit.fleet.store.fleet_errors import StoreError
from edgekit.fleet.store.records import FleetDevice, Query, Totals
from edgekit.fleet.store.sql import SqlStore

_LOG = logging.getLogger("edgekit.fleet")
_MOST_WAITING = 60
_BREATH_S = 15.0


class PageParts(Protocol):
    """Renders changes as HTML."""

    def row(self, row: FleetDevice) -> str: ...

    def totals(self, totals: Totals) -> str: ...

    def device(self, row: FleetDevice) -> str: ...


@dataclass(frozen=True)
class Part:
    """A part of a page that is rendered as a whole.
    key: shared by its viewers.
    draw: renders the HTML.

    All viewers get the same, so the script inserts the viewer's token into its forms.
    """

    key: str
    draw: Callable[[], str] = field(compare=False, repr=False)


@dataclass(eq=False)
class _Viewer:
    events: asyncio.Queue[str] = field(default_factory=lambda: asyncio.Queue(_MOST_WAITING))

    def send(self, event: str) -> None:
        try:
            self.events.put_nowait(event)
        except asyncio.QueueFull:
            while not self.events.empty():
                self.events.get_nowait()
            self.events.put_nowait(_event("reload", ""))


@dataclass(eq=False)
class _View:
    """A list (query), a part or one device, with its viewers and what was sent."""

    query: Query | None
    part: Part | None = None
    ids: list[str] = field(default_factory=list)
    count: int = -1
    said: str = ""
    viewers: set[_Viewer] = field(default_factory=set)

    def send(self, event: str) -> None:
        for viewer in self.viewers:
            viewer.send(event)


class Live:
    """every_s: between rounds; boards that enter or leave are looked for in every tenth."""

    def __init__(self, store: SqlStore, drawn: PageParts, every_s: float) -> None:
        self._store, self._drawn = store, drawn
        self._every_s, self._list_s, self._part_s = every_s, min(10.0, 10 * every_s), min(5.0, 5 * every_s)
        self._views: dict[Query | Part | str, _View] = {}
        self._round: asyncio.Task[None] | None = None
        self._seen = -1
        self._lock = threading.Lock()  # a viewer that begins and a round see the same store
        self._loop: asyncio.AbstractEventLoop | None = None

    async def follow(self, of: Query | Part | str, after: int, allowed: Callable[[], bool]) -> AsyncIterator[str]:
        """Events for one viewer of a list, a part, or a device, from the change `after` on."""
        viewer, self._loop = _Viewer(), asyncio.get_running_loop()
        view = self._views.get(of)
        if view is None:
            view = self._views[of] = _view(of)
        view.viewers.add(viewer)
        try:
            for event in await run_in_threadpool(self._first, view, after):
                yield event
            if self._round is None or self._round.done():
                self._round = asyncio.create_task(self._rounds())
            while allowed():
                try:
                    event = await asyncio.wait_for(viewer.events.get(), _BREATH_S)
                except TimeoutError:
                    event = ": nothing new\n\n"
                if not event:  # the server ends
                    return
                yield event
        finally:
            view.viewers.discard(viewer)
            if not view.viewers and self._views.get(of) is view:
                del self._views[of]

    def close(self) -> None:
        """End all streams; from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        for view in self._views.values():
            view.send("")

    def _first(self, view: _View, after: int) -> list[str]:
        """Changes since the page was rendered."""
        with self._lock:
            if view.part is not None:
                view.said = view.said or _event("replace", view.part.draw())
                return [view.said]
            if self._seen < 0:
                self._seen = self._store.totals().changed
            if view.query is None:
                return self._changes(view, self._store.changed(after, view.ids), {})
            rows, count = self._store.devices(view.query)
            ids = [row.id for row in rows]
            if not view.ids:
                view.ids, view.count = ids, count
            return [_list(ids, count, []), *self._changes(view, [row for row in rows if row.changed > after], {})]

    async def _rounds(self) -> None:
        list_at = part_at = 0.0
        while self._views:
            await asyncio.sleep(self._every_s)
            now = time.monotonic()
            lists, parts = now >= list_at, now >= part_at
            views = [view for view in self._views.values() if parts or view.part is None]
            try:
                sent = await run_in_threadpool(self._look, views, lists)
            except StoreError:
                continue  # the health page says so; the next round tries again
            list_at = time.monotonic() + self._list_s if lists else list_at
            part_at = time.monotonic() + self._part_s if parts else part_at
            for view, event in sent:
                view.send(event)

    def _look(self, views: Sequence[_View], lists_too: bool) -> list[tuple[_View, str]]:
        with self._lock:
            ids = sorted({name for view in views for name in view.ids})
            rows = {row.id: row for row in self._store.changed(self._seen, ids)} if ids else {}
            self._seen = max([self._seen, *(row.changed for row in rows.values())])
            html: dict[str, str] = {}
            sent = []
            for view in views:
                mine = [rows[name] for name in view.ids if name in rows]
                sent += [(view, event) for event in self._changes(view, mine, html)]
            lists = [(view, view.query) for view in views if view.query is not None] if lists_too else []
            if lists:
                line = _event("replace", self._drawn.totals(self._store.totals()))
                for view, query in lists:
                    sent += [(view, event) for event in self._list_changes(view, query, line, html)]
            return [*sent, *self._part_changes(views)]

    def _part_changes(self, views: Sequence[_View]) -> list[tuple[_View, str]]:
        sent = []
        for view in views:
            if view.part is None:
                continue
            try:
                event = _event("replace", view.part.draw())
            except StoreError:
                raise
            except Exception:  # noqa: BLE001 - one part must not end the streams of all
                _LOG.exception("a part of a page cannot be drawn: %s", view.part.key)
                continue
            if event != view.said:
                view.said = event
                sent.append((view, event))
        return sent

    def _list_changes(self, view: _View, query: Query, line: str, html: dict[str, str]) -> list[str]:
        rows, count = self._store.devices(query)
        ids, before = [row.id for row in rows], set(view.ids)
        events = []
        if ids != view.ids or count != view.count:
            new = [self._row(row, html) for row in rows if row.id not in before]
            events.append(_list(ids, count, new))
            view.ids, view.count = ids, count
        (counts,) = self._store.counts(None, in_every_state(query))
        said = line + _event("counts", {"all": counts.devices, **counts.states})
        if said != view.said:
            view.said = said
            events.append(said)
        return events

    def _changes(self, view: _View, rows: Sequence[FleetDevice], html: dict[str, str]) -> list[str]:
        if not rows:
            return []
        latest = max(row.changed for row in rows)
        if view.query is None:
            return [_event("replace", self._drawn.device(rows[0]), latest), _event("series", "")]
        return [_event("replace", "".join(self._row(row, html) for row in rows), latest)]

    def _row(self, row: FleetDevice, html: dict[str, str]) -> str:
        if row.id not in html:
            html[row.id] = self._drawn.row(row)
        return html[row.id]


def _view(of: Query | Part | str) -> _View:
    if isinstance(of, Part):
        return _View(None, part=of)
    return _View(None, ids=[of]) if isinstance(of, str) else _View(of)


def in_every_state(query: Query) -> Query:
    """The list without its state filter, for the counts."""
    return replace(query, state="", offset=0, sort="id", descending=False)


def _list(ids: Sequence[str], count: int, new: Sequence[str]) -> str:
    return _event("list", {"ids": list(ids), "count": count, "rows": "".join(new)})


def _event(name: str, data: str | Mapping[str, Any], at: int | None = None) -> str:
    """JSON keeps line breaks out of the data lines."""
    number = "" if at is None else f"id: {at}\n"
    return f"event: {name}\n{number}data: {json.dumps(data)}\n\n"
