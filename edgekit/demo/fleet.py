"""The fleet demo: a broker and a fleet page on this machine, one real device that answers photos, some that are made up.

On a terminal it runs until Ctrl-C; elsewhere it asks its own pages whether they show what happened.

    with FleetDemo(bundle, photos, folder) as demo:
        print(demo.server.url)
        failed = [check for check in demo.checks() if check.problem]
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from edgekit.errors import DemoError
from edgekit.fleet.errors import FleetError
from edgekit.fleet.serve import FleetServer, Settings
from edgekit.fleet.simulated import SimulatedBoards
from edgekit_runtime import BudgetExceeded, Model, TelemetryOptions, open_bundle

__all__ = ["Check", "FleetDemo"]

REAL = "this-machine"
SIMULATED = ("porch-1", "porch-2", "gate-north", "gate-south", "barn-7", "press-line-3", "greenhouse-2")
WINDOW_S = 2.0
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Check:
    """what: a sentence. problem: why it does not hold, empty when it does."""

    what: str
    problem: str = ""


class FleetDemo:
    """Everything runs in this process and on loopback ports, and ends with it."""

    def __init__(self, bundle: Path, photos: Sequence[Path], folder: Path, *, listen: str = "127.0.0.1:8787") -> None:
        self._bundle, self._photos, self._listen = bundle, photos, listen
        self._folder = folder / "fleet"
        self._ends = contextlib.ExitStack()
        self._stop = threading.Event()
        self.server: FleetServer

    def start(self) -> None:
        """Raises FleetError, BundleError and what else opening a bundle raises."""
        if not self._bundle.exists():
            raise DemoError("the demo's bundle is not there", where=str(self._bundle), do="Run: edgekit demo")
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        with contextlib.ExitStack() as ends:
            self.server = self._serve()
            ends.callback(self.server.close)
            model = ends.enter_context(
                open_bundle(
                    self._bundle,
                    allow_unsigned=True,  # just built, by the demo itself
                    telemetry=TelemetryOptions(self.server.broker_url, REAL, WINDOW_S, self._folder / f"{REAL}.db"),
                )
            )
            told = model.describe()
            named = (told["name"], told["version"], "0" * 12)
            boards = SimulatedBoards(
                self.server.broker_url, self._folder, SIMULATED, window_s=WINDOW_S, model=named, seed=4
            )
            ends.enter_context(boards)
            asking = threading.Thread(target=self._ask, args=(model,), name="edgekit-demo-asks", daemon=True)
            asking.start()
            ends.callback(asking.join, 10.0)
            ends.callback(self._stop.set)
            self._ends = ends.pop_all()

    def close(self) -> None:
        self._ends.close()

    def __enter__(self) -> FleetDemo:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def checks(self) -> Iterator[Check]:
        """Ask the pages, as a browser would, whether they show what happens here."""
        yield self._eventually("the fleet page lists every device as online", self._all_online)
        yield self._eventually("this machine's answers are on its page, with percentiles", self._real_figures)
        yield self._eventually("its latency over time can be drawn", self._real_series)
        yield self._eventually("the plotting script comes from this server", lambda: "" if self._get(
            "static/plotly.min.js").startswith("/*") else "it is something else")  # fmt: skip
        yield self._eventually("nothing was refused or lost", self._healthy)

    def _serve(self) -> FleetServer:
        """Started on the usual port, or on a free one where that is taken."""
        store = f"sqlite:///{self._folder / 'fleet.db'}"
        server = FleetServer(Settings(None, 0, store, self._listen))
        try:
            server.start()
        except FleetError:
            server = FleetServer(Settings(None, 0, store, "127.0.0.1:0"))
            server.start()
        return server

    def _ask(self, model: Model) -> None:
        """A few photos a second, some of them new to the cache."""
        import numpy as np

        seen, draw = 0, np.random.default_rng(0)
        while not self._stop.wait(0.15):
            seen += 1
            with contextlib.suppress(BudgetExceeded):  # a busy machine: the page counts it, and the board goes on
                model.predict(self._photos[seen % len(self._photos)], budget_ms=100)
                if seen % 3 == 0:
                    model.predict(draw.integers(0, 256, (240, 320, 3), np.uint8), budget_ms=100)

    def _eventually(self, what: str, problem: Callable[[], str]) -> Check:
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                found = problem()
            except (OSError, ValueError, KeyError) as error:
                found = str(error)
            if not found or time.monotonic() > until:
                return Check(what, found)
            time.sleep(0.2)

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self.server.url + path, timeout=10) as answer:
            return str(answer.read().decode())

    def _all_online(self) -> str:
        page, wanted = self._get(""), len(SIMULATED) + 1
        missing = [name for name in (REAL, *SIMULATED) if f'id="device-{name}"' not in page]
        if missing:
            return f"{', '.join(missing)} not listed"
        return "" if f"<b>{wanted}</b> of <b>{wanted}</b> online" in page else "not all are online"

    def _real_figures(self) -> str:
        row = self.server.store.device(REAL)
        if row is None or not row.n or row.p99 is None or not row.hits:
            return "no answers yet"
        page = self._get(f"device/{REAL}")
        return "" if row.model in page and "ms" in page else "the page does not show them"

    def _real_series(self) -> str:
        series = json.loads(self._get(f"device/{REAL}/series"))
        return "" if len([p for p in series["p99"] if p is not None]) >= 2 else "fewer than two windows yet"

    def _healthy(self) -> str:
        health = json.loads(self._get("healthz"))
        return "" if health["ok"] and not health["lost"] and not health["refused"] else json.dumps(health)
