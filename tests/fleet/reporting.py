"""Boards in this process with the real meter, reporter and spool on disk, and made-up latencies.

with SimulatedBoards("mqtt://127.0.0.1:1883", folder, ["porch-1", "gate-1"], window_s=2.0) as boards:
    ...
boards.answered             # {"porch-1": 1203, "gate-1": 988}: what their meters counted
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from edgekit.fleet.simulated import Habits
from edgekit_runtime.telemetry.meter import Meter
from edgekit_runtime.telemetry.reporter import Reporter, TelemetryOptions
from edgekit_runtime.telemetry.window import About

_TICK_S = 0.1


class SimulatedBoards:
    """names: device ids. model: (name, version, sha) that all of them run."""

    def __init__(
        self,
        broker: str,
        folder: Path,
        names: Sequence[str],
        *,
        window_s: float = 2.0,
        model: tuple[str, str, str] = ("efficientnet_lite0", "1", "0" * 12),
        seed: int = 0,
    ) -> None:
        draw = random.Random(seed)
        self._draw = random.Random(seed + 1)
        self._stop = threading.Event()
        self._boards: dict[str, tuple[Meter, Habits, Reporter]] = {}
        for name in names:
            habits, meter = Habits.drawn(draw), Meter()
            about = About(name, *model, habits.profile, habits.budget_ms)
            options = TelemetryOptions(broker, name, window_s, folder / f"{name}.db", most_wait_s=5.0)
            self._boards[name] = (meter, habits, Reporter(meter, about, options))
        self._feeder = threading.Thread(target=self._feed, name="edgekit-simulated", daemon=True)

    def start(self) -> None:
        for _, _, reporter in self._boards.values():
            reporter.start()
        self._feeder.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop asking, and let every board send what it has."""
        self._stop.set()
        self._feeder.join()
        with ThreadPoolExecutor(64) as pool:
            list(pool.map(lambda board: board[2].close(timeout_s), self._boards.values()))

    @property
    def answered(self) -> dict[str, int]:
        """What each board's meter has counted."""
        return {name: meter.stats().requests for name, (meter, _, _) in self._boards.items()}

    def __enter__(self) -> SimulatedBoards:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _feed(self) -> None:
        draw = self._draw
        while not self._stop.wait(_TICK_S):
            for meter, habits, _ in self._boards.values():
                for _ in range(int(habits.per_s * _TICK_S + draw.random())):
                    # from the cache, from a host, or from the device with a slow one in a hundred
                    kind = draw.random()
                    if kind < habits.cached:
                        meter.record("cache", draw.uniform(0.01, 0.05), True)
                        continue
                    slow = 3.0 if draw.random() < 0.01 else 1.0
                    latency = draw.lognormvariate(0.0, habits.spread) * habits.median_ms * slow
                    source = "host" if kind < habits.cached + habits.hosted else "device"
                    meter.record(source, latency, latency <= habits.budget_ms)
