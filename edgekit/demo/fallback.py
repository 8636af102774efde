"""The fallback demo: a device is throttled on purpose, its requests go to a host, and they come home.

Everything is real and on this machine: the demo's bundle for a Raspberry Pi, the same build's bundle for a host behind
`edgekit host serve`, a broker, and the fleet page that shows where answers come from.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from edgekit.demo.assets import ASKED, MODEL
from edgekit.demo.fleet import Check
from edgekit.demo.steps import Step
from edgekit.errors import DemoError
from edgekit_runtime import BudgetExceeded, Model, TelemetryOptions, open_bundle

__all__ = ["BUDGET_MS", "PHASES", "FallbackDemo", "Phase", "build_step"]

DEVICE = "porch-1"
BUDGET_MS = 150.0
WINDOW_S = 2.0


@dataclass(frozen=True)
class Phase:
    """A stretch of the demo: how long, and how much slower the device is made, milliseconds an inference."""

    name: str
    seconds: float
    throttle_ms: float


PHASES = (Phase("cool", 5.0, 0.0), Phase("throttled", 10.0, 400.0), Phase("cool again", 10.0, 0.0))


@dataclass
class Seen:
    """What one phase looked like. sources: answers by where they came from, and `refused`. last: the last one's source."""

    phase: Phase
    sources: Counter[str] = field(default_factory=Counter)
    over_budget: int = 0
    last: str = ""


def build_step(folder: Path) -> Step:
    """The device's and the host's bundle, of one build: they must share their contract."""
    return Step(
        "Two bundles of one build, for a device and for a host:",
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

    def walk(self, say: Callable[[str], None]) -> list[Seen]:
        """Every phase once, a line a second."""
        return [self._phase(phase, say) for phase in PHASES]

    def page(self) -> str:
        """The fleet page, as a browser gets it."""
        with urllib.request.urlopen(self.url, timeout=10) as reply:
            return str(reply.read().decode())

    def _phase(self, phase: Phase, say: Callable[[str], None]) -> Seen:
        seen, total = Seen(phase), Counter[str]()
        self._model.throttle(phase.throttle_ms)
        ends = time.monotonic() + phase.seconds
        next_line = time.monotonic() + 1.0
        second: Counter[str] = Counter()
        while time.monotonic() < ends:
            source = self._ask(seen, sum(total.values()))
            second[source] += 1
            total[source] += 1
            seen.last = source
            if time.monotonic() >= next_line:
                say(f"  {phase.name:<11} {_line(second)}")
                second, next_line = Counter(), next_line + 1.0
        seen.sources = total
        return seen

    def _ask(self, seen: Seen, number: int) -> str:
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


def _check(what: str, holds: bool, seen: Seen) -> Check:
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
        yield str(json.loads(line)["listening"])
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
