"""Two demos on this machine: a fleet with its page, and a throttled device with a host.

    with fleet_demo(bundle, photos, folder) as demo:
        print(demo.server.url)
        failed = [check for check in demo.checks() if check.problem]

Rules:
- one device is real and answers from the demo's bundle; the others are made up;
- the fleet runs until the context ends, whatever its checks say;
- the host answers from the same build's bundle;
- budget and throttle follow what the device takes, so that a busy machine changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgekit.demo.assets import ASKED, MODEL, Json
from edgekit.demo.story import Check, Story, eventually
from edgekit.fleet.rollout_runner import RollingPace
from edgekit.fleet.serve import FleetServer, Settings
from edgekit.fleet.simulated import BoardLoad, BoardLoadPlan
from edgekit.fleet.store.fleet_errors import FleetError
from edgekit.packaging.output_errors import DemoError
from edgekit_runtime import BudgetExceeded, EdgekitError, Model, TelemetryOptions, open_bundle
from edgekit_runtime.system.strict_json import load_json
from edgekit_runtime.telemetry.link import Broker

REAL = "this-machine"
SIMULATED = ("porch-1", "porch-2", "gate-north", "gate-south", "barn-7", "press-line-3", "greenhouse-2")
_PATIENCE_S = 60.0


@contextmanager
def fleet_demo(
    bundle: Path, photos: Sequence[Path], folder: Path, *, listen: str = "127.0.0.1:8787"
) -> Iterator[FleetDemo]:
    """Run everything in this process on loopback ports; a free one if `listen` is in use.

    Raises FleetError, BundleError and what else opening a bundle raises.
    """
    if not bundle.exists():
        raise DemoError("the demo's bundle is missing", where=str(bundle), do="Run: edgekit demo")
    here = folder / "fleet"
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir(parents=True)
    store = f"sqlite:///{here / 'fleet.db'}"
    pace = RollingPace(step_s=0.5, alerts_s=2.0, again_s=10.0, most_wait_s=5.0, compare_s=2.0)
    with contextlib.ExitStack() as ends:
        try:
            server = ends.enter_context(FleetServer(Settings(None, 0, store, listen, rolling=pace)))
        except FleetError:
            server = ends.enter_context(FleetServer(Settings(None, 0, store, "127.0.0.1:0", rolling=pace)))
        model = ends.enter_context(_reporting(bundle, server, REAL, here))
        named = (model.manifest.name, model.manifest.version, "0" * 12)
        plan = BoardLoadPlan(seconds=math.inf, window_s=WINDOW_S, connect_s=0.5, model=named, names=SIMULATED, seed=4)
        boards, stop = BoardLoad(Broker.parse(server.broker_url), plan), threading.Event()
        for work, end in ((boards.run, boards.end), (lambda: _ask(model, photos, stop), stop.set)):
            thread = threading.Thread(target=work, name="edgekit-demo", daemon=True)
            thread.start()
            ends.callback(thread.join, 10.0)
            ends.callback(end)
        yield FleetDemo(server, store, folder, ends)


def _reporting(bundle: Path, server: FleetServer, device: str, folder: Path, **options: Any) -> Model:
    """The bundle, just built by the demo itself and not signed, as a device of the fleet."""
    telemetry = TelemetryOptions(server.broker_url, device, WINDOW_S, folder / f"{device}.db")
    return open_bundle(bundle, allow_unsigned=True, telemetry=telemetry, **options)


def _ask(model: Model, photos: Sequence[Path], stop: threading.Event) -> None:
    """A few photos a second, some of them new to the cache."""
    import numpy as np

    seen, draw = 0, np.random.default_rng(0)
    while not stop.wait(0.15):
        seen += 1
        with contextlib.suppress(EdgekitError):  # a busy machine: the page counts it, and the board continues
            model.predict(photos[seen % len(photos)], budget_ms=100)
            if seen % 3 == 0:
                model.predict(draw.integers(0, 256, (240, 320, 3), np.uint8), budget_ms=100)


@dataclass(frozen=True)
class FleetDemo:
    """A fleet that runs. store: the server's URL of it."""

    server: FleetServer
    store: str
    folder: Path
    ends: contextlib.ExitStack

    def checks(self) -> Iterator[Check]:
        """Check over HTTP that the pages show what happens."""
        yield eventually("the fleet page lists every device as online", self._all_online, _PATIENCE_S)
        yield eventually("this machine's answers are on its page, with percentiles", self._real_figures, _PATIENCE_S)
        yield eventually("its latency over time is drawn", self._real_charts, _PATIENCE_S)
        yield eventually("the fleet's curves are drawn", self._curves, _PATIENCE_S)
        yield eventually("nothing was refused or lost", self._healthy, _PATIENCE_S)

    def story(self, run: Callable[[Sequence[str]], Json], say: Callable[[str], object]) -> Iterator[Check]:
        """Yield the checks of an alert, a refused shadow, samples, and a roll-out that is undone."""
        return Story(self.server, self.store, self.folder, self.ends, run, say).checks()

    def _get(self, path: str) -> str:
        return page_of(self.server.url + path)

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

    def _real_charts(self) -> str:
        return "" if f'aria-label="Latency: {REAL}' in self._get(f"device/{REAL}/charts") else "no window yet"

    def _curves(self) -> str:
        return "" if 'aria-label="Answers per second: the fleet' in self._get("") else "not yet"

    def _healthy(self) -> str:
        health = load_json(self._get("healthz"))
        return "" if health["ok"] and not health["lost"] and not health["refused"] else json.dumps(health)


def page_of(url: str) -> str:
    """As a browser gets it."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


DEVICE = "porch-1"
WINDOW_S = 2.0
_LATELY = 10


@dataclass(frozen=True)
class Phase:
    """A stretch of the demo: its length, and the delay of each inference, times the budget."""

    name: str
    seconds: float
    throttle: float


PHASES = (Phase("cool", 5.0, 0.0), Phase("throttled", 10.0, 2.7), Phase("cool again", 10.0, 0.0))


@dataclass
class PhaseResult:
    """One phase. sources: answers by source, or `refused`. lately: the last sources."""

    phase: Phase
    sources: Counter[str] = field(default_factory=Counter)
    lately: deque[str] = field(default_factory=lambda: deque(maxlen=_LATELY))

    def mostly(self, source: str) -> bool:
        return self.sources[source] >= 0.8 * self.sources.total()

    def ends_with(self, source: str) -> bool:
        """Whether most of the last answers came from it."""
        return self.lately.count(source) > _LATELY // 2


def budget_for(took_ms: Sequence[float]) -> float:
    """A budget that the device can meet after these times, even on a busy machine."""
    return max(150.0, 4.0 * max(took_ms))


def build_step(folder: Path) -> tuple[str, ...]:
    """The device's and the host's bundle, of one build: they must share their contract."""
    return (
        "build", str(folder / MODEL), "--profile", "raspberry-pi-4", "--profile", "host-cpu",
        "--calibration", str(folder / "photos"), "--evaluation", str(folder / "labelled"),
        "--recipe", "tflite-int8", "-o", str(folder / "fallback"),
    )  # fmt: skip


@contextmanager
def fallback_demo(folder: Path) -> Iterator[FallbackDemo]:
    """Run a device, its host and a fleet server of which it is the only board."""
    folder, photos = folder / "fallback", [(folder / name).read_bytes() for name in ASKED]
    store = folder / "run"
    shutil.rmtree(store, ignore_errors=True)
    store.mkdir(parents=True)
    device, host = (folder / f"{Path(MODEL).stem}-{name}.ekb" for name in ("raspberry-pi-4", "host-cpu"))
    with (
        _host(host) as host_url,
        FleetServer(Settings(None, 0, f"sqlite:///{store / 'fleet.db'}", "127.0.0.1:0")) as fleet,
        _reporting(device, fleet, DEVICE, store, hosts=[host_url], cache=False) as model,
    ):
        model.predict(photos[0])  # the first picture imports Pillow
        took_ms = []
        for number in range(20):
            began = time.monotonic()
            model.predict(photos[number % len(photos)])
            took_ms.append(1e3 * (time.monotonic() - began))
        yield FallbackDemo(fleet.url, model, photos, budget_for(took_ms))


@dataclass(frozen=True)
class FallbackDemo:
    """url: of the fleet page. walk it once, or again and again."""

    url: str
    model: Model
    photos: Sequence[bytes]
    budget_ms: float

    def checks(self, say: Callable[[str], None]) -> Iterator[Check]:
        """Walk once and check the promises, here and on the fleet page."""
        cool, hot, after = self.walk(say)
        yield _check("while it is cool the device answers", cool.mostly("device"), cool)
        yield _check("throttled, the host answers for it", hot.ends_with("host"), hot)
        yield _check("nine of ten requests got an answer", hot.sources["refused"] <= hot.sources.total() // 10, hot)
        yield _check("cool again, it comes home", after.ends_with("device"), after)
        yield eventually("the fleet page shows the device", self._missing, 20.0)

    def _missing(self) -> str:
        return "" if DEVICE in page_of(self.url) else f"{self.url} does not name {DEVICE}"

    def walk(self, say: Callable[[str], None]) -> list[PhaseResult]:
        """Every phase once, with a line per second."""
        walked = []
        for phase in PHASES:
            seen, second = PhaseResult(phase), Counter[str]()
            self.model.throttle(phase.throttle * self.budget_ms)
            ends, next_line = time.monotonic() + phase.seconds, time.monotonic() + 1.0
            while time.monotonic() < ends:
                source = self._source(seen.sources.total())
                seen.lately.append(source)
                second[source] += 1
                seen.sources[source] += 1
                if time.monotonic() >= next_line:
                    say(f"  {phase.name:<11} {_line(second)}")
                    second, next_line = Counter(), next_line + 1.0
            walked.append(seen)
        return walked

    def _source(self, number: int) -> str:
        """Source of the answer to one photo; ten per second, like a camera."""
        started = time.monotonic()
        try:
            source: str = self.model.predict(self.photos[number % len(self.photos)], budget_ms=self.budget_ms).source
        except BudgetExceeded:
            source = "refused"
        time.sleep(max(0.0, 0.1 - (time.monotonic() - started)))
        return source


def _check(what: str, holds: bool, seen: PhaseResult) -> Check:
    return Check(
        what, "" if holds else f"({seen.phase.name}: {_line(seen.sources)}; the last ones: {', '.join(seen.lately)})"
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
