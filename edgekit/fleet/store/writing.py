"""One transaction's worth of changes to a fleet's store.

Rows are read once, changed in memory and written at the end.

    batch = Batch(database, named)
    batch.change(birth)
    marks = batch.arrive(arrivals)
    batch.finish()

Rules:
- what is read and written is one statement a table, whatever the number of boards;
- all windows of one board and quarter are merged in one pass;
- a count stops at 2^53 - 1; what a board gave up counts only as far as the board says so itself.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from msgspec.structs import asdict

from edgekit.fleet.store import packed
from edgekit.fleet.store.messages import Window
from edgekit.fleet.store.records import QUARTER_MS, Arrival, Change, FleetDevice, Mark, moment_of, quarter_of
from edgekit.fleet.store.schema import (
    ADD_TO_COUNTER,
    BUILD,
    DEVICE,
    DEVICE_COLUMNS,
    MARK,
    RECENT_WINDOWS,
    SAMPLE_PART,
    SHADOW,
    SUMS,
    WIN,
    quoted,
)
from edgekit.fleet.store.sums import READ_ROLLUPS, ROW_BYTES, Database, Key, Sums, grow, select_in, write_rollups
from edgekit_runtime.system.strict_json import load_json
from edgekit_runtime.telemetry.histogram import Histogram

RECENT = 60
_MOST = packed.MOST
_MOST_RANGES = 64
_MOST_MARKS, _MOST_SHADOWS = 8, 4
_MOST_LOST = 1 << 31
_MOST_BUILDS = 20
"""New builds per board and day: a release brings one, a malicious board one per window."""
_OTHER = ("(too many names)", "", "")
_FIVE_MS = 300_000
_NEW: dict[str, Any] = (
    dict.fromkeys(DEVICE_COLUMNS, 0)
    | {one.name: one.default for one in fields(FleetDevice) if one.name not in ("id", "recent")}
    | {"online": 0, "born_epoch": ""}
)
_READ_DEVICES = f'SELECT {quoted(DEVICE_COLUMNS)} FROM device WHERE "id" IN ({{}})'
_WRITE_DEVICE = DEVICE.write("id")
_WRITE_RECENT = RECENT_WINDOWS.write(where=" WHERE excluded.moment_ms >= recent.moment_ms")
_WRITE_MARK = MARK.write()
_READ_SHADOWS = f"SELECT {quoted(SHADOW.columns)} FROM shadow WHERE device IN ({{}})"
_READ_MARKS = f"SELECT {quoted(MARK.columns)} FROM mark WHERE device IN ({{}})"


@dataclass(slots=True)
class _Epoch:
    """What is stored of one epoch: all up to hwm, and the ranges in `ahead`."""

    hwm: int
    ahead: list[list[int]] = field(default_factory=list)
    stored: int = 0
    gap: int = 0
    dropped: int = 0
    refused: int = 0
    seen_ms: int = 0
    new: bool = True

    @property
    def lost(self) -> int:
        return min(self.gap, self.dropped, _MOST_LOST)

    @property
    def held(self) -> int:
        """Windows above hwm."""
        return sum(high - low + 1 for low, high in self.ahead)

    def take(self, seq: int) -> bool:
        """Record a window. False if known, or if there is no room to record it."""
        if seq <= self.hwm:
            return False
        ahead = self.ahead
        if not ahead and seq == self.hwm + 1:
            self.hwm = seq
            return True
        place = bisect_right(ahead, [seq, _MOST])
        before, after = ahead[place - 1] if place else None, ahead[place] if place < len(ahead) else None
        if before is not None and before[1] >= seq:
            return False
        joins_before = before is not None and before[1] == seq - 1
        joins_after = after is not None and after[0] == seq + 1
        if before is not None and joins_before:
            before[1] = seq
            if after is not None and joins_after:
                before[1] = after[1]
                del ahead[place]
        elif after is not None and joins_after:
            after[0] = seq
        elif len(ahead) < _MOST_RANGES or seq == self.hwm + 1:
            ahead.insert(place, [seq, seq])
        else:
            return False
        self._advance()
        return True

    def give_up_below(self, floor: int) -> int:
        """Skip what the board no longer has; returns how many windows that is."""
        if floor - 1 <= self.hwm:
            return 0
        gone = floor - 1 - self.hwm
        for low, high in self.ahead:
            gone -= max(0, min(high, floor - 1) - low + 1)
        self.hwm = floor - 1
        self._advance()
        self.gap = min(_MOST, self.gap + gone)
        return gone

    def _advance(self) -> None:
        while self.ahead and self.ahead[0][0] <= self.hwm + 1:
            self.hwm = max(self.hwm, self.ahead.pop(0)[1])


class Batch:
    def __init__(self, database: Database, named: dict[str, int]) -> None:
        """named: builds that each board has reported; `brought`: those of this batch."""
        self._db, self._named = database, named
        self.brought: Counter[str] = Counter()
        self._rows: dict[str, dict[str, Any]] = {}
        self._fresh: dict[str, list[tuple[Arrival, Window]]] = {}
        self._builds: dict[tuple[str, str, str], int] = {}
        self._events: list[tuple[int, int, str, str]] = []
        self._samples: list[tuple[Any, ...]] = []
        self._forgotten: set[str] = set()
        self._sizes: dict[str, tuple[int, int]] = {}

    def read(self, names: Iterable[str]) -> None:
        """Read the rows of these devices, and create missing ones."""
        wanted = list(names)
        for found in select_in(self._db, _READ_DEVICES, wanted):
            row = dict(zip(DEVICE_COLUMNS, found, strict=True))
            self._rows[row["id"]] = row
        missing = [name for name in wanted if name not in self._rows]
        if missing:
            (last,) = self._db.execute("SELECT coalesce(max(num), 0) FROM device").fetchone()
            for num, name in enumerate(missing, last + 1):
                self._rows[name] = _NEW | {"num": num, "id": name}
            self._forgotten.update(
                name for (name,) in select_in(self._db, "SELECT device FROM forgotten WHERE device IN ({})", missing)
            )

    def change(self, change: Change) -> None:
        """A birth makes a device, and a later death of the same boot ends it.

        A retained birth does not bring a forgotten board back."""
        state, now, row = change.state, change.received_ms, self._rows[change.device]
        if change.retained and change.device in self._forgotten and not row["seen_ms"]:
            return
        if state.birth is None:
            if row["epoch"] == state.epoch and state.boot >= row["boot"] and row["online"]:
                self.offline(change.device, now, "disconnected")
            return
        birth = state.birth
        before, after = (row["model"], row["version"]), (birth.model, birth.version)
        if row["model"] and before != after:
            self._event(row, now, "model", f"runs {' '.join(after)} instead of {' '.join(before)}")
        if row["epoch"] and row["epoch"] != state.epoch:
            self._event(row, now, "epoch", "started a new spool")
        elif row["boot"] and state.boot > row["boot"]:
            self._event(row, now, "boot", "restarted")
        known = row["seen_ms"] > 0
        born = {"epoch": state.epoch, "boot": state.boot, "born_epoch": state.epoch, "born_boot": state.boot}
        row.update(asdict(birth) | born)
        if not known or not change.retained:
            self._online(row, now)

    def arrive(self, arrivals: Sequence[Arrival]) -> list[Mark]:
        """Store new messages and advance the marks."""
        groups: dict[tuple[str, str], list[Arrival]] = {}
        for arrival in arrivals:
            groups.setdefault((arrival.device, arrival.seal.epoch), []).append(arrival)
        numbers = {self._rows[name]["num"]: name for name, _ in groups}
        known: dict[str, dict[str, _Epoch]] = {}
        for num, epoch, hwm, ahead, *counts in select_in(self._db, _READ_MARKS, list(numbers)):
            mark = known.setdefault(numbers[num], {})[epoch] = _Epoch(hwm, load_json(ahead) if ahead else [], *counts)
            mark.new = False
        windows: list[tuple[Any, ...]] = []
        marks = []
        for (name, epoch), group in groups.items():
            group.sort(key=lambda arrival: arrival.seal.seq)
            mine = known.setdefault(name, {})
            mark = mine.get(epoch) or mine.setdefault(epoch, _Epoch(group[0].seal.floor - 1))
            before = len(self._fresh.get(name, ()))
            taken = self._arrive(self._rows[name], mark, group)
            windows += taken
            new = len(self._fresh.get(name, ())) - before
            known_birth = self._is_known(self._rows[name], epoch, group[-1])
            marks.append(Mark(name, epoch, mark.hwm, known_birth, mark.held, new, len(group) - len(taken)))
        self._insert("win", f"{WIN.insert()} ON CONFLICT ({WIN.key}) DO NOTHING", windows, 5)
        self._write_marks(groups, known)
        return marks

    def _arrive(self, row: dict[str, Any], mark: _Epoch, group: list[Arrival]) -> list[tuple[Any, ...]]:
        num, taken, before = row["num"], [], mark.lost
        floor = max(arrival.seal.floor for arrival in group)
        mark.dropped = max(mark.dropped, *(arrival.seal.dropped for arrival in group))
        for arrival in group:
            seal, window = arrival.seal, arrival.window
            if not mark.take(seal.seq):
                continue
            taken.append((
                num, seal.epoch, seal.seq, arrival.received_ms, arrival.refused or None,
                arrival.payload if not arrival.refused and arrival.sample is None else None,
            ))  # fmt: skip
            if window is not None:
                self._fresh.setdefault(row["id"], []).append((arrival, window))
            elif (part := arrival.sample) is not None:
                self._samples.append((num, part.id, part.part, part.parts, part.data, arrival.received_ms))
            elif arrival.event is not None:
                self._event(row, min(arrival.event.at_ms, arrival.received_ms), arrival.event.kind, arrival.event.text)
            elif arrival.refused:
                row["refused"] = min(_MOST, row["refused"] + 1)
                mark.refused += 1
                if row["refused"] in (1, 10, 100, 1000):
                    self._event(row, arrival.received_ms, "refused", f"sent a refused window: {arrival.refused}")
        gone = mark.give_up_below(floor)
        mark.stored += len(taken)
        row["stored"] = min(_MOST, row["stored"] + len(taken))
        last = group[-1]
        lost = mark.lost - before
        if lost:
            row["lost"] = min(_MOST, row["lost"] + lost)
            self._event(row, last.received_ms, "lost", f"gave up {lost} windows")
        elif gone:
            self._event(row, last.received_ms, "lost", f"no longer has {gone} windows that it did not give up")
        if last.window is not None:
            row["waiting"] = min(_MOST, max(0, last.seal.floor - 1 + last.seal.spooled - mark.hwm - mark.held))
        mark.seen_ms = max(mark.seen_ms, last.received_ms)
        self._online(row, last.received_ms)
        return taken

    @staticmethod
    def _is_known(row: dict[str, Any], epoch: str, last: Arrival) -> bool:
        boot = last.window.boot if last.window is not None else 0
        return bool(row["born_epoch"] == epoch and row["born_boot"] >= boot)

    def _write_marks(self, groups: dict[tuple[str, str], list[Arrival]], known: dict[str, dict[str, _Epoch]]) -> None:
        rows, gone, new = [], [], 0
        for name, epoch in groups:
            mark, num = known[name].get(epoch), self._rows[name]["num"]
            if mark is None:
                continue
            rows.append((
                num, epoch, mark.hwm, json.dumps(mark.ahead) if mark.ahead else None, mark.stored, mark.gap,
                mark.dropped, mark.refused, mark.seen_ms,
            ))  # fmt: skip
            new += mark.new
        self._db.many(_WRITE_MARK, rows)
        for name in {name for name, _ in groups}:
            seen = sorted((mark.seen_ms, epoch) for epoch, mark in known[name].items())
            gone += [(self._rows[name]["num"], epoch) for _, epoch in seen[: max(0, len(seen) - _MOST_MARKS)]]
        if gone:
            self._db.many("DELETE FROM mark WHERE device = ? AND epoch = ?", gone)
        self._grow("mark", new - len(gone), (new - len(gone)) * ROW_BYTES["mark"])

    def offline(self, name: str, now_ms: int, why: str) -> None:
        row = self._rows[name]
        row["online"], row["since_ms"] = 0, now_ms
        self._event(row, now_ms, "offline", why)

    def clear_figures(self, name: str) -> None:
        row = self._rows[name]
        row.update(dict.fromkeys(("p50", "p95", "p99", "rate", "psi")), figures_ms=0)
        row.update(dict.fromkeys(set(SUMS) & row.keys(), 0))

    def finish(self) -> None:
        """Roll up what is new, and write the rows that changed."""
        self._roll_up()
        seen = [row for row in self._rows.values() if row["seen_ms"]]
        if seen:
            self._db.execute(ADD_TO_COUNTER, ("changed", 1))
            (changed,) = self._db.execute("SELECT value FROM counter WHERE name = 'changed'").fetchone()
            for row in seen:
                row["changed"] = changed
            self._db.many(_WRITE_DEVICE, [tuple(row.values()) for row in seen])
            back = [(row["id"],) for row in seen if row["id"] in self._forgotten]
            self._db.many("DELETE FROM forgotten WHERE device = ?", back)
        self._insert("event", "INSERT INTO event (at_ms, device, kind, text) VALUES (?, ?, ?, ?)", self._events, 3)
        parts = f"{SAMPLE_PART.insert()} ON CONFLICT ({SAMPLE_PART.key}) DO NOTHING"
        self._insert("sample", parts, self._samples, 4)
        grow(self._db, self._sizes)

    def _roll_up(self) -> None:
        """Merge new windows into the roll-ups and update their boards' figures."""
        if not self._fresh:
            return
        timed = {
            name: sorted(((moment_of(w, a.received_ms), a, w) for a, w in fresh), key=lambda one: one[0])
            for name, fresh in self._fresh.items()
        }
        for name, windows in timed.items():
            self._take_newest(self._rows[name], *windows[-1])
        self._find_builds()
        parts: dict[Key, list[Window]] = {}
        fleet: dict[Key, Sums] = {}
        lately: dict[str, list[Key]] = {}
        points: list[tuple[Any, ...]] = []
        for name, windows in timed.items():
            row = self._rows[name]
            num = row["num"]
            for moment, _, window in windows:
                build = self._builds[(window.model, window.version, window.profile)]
                parts.setdefault((num, 15, quarter_of(moment), build), []).append(window)
                key = (0, 5, moment - moment % _FIVE_MS, build)
                if key not in fleet:
                    fleet[key] = Sums()
                fleet[key].add_window(window)
            points += [_point(num, *one) for one in windows[-RECENT:]]
            build = self._builds[(row["model"], row["version"], row["profile"])]
            now = quarter_of(max(arrival.received_ms for _, arrival, _ in windows))
            lately[name] = [(num, 15, now - QUARTER_MS, build), (num, 15, now, build)]
        self._db.many(_WRITE_RECENT, points)
        self._add_shadows(timed)
        for (_, _, start, build), sums in list(fleet.items()):
            for minutes in (15, 60):
                key = (0, minutes, start - start % (minutes * 60_000), build)
                fleet.setdefault(key, Sums()).merge(sums)
        self._merge(parts, fleet, lately)

    def _add_shadows(self, timed: dict[str, list[tuple[int, Arrival, Window]]]) -> None:
        """What bundles answered in silence."""
        fresh = {name: [w.shadow for _, _, w in windows if w.shadow is not None] for name, windows in timed.items()}
        numbers = {self._rows[name]["num"]: name for name, some in fresh.items() if some}
        if not numbers:
            return
        known: dict[int, dict[str, list[Any]]] = {}
        for num, sha, *values in select_in(self._db, _READ_SHADOWS, list(numbers)):
            known.setdefault(num, {})[sha] = list(values)
        changed, gone = [], list[tuple[int, str]]()
        for num, name in numbers.items():
            mine, at_ms = known.setdefault(num, {}), max(a.received_ms for _, a, _ in timed[name])
            for shadow in fresh[name]:
                before = mine.get(shadow.sha) or [0, 0, 0, "", *[None] * 5]
                counts = zip(before[:3], (shadow.n, shadow.same, shadow.skipped), strict=True)
                kept = [Histogram.from_wire(load_json(before[3]))] if before[3] else []
                ratios = Histogram.joined([*kept, shadow.ratios], shadow.ratios.scale)
                figures = zip((shadow.ms, shadow.mb, shadow.psi), before[4:7], strict=True)
                latest = [new if new is not None else old for new, old in figures]
                sums = [min(_MOST, have + more) for have, more in counts]
                mine[shadow.sha] = [*sums, json.dumps(ratios.wire()), *latest, shadow.rests, at_ms]
            order = sorted(mine, key=lambda sha: mine[sha][-1], reverse=True)
            gone += [(num, sha) for sha in order[_MOST_SHADOWS:]]
            said = {shadow.sha for shadow in fresh[name]}
            changed += [(num, sha, *mine[sha]) for sha in order[:_MOST_SHADOWS] if sha in said]
        self._db.many(SHADOW.write(), changed)
        self._db.many("DELETE FROM shadow WHERE device = ? AND sha = ?", gone)

    def _merge(self, parts: dict[Key, list[Window]], fleet: dict[Key, Sums], lately: dict[str, list[Key]]) -> None:
        there: dict[Key, tuple[Sums, int]] = {}
        keys = list({*parts, *fleet, *(key for some in lately.values() for key in some)})
        for found in select_in(self._db, READ_ROLLUPS, keys, 4):
            key = found[:4]
            whole = key in parts or key in fleet
            there[key] = (Sums.of_row(found[4:], whole), len(found[-3]) + len(found[-2] or b""))
        changed: dict[Key, tuple[Sums, int]] = {}
        for key, windows in parts.items():
            changed[key] = there.setdefault(key, (Sums(), -1))
            for window in windows:
                changed[key][0].add_window(window)
        for key, sums in fleet.items():
            changed[key] = there.setdefault(key, (Sums(), -1))
            changed[key][0].merge(sums)
        for name, (rows, size) in write_rollups(self._db, changed).items():
            self._grow(name, rows, size)
        for name, some in lately.items():
            sums_of = [there[key][0] for key in some if key in there]
            if sums_of:
                received_ms = max(arrival.received_ms for arrival, _ in self._fresh[name])
                self._rows[name].update(_figures(sums_of), figures_ms=received_ms)

    def _find_builds(self) -> None:
        """Look up the number of each build, and add new ones."""
        wanted = {(w.model, w.version, w.profile) for fresh in self._fresh.values() for _, w in fresh}
        rows = (self._rows[name] for name in self._fresh)
        wanted |= {(row["model"], row["version"], row["profile"]) for row in rows}
        for num, model, version, profile in select_in(
            self._db, "SELECT num, model, version, profile FROM build WHERE model IN ({})",
            list({model for model, _, _ in wanted}),
        ):  # fmt: skip
            self._builds[(model, version, profile)] = num
        self._bound_names()
        missing = [build for build in wanted if build not in self._builds]
        if missing:
            (last,) = self._db.execute("SELECT coalesce(max(num), 0) FROM build").fetchone()
            self._builds.update({build: num for num, build in enumerate(missing, last + 1)})
            self._db.many(BUILD.insert(), [(self._builds[build], *build) for build in missing])

    def _bound_names(self) -> None:
        """Count a board's builds beyond `_MOST_BUILDS` under `_OTHER`."""
        over: dict[tuple[str, str, str], str] = {}
        allowed: set[tuple[str, str, str]] = set()
        for name, fresh in self._fresh.items():
            row = self._rows[name]
            said = {(w.model, w.version, w.profile) for _, w in fresh} | {
                (row["model"], row["version"], row["profile"])
            }
            for build in sorted(said - self._builds.keys()):
                if self._named.get(name, 0) + self.brought[name] >= _MOST_BUILDS:
                    over[build] = name
                else:
                    self.brought[name] += 1
                    allowed.add(build)
        refused = {build: name for build, name in over.items() if build not in allowed}
        if not refused:
            return
        found = self._db.execute("SELECT num FROM build WHERE model = ?", (_OTHER[0],)).fetchone()
        if found is None:
            (last,) = self._db.execute("SELECT coalesce(max(num), 0) + 1 FROM build").fetchone()
            self._db.many(BUILD.insert(), [(last, *_OTHER)])
            found = (last,)
        self._builds |= dict.fromkeys(refused, found[0])
        for name in set(refused.values()):
            if self._named.get(name, 0) + self.brought[name] == _MOST_BUILDS:
                self.brought[name] += 1
                now = self._fresh[name][-1][0].received_ms
                self._event(self._rows[name], now, "refused", f"reported more than {_MOST_BUILDS} builds in a day")

    def _take_newest(self, row: dict[str, Any], moment: int, arrival: Arrival, window: Window) -> None:
        """Show the newest window in the row; ignore older ones of a backlog."""
        row["epoch"] = row["epoch"] or window.seal.epoch
        row["boot"] = max(row["boot"], window.boot)
        if moment < row["latest_ms"]:
            return
        system = window.system
        row.update(
            latest_ms=moment, temp=system.temp, cpu=system.cpu, mem=system.mem, throttled=system.thr, disk=system.disk,
            model=window.model, version=window.version, sha=window.sha, profile=window.profile,
        )  # fmt: skip
        row["site"], row["group"] = window.site or row["site"], window.group or row["group"]

    def _online(self, row: dict[str, Any], now_ms: int) -> None:
        if not row["online"]:
            self._event(row, now_ms, "online", "is back" if row["seen_ms"] else "reported for the first time")
            row["online"], row["since_ms"] = 1, now_ms
        row["seen_ms"] = max(now_ms, row["seen_ms"])

    def _event(self, row: dict[str, Any], at_ms: int, kind: str, text: str) -> None:
        self._events.append((at_ms, row["num"], kind, text))

    def _insert(self, name: str, statement: str, rows: Sequence[tuple[Any, ...]], place: int) -> None:
        """Insert rows, and count the bytes of each, which are in one column."""
        if rows:
            self._db.many(statement, rows)
            size = sum(len(row[place] or b"") for row in rows)
            self._grow(name, len(rows), size + ROW_BYTES[name] * len(rows))

    def _grow(self, name: str, rows: int, size: int) -> None:
        have = self._sizes.get(name, (0, 0))
        self._sizes[name] = (have[0] + rows, have[1] + size)


def _point(num: int, moment: int, arrival: Arrival, window: Window) -> tuple[Any, ...]:
    bins = {source: (h.scale, h.zeros, h.buckets) for source, h in window.latency.items()}
    figures = [None if q is None else round(q, 3) for q in packed.quantiles([bins], (0.5, 0.95, 0.99))]
    rate = round(1000.0 * window.n / window.dur_ms, 2)
    seal = arrival.seal
    return (num, seal.seq % RECENT, moment, seal.epoch, seal.seq, *figures, rate, window.system.temp)


def _figures(several: Sequence[Sums]) -> dict[str, Any]:
    counts = [min(_MOST, sum(column)) for column in zip(*(sums.counts for sums in several), strict=True)]
    row = dict(zip(SUMS, counts, strict=True))
    dur_ms, _ = row.pop("dur_ms"), row.pop("windows")
    p50, p95, p99 = packed.quantiles([sums.latency for sums in several], (0.5, 0.95, 0.99))
    psi = max((sums.largest[3] for sums in several if sums.largest[3] is not None), default=None)
    rate = 1000.0 * row["n"] / dur_ms if dur_ms else None
    return row | {"p50": p50, "p95": p95, "p99": p99, "psi": psi, "rate": rate}
