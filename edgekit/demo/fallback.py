"""Two demos on this machine: a fleet with its page, and a throttled device with a host.

    with FleetDemo(bundle, photos, folder) as demo:
        print(demo.server.url)
        failed = [check for check in demo.checks() if check.problem]

Rules:
- one device is real and answers from the demo's bundle; the others are made up;
- on a terminal the fleet runs until Ctrl-C; elsewhere it checks that its pages show what happened;
- the host answers from the same build's bundle.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from edgekit.demo.assets import ASKED, MODEL, Step
from edgekit.demo.story import Check, Story, eventually
from edgekit.fleet.rolling import RollingPace
from edgekit.fleet.serve import FleetServer, Settings
from edgekit.fleet.simulated import SimulatedBoards
from edgekit.fleet.store.fleet_errors import FleetError
from edgekit.packaging.output_errors import DemoError
from edgekit_runtime import BudgetExceeded, Model, TelemetryOptions, open_bundle
from edgekit_runtime.system.strict_json import load_json

REAL = "this-machine"
SIMULATED = ("porch-1", "porch-2", "gate-north", "gate-south", "barn-7", "press-line-3", "greenhouse-2")
_PATIENCE_S = 60.0


class FleetDemo:
    """Everything runs in this process and on loopback ports, and ends with it."""

    def __init__(self, bundle: Path, photos: Sequence[Path], folder: Path, *, listen: str = "127.0.0.1:8787") -> None:
        self._bundle, self._photos, self._listen = bundle, photos, listen
        self._folder = folder / "fleet"
        self._ends = contextlib.ExitStack()
        self._stop = threading.Event()
        self.server: FleetServer

    def __enter__(self) -> FleetDemo:
        """Raises FleetError, BundleError and what else opening a bundle raises."""
        if not self._bundle.exists():
            raise DemoError("the demo's bundle is not there", where=str(self._bundle), do="Run: edgekit demo")
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        with contextlib.ExitStack() as ends:
            # Started on the usual port, or on a free one where that is taken
            store = f"sqlite:///{self._folder / 'fleet.db'}"
            pace = RollingPace(step_s=0.5, alerts_s=2.0, again_s=10.0, most_wait_s=5.0)
            server = FleetServer(Settings(None, 0, store, self._listen, rolling=pace))
            try:
                server.start()
            except FleetError:
                server = FleetServer(Settings(None, 0, store, "127.0.0.1:0", rolling=pace))
                server.start()
            self.server = server
            ends.callback(self.server.close)
            model = ends.enter_context(
                open_bundle(
                    self._bundle,
                    allow_unsigned=True,  # just built, by the demo itself
                    telemetry=TelemetryOptions(self.server.broker_url, REAL, WINDOW_S, self._folder / f"{REAL}.db"),
                )
            )
            described = model.describe()
            named = (described["name"], described["version"], "0" * 12)
            boards = SimulatedBoards(
                self.server.broker_url, self._folder, SIMULATED, window_s=WINDOW_S, model=named, seed=4
            )
            ends.enter_context(boards)
            asking = threading.Thread(target=self._ask, args=(model,), name="edgekit-demo-asks", daemon=True)
            asking.start()
            ends.callback(asking.join, 10.0)
            ends.callback(self._stop.set)
            self._ends = ends.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()

    def checks(self) -> Iterator[Check]:
        """Ask the pages, as a browser would, whether they show what happens here."""
        yield self._eventually("the fleet page lists every device as online", self._all_online)
        yield self._eventually("this machine's answers are on its page, with percentiles", self._real_figures)
        yield self._eventually("its latency over time can be drawn", self._real_series)
        yield self._eventually("the plotting script comes from this server", lambda: "" if self._get(
            "static/plotly.min.js").startswith("/*") else "it is something else")  # fmt: skip
        yield self._eventually("nothing was refused or lost", self._healthy)

    def story(self, say: Callable[[str], object]) -> Iterator[Check]:
        """An alert that names its cause, and a wave that undoes itself: two minutes."""
        store = f"sqlite:///{self._folder / 'fleet.db'}"
        yield from Story(self.server, store, self._bundle, self._photos[0], self._folder, say).checks()

    def _ask(self, model: Model) -> None:
        """A few photos a second, some of them new to the cache."""
        import numpy as np

        seen, draw = 0, np.random.default_rng(0)
        while not self._stop.wait(0.15):
            seen += 1
            with contextlib.suppress(BudgetExceeded):  # a busy machine: the page counts it, and the board continues
                model.predict(self._photos[seen % len(self._photos)], budget_ms=100)
                if seen % 3 == 0:
                    model.predict(draw.integers(0, 256, (240, 320, 3), np.uint8), budget_ms=100)

    def _eventually(self, what: str, problem: Callable[[], str]) -> Check:
        return eventually(what, problem, _PATIENCE_S)

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
        series = load_json(self._get(f"device/{REAL}/series"))
        return "" if len([p for p in series["p99"] if p is not None]) >= 2 else "fewer than two windows yet"

    def _healthy(self) -> str:
        health = load_json(self._get("healthz"))
        return "" if health["ok"] and not health["lost"] and not health["refused"] else json.dumps(health)


DEVICE = "porch-1"
BUDGET_MS = 150.0
WINDOW_S = 2.0


@dataclass(frozen=True)
class Phase:
    """A stretch of the demo: its length, and the delay of each inference in ms."""

    name: str
    seconds: float
    throttle_ms: float


PHASES = (Phase("cool", 5.0, 0.0), Phase("throttled", 10.0, 400.0), Phase("cool again", 10.0, 0.0))


@dataclass
class PhaseResult:
    """One phase. sources: answers by source, and `refused`. last: source of the last answer."""

    phase: Phase
    sources: Counter[str] = field(default_factory=Counter)
    over_budget: int = 0
    last: str = ""


def build_step(folder: Path) -> Step:
    """The device's and the host's bundle, of one build: they must share their contract."""
    return Step(
        (
            "build", str(folder / MODEL), "--profile", "raspberry-pi-4", "--profile", "host-cpu",
            "--calibration", str(folder / "photos"), "--evaluation", str(folder / "labelled"),
            "--recipe", "tflite-int8", "-o", str(folder / "fallback"),
        ),
    )  # fmt: skip


class FallbackDemo:
    """with FallbackDemo(folder) as demo: demo.url, then demo.walk(say), once or again and again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "fallback"
        self._photos = [(folder / name).read_bytes() for name in ASKED]
        self._ends = contextlib.ExitStack()
        self._model: Model
        self.url = self.host_url = ""

    def __enter__(self) -> FallbackDemo:
        from edgekit.fleet.serve import FleetServer, Settings

        store = self._folder / "run"
        shutil.rmtree(store, ignore_errors=True)
        store.mkdir(parents=True)
        device, host = (self._folder / f"{Path(MODEL).stem}-{name}.ekb" for name in ("raspberry-pi-4", "host-cpu"))
        with contextlib.ExitStack() as ends:
            self.host_url = ends.enter_context(_host(host))
            fleet = FleetServer(Settings(None, 0, f"sqlite:///{store / 'fleet.db'}", "127.0.0.1:0"))
            fleet.start()
            ends.callback(fleet.close)
            self.url = fleet.url
            self._model = ends.enter_context(
                open_bundle(
                    device,
                    allow_unsigned=True,  # just built, by the demo itself
                    hosts=[self.host_url],
                    cache=False,
                    telemetry=TelemetryOptions(fleet.broker_url, DEVICE, WINDOW_S, store / f"{DEVICE}.db"),
                )
            )
            self._model.predict(self._photos[0])  # the first picture imports Pillow, which may take a whole budget
            self._ends = ends.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()

    def checks(self, say: Callable[[str], None]) -> Iterator[Check]:
        """Walk once, and look whether what was promised happened, here and on the fleet page."""
        cool, hot, after = self.walk(say)
        yield _check("while it is cool the device answers", cool.sources["device"] == cool.sources.total(), cool)
        yield _check("throttled, the host answers for it", hot.last == "host" and hot.sources["host"] > 20, hot)
        yield _check("no request went without an answer", hot.sources["refused"] <= hot.sources.total() // 10, hot)
        yield _check("cool again, it comes home", after.last == "device", after)
        deadline = time.monotonic() + 20.0
        while (shown := DEVICE in self.page()) is False and time.monotonic() < deadline:
            time.sleep(0.2)
        yield Check("the fleet page shows the device", "" if shown else f"{self.url} does not name {DEVICE}")

    def walk(self, say: Callable[[str], None]) -> list[PhaseResult]:
        """Every phase once, a line a second."""
        walked = []
        for phase in PHASES:
            seen, second = PhaseResult(phase), Counter[str]()
            self._model.throttle(phase.throttle_ms)
            ends, next_line = time.monotonic() + phase.seconds, time.monotonic() + 1.0
            while time.monotonic() < ends:
                seen.last = self._ask(seen, sum(seen.sources.values()))
                second[seen.last] += 1
                seen.sources[seen.last] += 1
                if time.monotonic() >= next_line:
                    say(f"  {phase.name:<11} {_line(second)}")
                    second, next_line = Counter(), next_line + 1.0
            walked.append(seen)
        return walked

    def page(self) -> str:
        """The fleet page, as a browser gets it."""
        with urllib.request.urlopen(self.url, timeout=10) as reply:
            return str(reply.read().decode())

    def _ask(self, seen: PhaseResult, number: int) -> str:
        started = time.monotonic()
        try:
            answer = self._model.predict(self._photos[number % len(self._photos)], budget_ms=BUDGET_MS)
        except BudgetExceeded:
            source = "refused"
        else:
            source = answer.source
            seen.over_budget += answer.met_budget is False
        time.sleep(max(0.0, 0.1 - (time.monotonic() - started)))  # ten pictures a second, as a camera gives them
        return source


def _check(what: str, holds: bool, seen: PhaseResult) -> Check:
    return Check(
        what, "" if holds else f"({seen.phase.name}: {_line(seen.sources)}, the last one from the {seen.last})"
    )


def _line(second: Counter[str]) -> str:
    return "   ".join(f"{source} {count:2}" for source, count in sorted(second.items()))


@contextmanager
def _host(bundle: Path) -> Iterator[str]:
    """`edgekit host serve` in a process of its own, as on another machine; its URL."""
    code = "from edgekit.cli import main; main()"
    command = [sys.executable, "-c", code, "host", "serve", str(bundle), "--listen", "127.0.0.1:0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("{"):
            process.kill()
            _, errors = process.communicate()
            raise DemoError(
                f"the host did not start: {(errors or line).strip()}", do=f"Try: edgekit host serve {bundle}"
            )
        yield str(load_json(line)["listening"])
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
