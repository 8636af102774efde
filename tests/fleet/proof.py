"""The experiment of the fleet's main promise: boards, a real broker that is killed, and what is stored in the end.

Every board is the real reporter with the real spool. The broker gets `kill -9` in mid-run and comes back; the ingestor
comes back a while after it, so that boards send, and the broker receipts, what nobody takes in.
"""

from __future__ import annotations

import resource
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fleet.boards import windows
from fleet.reporting import SimulatedBoards
from mosquitto import Mosquitto

from edgekit.fleet.ingest import Ingest, Pace
from edgekit.fleet.store.databases import SqliteStore
from edgekit.fleet.store.records import Arrival, Change, Mark
from edgekit_runtime.telemetry.link import Broker
from edgekit_runtime.telemetry.spool import Spool


class MaxSeqStore(SqliteStore):
    """The control: acknowledges the largest seq it has, as if nothing could be missing below it."""

    def commit(self, arrivals: Sequence[Arrival], changes: Sequence[Change]) -> list[Mark]:
        marks = super().commit(arrivals, changes)
        return [replace(mark, hwm=max(seq for _, seq in windows(self, mark.device))) for mark in marks]


@dataclass(frozen=True)
class Plan:
    """Seconds from the start, but for `down_s` and `away_s`: how long the broker is dead, and the ingestor after it."""

    boards: int = 200
    window_s: float = 1.0
    kill_s: float = 6.0
    down_s: float = 1.5
    away_s: float = 2.0
    run_s: float = 18.0
    drain_s: float = 120.0


@dataclass(frozen=True)
class Outcome:
    """committed: windows that spools have accepted. stored: of these, in the store. missing: not there.

    still_spooled: on a board at the end, so late and not lost. known_lost: given up by boards, and counted.
    answered, counted: answers by the boards' meters, and by the store's roll-ups. receipts: acknowledged duplicates
    too.
    """

    committed: int
    stored: int
    missing: int
    still_spooled: int
    known_lost: int
    answered: int
    counted: int
    messages: int
    drained_s: float


def prove(folder: Path, plan: Plan, kind: type[SqliteStore] = SqliteStore) -> Outcome:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 16 * plan.boards + 512
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard) if hard > 0 else wanted, hard))
    broker = Mosquitto(folder)
    broker.start()
    store = kind.open(folder / "fleet.db")
    ingest = _ingest(broker, store)
    boards = SimulatedBoards(
        broker.url, folder, [f"board-{n:04}" for n in range(plan.boards)], window_s=plan.window_s, seed=7
    )
    began = time.monotonic()
    boards.start()
    try:
        _sleep_until(began + plan.kill_s)
        broker.kill()
        messages = ingest.counts["messages"]
        ingest.close()
        _sleep_until(began + plan.kill_s + plan.down_s)
        broker.start()
        _sleep_until(began + plan.kill_s + plan.down_s + plan.away_s)
        ingest = _ingest(broker, store)
        _sleep_until(began + plan.run_s)
        ended = time.monotonic()
        boards.close(plan.drain_s)
        drained_s = time.monotonic() - ended
        messages += ingest.counts["messages"]
    finally:
        boards.close(0.0)
        ingest.close()
        broker.kill()
    return _count(folder, store, boards, messages, drained_s)


def _ingest(broker: Mosquitto, store: SqliteStore) -> Ingest:
    ingest = Ingest(Broker.parse(broker.url), store, Pace(chores_s=3600, prune_s=3600))
    ingest.start()
    return ingest


def _count(folder: Path, store: SqliteStore, boards: SimulatedBoards, messages: int, drained_s: float) -> Outcome:
    found, totals = read_ledger(folder, store, boards.answered), store.totals()
    assert (found.twice, found.unknown) == (0, 0), found
    store.close()
    with sqlite3.connect(folder / "fleet.db") as db:
        (counted,) = db.execute("SELECT coalesce(sum(n), 0) FROM rollup WHERE device > 0 AND minutes = 15").fetchone()
    db.close()
    answered = sum(boards.answered.values())
    return Outcome(
        found.committed, found.stored, found.missing, found.waiting, totals.lost, answered, counted, messages,
        round(drained_s, 1),
    )  # fmt: skip


@dataclass(frozen=True)
class Ledger:
    """committed: windows and events that spools accepted. stored: of these, in the store. waiting: on a board only.

    missing: on neither. twice, unknown: in the store more than once, or though no spool has committed it.
    """

    committed: int = 0
    stored: int = 0
    waiting: int = 0
    missing: int = 0
    twice: int = 0
    unknown: int = 0


def read_ledger(folder: Path, store: SqliteStore, names: Iterable[str]) -> Ledger:
    """The ledger is the spools' own: seq runs from 1 to the last one given, without a gap."""
    found = Ledger()
    for name in names:
        spool = Spool.open(folder / f"{name}.db")
        mine = {(spool.epoch, seq) for seq in range(1, spool.last + 1)}
        kept = {(spool.epoch, seq) for seq, _ in spool.after(0, 1_000_000)}
        spool.close()
        rows = windows(store, name)
        there = set(rows)
        found = Ledger(
            found.committed + len(mine),
            found.stored + len(there & mine),
            found.waiting + len(kept - there),
            found.missing + len(mine - there - kept),
            found.twice + len(rows) - len(there),
            found.unknown + len(there - mine),
        )
    return found


def _sleep_until(moment: float) -> None:
    """The experiment is about time passing; nothing could tell when it is over."""
    time.sleep(max(0.0, moment - time.monotonic()))
