"""Simulated boards: the code that real boards run, fed with made-up latencies.

They are for the demo, tests and benchmarks.

Everything from the meter to MQTT is the real thing, spool on disk included; only the inferences are invented.

    with SimulatedBoards("mqtt://127.0.0.1:1883", folder, ["porch-1", "gate-1"], window_s=2.0) as boards:
        ...
    boards.answered             # {"porch-1": 1203, "gate-1": 988}: what their meters counted
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from edgekit_runtime.telemetry.meter import Meter
from edgekit_runtime.telemetry.reporter import Reporter, TelemetryOptions
from edgekit_runtime.telemetry.window import About

_TICK_S = 0.1


@dataclass(frozen=True)
class Habits:
    """What a board is like.
    median_ms, spread: of the device's latencies.
    cached, hosted: shares of the answers."""

    profile: str = "raspberry-pi-4"
    median_ms: float = 20.0
    spread: float = 0.2
    cached: float = 0.2
    hosted: float = 0.0
    per_s: float = 20.0
    budget_ms: float = 40.0

    @classmethod
    def drawn(cls, draw: random.Random) -> Habits:
        """One of many: mostly quick, now and then slow, some that lean on a host."""
        return cls(
            profile=draw.choice(["raspberry-pi-4", "raspberry-pi-5"]),
            median_ms=draw.uniform(9, 30),
            spread=draw.uniform(0.1, 0.35),
            cached=draw.uniform(0.0, 0.5),
            hosted=draw.choice([0.0, 0.0, 0.05, 0.2]),
            per_s=draw.uniform(5, 40),
        )


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
