"""Read what the boards of a wave answered before it and since, and what other boards did.

    wave, others = WaveFigures(store).read(rollout, now_ms)

Rules:
- a board of the wave that has committed is compared with its own answers by other versions, of a day before the wave,
  without the quarters in which it failed by itself;
- others are boards that have not moved, before the wave began and since; once all have moved, boards of earlier waves,
  as they were before they moved. With a label to compare against, they are the boards that have it;
- at most MOST_OF_WAVE and MOST_OTHERS boards are read. They are drawn like the waves, so any of them stand for all;
- what was before the wave is read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from edgekit.fleet.rollouts.comparison import BoardFigures, Figures, usual_quarters
from edgekit.fleet.rollouts.rollout_tables import ABSENT_MS, Rollout
from edgekit.fleet.rollouts.waves import place_of
from edgekit.fleet.store import packed
from edgekit.fleet.store.reading import Quarter
from edgekit.fleet.store.records import quarter_of
from edgekit.fleet.store.schema import SUMS
from edgekit.fleet.store.sql import SqlStore
from edgekit.fleet.store.sums import Sums
from edgekit_runtime.telemetry.histogram import Histogram

MOST_OF_WAVE, MOST_OTHERS = 200, 100
DAY_MS = 24 * 3600 * 1000
_N, _ERRORS, _OVER = (SUMS.index(name) for name in ("n", "errors", "over"))


@dataclass(frozen=True)
class _ComparedBoard:
    device: str
    moved: bool
    gone: bool


class WaveFigures:
    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._read: dict[int, tuple[tuple[int, int], dict[str, Figures]]] = {}  # roll-out -> wave and start, before

    def read(self, rollout: Rollout, now_ms: int) -> tuple[list[BoardFigures], list[BoardFigures]]:
        """(boards of the wave in hand, others). Raises StoreError."""
        wave, others = self._boards(rollout, now_ms)
        began = rollout.standing.wave, rollout.standing.since_ms
        known = self._read.get(rollout.id)
        before = known[1] if known is not None and known[0] == began else {}
        self._read[rollout.id] = began, before
        self._add_before(rollout, [one for one in (*wave, *others) if one.device not in before], before)
        since: dict[str, list[Sums]] = {}
        moved = {one.device: one.moved for one in (*wave, *others)}
        for quarter in self._quarters(rollout, list(moved), quarter_of(rollout.standing.since_ms)):
            if (quarter.version == rollout.version) == moved[quarter.device]:
                since.setdefault(quarter.device, []).append(quarter.sums)
        return tuple(
            [
                BoardFigures(one.device, before[one.device], _figures(since.get(one.device, ())), one.gone)
                for one in some
            ]
            for some in (wave, others)
        )  # type: ignore[return-value]

    def forget(self, active: Iterable[int]) -> None:
        """Keep what was read for these roll-outs only."""
        self._read = {number: self._read[number] for number in active if number in self._read}

    def _boards(self, rollout: Rollout, now_ms: int) -> tuple[list[_ComparedBoard], list[_ComparedBoard]]:
        standing = rollout.standing
        rows = self._store.select(
            "SELECT b.device, b.wave, b.want, b.phase, coalesce(d.online, 1), coalesce(d.since_ms, 0) FROM "
            "rollout_board b LEFT JOIN device d ON d.id = b.device WHERE b.rollout = ?",
            (rollout.id,),
        )
        rows.sort(key=lambda row: place_of(rollout.rev, row[0]))
        wave, still, earlier = list[_ComparedBoard](), list[_ComparedBoard](), list[_ComparedBoard]()
        for device, number, want, phase, online, since_ms in rows:
            gone = not online and rollout.made_ms < since_ms < now_ms - ABSENT_MS
            committed = want == "new" and phase == "committed"
            if number == standing.wave and (committed or (gone and phase)):
                wave.append(_ComparedBoard(device, True, gone))
            elif number > standing.wave and not want:
                still.append(_ComparedBoard(device, False, gone))
            elif number < standing.wave and committed:
                earlier.append(_ComparedBoard(device, True, gone))
        if rollout.plan.against:
            ordered, (label, value) = {row[0] for row in rows}, rollout.plan.against
            found = self._store.select(
                f'SELECT "id" FROM device WHERE model = ? AND "{label}" = ? AND online = 1', (rollout.name, value)
            )
            still = [_ComparedBoard(device, False, False) for (device,) in found if device not in ordered]
            still.sort(key=lambda one: place_of(rollout.rev, one.device))
        return wave[:MOST_OF_WAVE], (still or earlier)[:MOST_OTHERS]

    def _add_before(self, rollout: Rollout, boards: Sequence[_ComparedBoard], before: dict[str, Figures]) -> None:
        start_ms = quarter_of(rollout.standing.since_ms)
        moved, found = {one.device: one.moved for one in boards}, dict[str, list[Sums]]()
        for quarter in self._quarters(rollout, list(moved), start_ms - DAY_MS):
            if quarter.version != rollout.version if moved[quarter.device] else quarter.start_ms < start_ms:
                found.setdefault(quarter.device, []).append(quarter.sums)
        for device in moved:
            quarters = found.get(device, [])
            counts = [tuple(sums.counts[place] for place in (_N, _ERRORS, _OVER)) for sums in quarters]
            usual = usual_quarters([(n + errors, errors, over) for n, errors, over in counts])
            kept = len(usual) / max(1, sum(n + errors > 0 for n, errors, _ in counts))
            before[device] = replace(_figures([quarters[place] for place in usual]), unusual=1 - kept if usual else 0.0)

    def _quarters(self, rollout: Rollout, devices: Sequence[str], since_ms: int) -> list[Quarter]:
        return self._store.quarters(devices, rollout.name, since_ms) if devices else []


def _figures(several: Sequence[Sums]) -> Figures:
    total = Sums()
    for sums in several:
        total.merge(sums)
    n, errors, over = (min(packed.MOST, total.counts[place]) for place in (_N, _ERRORS, _OVER))
    return Figures(n, errors, over, packed.histograms(total.latency).get("device", Histogram()), total.largest[3])
