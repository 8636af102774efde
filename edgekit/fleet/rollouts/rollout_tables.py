"""Roll-outs in the fleet's store: what is wanted of each board, and what it reported.

    tables = RolloutTables(store)
    made = tables.make(bundle, url, plan, devices, now_ms)
    for order in tables.due(now_ms, again_ms): ...          # to be published, and then `tables.mark_published(...)`

Rules:
- a step of a roll-out and the orders that follow from it are one transaction: a server that is killed has taken the
  step with all of them, or not at all;
- an order is due until its board reports an end, so a message that a broker lost is sent again;
- a step counts only if the roll-out has not changed since it was decided: an operator's action wins;
- what a roll-out wants of a board is one word: "" (not yet), shadow (in silence), new, former (sent back), none
  (withdrawn). A shadow has the number before the roll-out's, and ends before the first wave begins;
- a board is in one active roll-out at most;
- what a board reports after its end changes nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgekit.fleet.rollouts.comparison import ComparedFigure
from edgekit.fleet.rollouts.shadows import BOARDS, ShadowFigures
from edgekit.fleet.rollouts.waves import (
    ACTIVE,
    SHADOW,
    UNWAIVED,
    RolloutPlan,
    RolloutStanding,
    State,
    Tally,
    Word,
    obey,
    place_of,
    waves_of,
)  # fmt: skip
from edgekit.fleet.store.fleet_errors import FleetError
from edgekit.fleet.store.records import FleetDevice
from edgekit.fleet.store.schema import StoreTable
from edgekit.fleet.store.sql import SqlStore
from edgekit_runtime.install.orders import FINAL, Order, OrderReport
from edgekit_runtime.system.strict_json import from_json, load_json, read_json
from edgekit_runtime.telemetry.histogram import Histogram

_ROLLOUT = StoreTable(
    "rollout", "id int, rev int, undo_rev int, name text, version text, profile text, sha256 text, sha text, url text, "
    "plan text, made_ms int, boards int, state text, wave int, since_ms int, waived int, why text, by_word int, "
    "evidence text",
    "id", clustered=False,
)  # fmt: skip
_BOARD = StoreTable(
    "rollout_board", "rollout int, device text, wave int, want text, rev int, asked_ms int, phase text, version text, "
    "error text, code text, former_version text, former_sha256 text, at_ms int", "rollout, device", clustered=False,
)  # fmt: skip
_COMPARED = StoreTable("rollout_compared", "rollout int, figures text, at_ms int", "rollout", clustered=False)
"""What the last comparison of a roll-out counted."""
_INDEX = "CREATE INDEX IF NOT EXISTS rollout_board_device ON rollout_board (device, rev)"
_COLUMNS = ", ".join(_ROLLOUT.columns)
_FINAL = ", ".join(f"'{phase}'" for phase in FINAL)
_ACTIVE = ", ".join(f"'{state}'" for state in ACTIVE)
_MOST_DUE, _MOST_BOARDS = 500, 1 << 40
ABSENT_MS = 5 * 60 * 1000
"""So long after it went offline a board that has not begun is replaced."""
_ABSENT = "b.want = 'new' AND b.phase = '' AND d.online = 0 AND d.since_ms < ?"
_SPARE = "b.want = '' AND coalesce(d.online, 1) = 1"


@dataclass(frozen=True)
class RolloutBundle:
    """A bundle file.
    profile: its target; compatible: profiles that may run it.
    sha: as boards report it."""

    name: str
    version: str
    profile: str
    compatible: tuple[str, ...]
    sha256: str
    sha: str
    size: int


@dataclass(frozen=True)
class Rollout:
    """rev, undo_rev: of the orders forward and back. boards: how many it has."""

    id: int
    rev: int
    undo_rev: int
    name: str
    version: str
    profile: str
    sha256: str
    sha: str
    url: str
    plan: RolloutPlan
    made_ms: int
    boards: int
    standing: RolloutStanding


@dataclass(frozen=True)
class BoardRow:
    """want: "" (not yet), "shadow" (in silence), "new", "former" (back) or "none" (withdrawn).
    phase: "" before a report."""

    device: str
    wave: int
    want: str
    phase: str
    version: str
    error: str
    code: str
    at_ms: int


@dataclass(frozen=True)
class DueOrder:
    """order: None withdraws what the board was ordered."""

    rollout: int
    device: str
    want: str
    rev: int
    order: Order | None


def fitting(
    bundle: RolloutBundle,
    rows: Sequence[FleetDevice],
    *,
    model: str | None = None,
    profile: str | None = None,
    site: str | None = None,
    group: str | None = None,
    against: tuple[str, ...] = (),
) -> list[str]:
    """Ids of the boards that a roll-out is for.

    model: None for the bundle's own name. Boards that run the very bundle are left out, and those with the label
    `against`. Raises FleetError if no board has it.
    """
    kept = {row.id for row in rows if against and getattr(row, against[0]) == against[1] and row.model == bundle.name}
    if against and not kept:
        raise FleetError(
            f"no board with this label runs {bundle.name}", where=f"--against {'='.join(against)}",
            do="Compare the labels on the fleet page: boards set them with --site and --group",
        )  # fmt: skip
    return [
        row.id
        for row in rows
        if row.model == (model if model is not None else bundle.name)
        and row.profile in ((profile,) if profile is not None else bundle.compatible)
        and site in (None, row.site)
        and group in (None, row.group)
        and row.sha != bundle.sha
        and row.id not in kept
    ]


class RolloutTables:
    def __init__(self, store: SqlStore) -> None:
        self._store = store
        with store.writing() as batch:
            batch.define(_ROLLOUT.create(), _BOARD.create(), _COMPARED.create(), _INDEX)

    # Operator actions.

    def make(self, bundle: RolloutBundle, url: str, plan: RolloutPlan, devices: Sequence[str], now_ms: int) -> Rollout:
        """Raises FleetError if a board is in another roll-out, or if there are no boards."""
        if not devices:
            raise FleetError(
                "no board matches", where=f"{bundle.name} {bundle.version} for {', '.join(bundle.compatible)}",
                do="Boards with an agent count: compare --model, --profile, --site and --group with the fleet page",
            )  # fmt: skip
        with self._store.writing() as batch:
            busy = batch.execute(
                "SELECT b.rollout, b.device FROM rollout_board b JOIN rollout r ON r.id = b.rollout "
                f"WHERE r.state IN ({_ACTIVE})"
            ).fetchall()
            taken = [(number, device) for number, device in busy if device in set(devices)]
            if taken:
                number = taken[0][0]
                raise FleetError(
                    f"{len(taken)} of these boards are in the active roll-out {number}",
                    do=f"Wait until it is done, or end it: edgekit fleet abort {number}",
                )
            ((number, rev),) = batch.execute(
                "SELECT coalesce(max(id), 0) + 1, coalesce(max(undo_rev), 0) + 1 FROM rollout"
            ).fetchall()
            rev = max(int(rev) + 1, now_ms)  # above those of a store that was lost
            absent = {name for (name,) in batch.execute('SELECT "id" FROM device WHERE online = 0').fetchall()}
            waves = waves_of(rev, devices, plan.waves, absent)
            given = (
                number, rev, rev + 1, bundle.name, bundle.version, bundle.profile, bundle.sha256, bundle.sha, url,
                json.dumps(asdict(plan)), now_ms, len(waves), "running",
                SHADOW if plan.shadow else 0, now_ms, UNWAIVED, "", 0, "",
            )  # fmt: skip
            batch.execute(_ROLLOUT.insert(), given)
            nothing = ("", 0, 0, "", "", "", "", "", "", 0)
            batch.many(_BOARD.insert(), [(number, device, wave, *nothing) for device, wave in waves.items()])
            if plan.shadow:
                batch.execute("DELETE FROM shadow WHERE sha = ?", (bundle.sha256[:12],))
                some = list(waves)[: max(BOARDS, sum(wave == 0 for wave in waves.values()))]
                batch.many(
                    "UPDATE rollout_board SET want = 'shadow', rev = ?, at_ms = ? WHERE rollout = ? AND device = ?",
                    [(rev - 1, now_ms, number, device) for device in some],
                )
            else:
                self._order(batch, int(number), "running", 0, rev, rev + 1, now_ms)
        return self.get(int(number))

    def speak(self, number: int, word: Word, now_ms: int) -> Rollout:
        """Raises FleetError if the action is not possible now."""
        found = self.get(number)
        after = obey(word, found.standing, now_ms)
        if word == "undo":
            ((later,),) = self._store.select(
                "SELECT max(rollout) FROM rollout_board WHERE rollout > ? AND want IN ('new', 'former') "
                "AND NOT (want = 'former' AND phase = 'committed') AND device IN "
                "(SELECT device FROM rollout_board WHERE rollout = ?)",
                (number, number),
            )
            if later is not None:
                raise FleetError(
                    f"roll-out {later} followed on some of these boards",
                    where=str(number),
                    do=f"Undo it first: edgekit fleet undo {later}",
                )
        if not self.step(found, after, now_ms):
            raise FleetError(
                "the roll-out changed in the meantime", where=str(number), do="Check its state: edgekit fleet rollouts"
            )
        return self.get(number)

    # Server steps.

    def step(self, rollout: Rollout, after: RolloutStanding, now_ms: int) -> bool:
        """Take a step and issue its orders. False if the roll-out has moved on."""
        before = rollout.standing
        with self._store.writing() as batch:
            changed = batch.execute(
                "UPDATE rollout SET state = ?, wave = ?, since_ms = ?, waived = ?, why = ?, by_word = ?, evidence = ? "
                f"WHERE {_UNCHANGED}",
                (
                    after.state, after.wave, after.since_ms, after.waived, after.why, int(after.by_word),
                    json.dumps(after.evidence), *_state_of(rollout),
                ),
            ).rowcount  # fmt: skip
            if changed:
                undo_rev = rollout.undo_rev
                if after.state == "undoing" and before.state != "undoing":  # boards take no number below their last
                    ((last,),) = batch.execute("SELECT max(undo_rev) FROM rollout").fetchall()
                    undo_rev = undo_rev if last == undo_rev else int(last) + 1
                    batch.execute("UPDATE rollout SET undo_rev = ? WHERE id = ?", (undo_rev, rollout.id))
                self._order(batch, rollout.id, after.state, after.wave, rollout.rev, undo_rev, now_ms)
        return bool(changed)

    def reinforce(self, rollout: Rollout, boards: int, now_ms: int) -> bool:
        """Let boards of later waves that are online join the wave in hand.

        The wave begins again, and its absent boards go to the last. False if the roll-out has moved on."""
        wave, last = rollout.standing.wave, len(rollout.plan.waves) - 1
        with self._store.writing() as batch:
            changed = batch.execute(
                f"UPDATE rollout SET since_ms = ? WHERE {_UNCHANGED}", (now_ms, *_state_of(rollout))
            ).rowcount
            if not changed:
                return False
            spare = batch.execute(
                "SELECT b.wave, b.device FROM rollout_board b LEFT JOIN device d ON d.id = b.device "
                f"WHERE b.rollout = ? AND b.wave > ? AND {_SPARE}", (rollout.id, wave),
            ).fetchall()  # fmt: skip
            spare.sort(key=lambda row: (row[0], place_of(rollout.rev, row[1])))
            batch.execute(
                "UPDATE rollout_board SET wave = ? WHERE rollout = ? AND wave = ? AND device IN (SELECT b.device FROM "
                f"rollout_board b JOIN device d ON d.id = b.device WHERE b.rollout = ? AND {_ABSENT})",
                (last, rollout.id, wave, rollout.id, now_ms - ABSENT_MS),
            )
            batch.many(
                "UPDATE rollout_board SET wave = ? WHERE rollout = ? AND device = ?",
                [(wave, rollout.id, device) for _, device in spare[:boards]],
            )
            self._order(batch, rollout.id, "running", wave, rollout.rev, rollout.undo_rev, now_ms)
        return True

    def _order(self, batch: Any, number: int, state: State, wave: int, rev: int, undo_rev: int, now_ms: int) -> None:
        if state == "running" and wave > SHADOW:
            batch.execute(
                "UPDATE rollout_board SET want = '', rev = 0, phase = '', error = '', code = '', asked_ms = -1 WHERE "
                "rollout = ? AND want = 'shadow'",
                (number,),
            )
            batch.execute(
                "UPDATE rollout_board SET want = 'new', rev = ?, at_ms = ?, asked_ms = 0 WHERE rollout = ? AND "
                "wave <= ? AND want = ''",
                (rev, now_ms, number, wave),
            )
        elif state == "undoing":
            self._send_back(batch, number, undo_rev, now_ms, "'new'", "('', 'fetching', 'trial', 'committed')")
        if state in ("undoing", "aborted"):
            moved = "phase <> 'committed'" if state == "aborted" else "1 = 1"
            batch.execute(
                "UPDATE rollout_board SET want = 'none', asked_ms = 0 WHERE rollout = ? AND "
                f"(want = 'shadow' OR (want = 'new' AND {moved}))",
                (number,),
            )

    def _send_back(self, batch: Any, number: int, undo_rev: int, now_ms: int, want: str, phases: str) -> None:
        batch.execute(
            "UPDATE rollout_board SET want = 'former', rev = ?, phase = '', error = '', code = '', asked_ms = 0, "
            f"at_ms = ? WHERE rollout = ? AND want = {want} AND former_sha256 <> '' AND phase IN {phases}",
            (undo_rev, now_ms, number),
        )

    def report(self, reports: Sequence[tuple[str, OrderReport]], now_ms: int) -> None:
        """Store reports. A withdrawn order that was executed anyway is undone with the others.

        A report of another bundle under the same number is ignored, and the order repeated.
        """
        with self._store.writing() as batch:
            for device, said in reports:
                former = said.former
                batch.execute(
                    "UPDATE rollout_board SET phase = ?, version = ?, error = ?, code = ?, at_ms = ?, "
                    "former_version = CASE WHEN ? <> '' AND want <> 'former' THEN ? ELSE former_version END, "
                    "former_sha256 = CASE WHEN ? <> '' AND want <> 'former' THEN ? ELSE former_sha256 END "
                    f"WHERE device = ? AND rev = ? AND phase NOT IN ({_FINAL}) AND ? IN ('', CASE want WHEN 'former' "
                    "THEN former_sha256 ELSE (SELECT r.sha256 FROM rollout r WHERE r.id = rollout_board.rollout) END)",
                    (
                        said.phase, said.version, said.error, said.code, now_ms,
                        *([former.version] * 2 if former else ["", ""]), *([former.sha256] * 2 if former else ["", ""]),
                        device, said.rev, said.sha256,
                    ),
                )  # fmt: skip
            undone = batch.execute("SELECT id, undo_rev FROM rollout WHERE state IN ('undoing', 'undone')").fetchall()
            for number, undo_rev in undone:
                self._send_back(batch, number, undo_rev, now_ms, "'none'", "('trial', 'committed')")

    def keep_figures(self, rollout: Rollout, figures: Sequence[ComparedFigure], now_ms: int) -> None:
        """Keep what was compared, for pages."""
        with self._store.writing() as batch:
            given = (rollout.id, json.dumps([asdict(one) for one in figures]), now_ms)
            batch.execute(_COMPARED.write(), given)

    def due(self, now_ms: int, again_ms: int) -> list[DueOrder]:
        """Orders to publish now."""
        rows = self._store.select(
            "SELECT b.rollout, b.device, b.want, b.rev, b.former_version, b.former_sha256, r.name, r.version, "
            "r.sha256, r.url, r.plan FROM rollout_board b JOIN rollout r ON r.id = b.rollout WHERE "
            f"(b.want IN ('new', 'former', 'shadow') AND b.phase NOT IN ({_FINAL}) AND b.asked_ms < ?) "
            "OR (b.want = 'none' AND b.asked_ms = 0) OR (b.want = '' AND b.asked_ms < 0) "
            "ORDER BY b.asked_ms, b.device LIMIT ?",
            (now_ms - again_ms, _MOST_DUE),
        )
        found = []
        for number, device, want, rev, former_version, former_sha256, name, version, sha256, url, plan in rows:
            order = None
            if want == "new":
                order = Order(rev, name, version, sha256, url)
            elif want == "shadow":
                order = Order(rev, name, version, sha256, url, shadow=load_json(plan)["shadow"])
            elif want == "former":
                known = self._store.select(
                    "SELECT url FROM rollout WHERE sha256 = ? ORDER BY id DESC LIMIT 1", (former_sha256,)
                )
                former_url = str(known[0][0]) if known else ""  # boards may keep the only copies
                order = Order(rev, name, former_version, former_sha256, former_url)
            found.append(DueOrder(number, device, want, rev, order))
        return found

    def mark_published(self, published: Sequence[DueOrder], now_ms: int) -> None:
        """An order replaced in the meantime stays due."""
        with self._store.writing() as batch:
            for due in published:
                batch.execute(
                    "UPDATE rollout_board SET asked_ms = ? WHERE rollout = ? AND device = ? AND want = ? AND rev = ?",
                    (now_ms, due.rollout, due.device, due.want, due.rev),
                )

    # Reading.

    def get(self, number: int) -> Rollout:
        """Raises FleetError if it does not exist."""
        rows = self._store.select(f"SELECT {_COLUMNS} FROM rollout WHERE id = ?", (number,))
        if not rows:
            raise FleetError(f"no such roll-out: {number}", do="List them: edgekit fleet rollouts")
        return _rollout(rows[0])

    def all(self, *, active: bool = False) -> list[Rollout]:
        """The latest first."""
        where = f"WHERE state IN ({_ACTIVE})" if active else ""
        rows = self._store.select(f"SELECT {_COLUMNS} FROM rollout {where} ORDER BY id DESC", ())
        return [_rollout(row) for row in rows]

    def boards(self, number: int, most: int | None = None) -> list[BoardRow]:
        """By wave; with `most`, those with an error first."""
        first = "" if most is None else "CASE WHEN error <> '' OR code <> '' THEN 0 ELSE 1 END, "
        rows = self._store.select(
            "SELECT device, wave, want, phase, version, error, code, at_ms FROM rollout_board WHERE rollout = ? "
            f"ORDER BY {first}wave, device LIMIT ?", (number, most or _MOST_BOARDS),
        )  # fmt: skip
        return [BoardRow(*row) for row in rows]

    def shadows(self, rollout: Rollout) -> list[ShadowFigures]:
        """Of the boards that run it in silence; of those that did, once that is over."""
        silent = rollout.standing.wave == SHADOW and rollout.standing.state in ACTIVE
        wanted = "b.want = 'shadow'" if silent else "s.n IS NOT NULL"
        rows = self._store.select(
            "SELECT b.device, s.n, s.same, s.skipped, s.ratios, s.ms, s.mb, s.psi, s.rests, b.phase, b.code FROM "
            "rollout_board b LEFT JOIN device d ON d.id = b.device LEFT JOIN shadow s ON s.device = d.num AND "
            f"s.sha = ? WHERE b.rollout = ? AND {wanted} ORDER BY b.device",
            (rollout.sha256[:12], rollout.id),
        )
        found = []
        for device, n, same, skipped, ratios, ms, mb, psi, why, phase, code in rows:
            read = Histogram.from_wire(load_json(ratios)) if ratios else Histogram()
            word = why or (code or phase if phase in FINAL and phase not in ("shadowing", "committed") else "")
            sha, counts = rollout.sha256[:12], (n or 0, same or 0, skipped or 0)
            found.append(ShadowFigures(sha, *counts, read, ms, mb, psi, word, device=device))
        return found

    def figures(self, number: int) -> list[ComparedFigure]:
        """Of the last comparison; empty before it."""
        rows = self._store.select("SELECT figures FROM rollout_compared WHERE rollout = ?", (number,))
        return [from_json(ComparedFigure, one, "a comparison") for one in load_json(rows[0][0])] if rows else []

    def phases(self, number: int) -> dict[tuple[int, str, str], int]:
        """(wave, want, phase) -> boards."""
        rows = self._store.select(
            "SELECT wave, want, phase, count(*) FROM rollout_board WHERE rollout = ? GROUP BY wave, want, phase "
            "ORDER BY wave, want, phase",
            (number,),
        )
        return {(int(wave), want, phase): int(n) for wave, want, phase, n in rows}

    def wanted(self) -> dict[str, tuple[str, str]]:
        """Board -> (version, phase) of the active roll-out that it has yet to follow."""
        return {device: (version, phase) for device, version, phase in self._store.select(
            "SELECT b.device, r.version, b.phase FROM rollout_board b JOIN rollout r ON r.id = b.rollout WHERE r.state "
            f"IN ('running', 'paused') AND b.want IN ('', 'new') AND b.phase NOT IN ({_FINAL})"
        )}  # fmt: skip

    def tally(self, rollout: Rollout, now_ms: int) -> Tally:
        rows = self._store.select(
            "SELECT phase, code, count(*), max(at_ms) FROM rollout_board WHERE rollout = ? AND wave = ? AND "
            "want <> 'former' GROUP BY phase, code",
            (rollout.id, rollout.standing.wave),
        )
        counts, reasons, last_ms = Counter[str](), Counter[str](), 0
        for phase, code, n, at_ms in rows:
            counts[phase if phase in FINAL else "pending"] += int(n)
            if phase in FINAL:
                last_ms = max(last_ms, int(at_ms))
                if phase != "committed":
                    reasons[code or phase] += int(n)
        ((moving, absent, spare),) = self._store.select(
            f"SELECT coalesce(sum(CASE WHEN b.want = 'former' AND b.phase NOT IN ({_FINAL}) THEN 1 ELSE 0 END), 0), "
            f"coalesce(sum(CASE WHEN b.wave = ? AND {_ABSENT} THEN 1 ELSE 0 END), 0), "
            f"coalesce(sum(CASE WHEN b.wave > ? AND {_SPARE} THEN 1 ELSE 0 END), 0) "
            "FROM rollout_board b LEFT JOIN device d ON d.id = b.device WHERE b.rollout = ?",
            (rollout.standing.wave, now_ms - ABSENT_MS, rollout.standing.wave, rollout.id),
        )
        return Tally(
            boards=counts.total(),
            pending=counts["pending"],
            committed=counts["committed"],
            failed=reasons.total(),
            last_ms=last_ms,
            reasons=tuple(reasons.most_common(3)),
            moving_back=int(moving),
            absent=int(absent),
            spare=int(spare),
            all=rollout.boards,
        )

    def knows(self, sha256: str) -> bool:
        """Whether a roll-out uses that bundle."""
        return bool(self._store.select("SELECT 1 FROM rollout WHERE sha256 = ? LIMIT 1", (sha256,)))


_UNCHANGED = "id = ? AND state = ? AND wave = ? AND since_ms = ? AND waived = ?"


def _state_of(rollout: Rollout) -> tuple[Any, ...]:
    """For _UNCHANGED."""
    standing = rollout.standing
    return rollout.id, standing.state, standing.wave, standing.since_ms, standing.waived


def _rollout(row: Sequence[Any]) -> Rollout:
    facts: dict[str, Any] = dict(zip(_ROLLOUT.columns, row, strict=True))
    plan = read_json(RolloutPlan, facts.pop("plan"), "the plan of a roll-out")
    said = {name: facts.pop(name) for name in ("state", "wave", "since_ms", "waived", "why", "by_word", "evidence")}
    said |= {"by_word": bool(said["by_word"]), "evidence": tuple(load_json(said["evidence"] or "[]"))}
    return Rollout(**facts, plan=plan, standing=RolloutStanding(**said))
