"""Second half of `edgekit demo --fleet`: an alert, a worse version, samples, a slow version.

    story = Story(server, store, folder, ends, run, say)
    for check in story.checks(): print(check.what, check.problem)

Rules:
- the alert is real but for its reports: boards come back with twenty made-up minutes in their spools;
- all else is real: three install roots, agents and models, and signed bundles, made by the commands that are shown.
  Version 2 was calibrated on made-up inputs; version 3 on what boards sent home, and it is throttled;
- boards are asked what version 1 was not calibrated with, and no build compares on what it calibrates with;
- its versions promise a second, and the throttle follows what version 1 took, so that a busy machine changes nothing;
- what it starts ends with `ends` and not with the last check.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgekit.demo.assets import SECOND, Json
from edgekit.fleet.serve import FleetServer
from edgekit_runtime import EdgekitError, TelemetryOptions, open_bundle
from edgekit_runtime.install import InstallOptions, TrialOptions, install, status
from edgekit_runtime.install.agent import Agent, AgentOptions
from edgekit_runtime.telemetry.histogram import CountedWindow, Histogram
from edgekit_runtime.telemetry.meter import Meter
from edgekit_runtime.telemetry.reporter import Reporter
from edgekit_runtime.telemetry.spool import Spool
from edgekit_runtime.telemetry.window import About, Report, encode

RETURNING = ("dock-1", "dock-2", "dock-3")
KIOSKS = ("kiosk-1", "kiosk-2", "kiosk-3")
BUDGET_MS = 30.0
_MINUTES = 22
_PROFILE, _NAME, _SIGNER = "raspberry-pi-4", "kiosk_files", "release"
_IN_A_HURRY = ("--allow-random", "--repair-budget", "0")


@dataclass
class Story:
    """store: the server's URL of it.
    folder: of the demo, with `fleet` in it.
    ends: closes the boards.
    run: shows a command, and gives its JSON; raises DemoError.
    say: a line for a person who waits.
    finished: set when there is nothing more to check, and the boards may rest between answers."""

    server: FleetServer
    store: str
    folder: Path
    ends: contextlib.ExitStack
    run: Callable[[Sequence[str]], Json]
    say: Callable[[str], object] = lambda line: None
    finished: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.here = self.folder / "fleet"
        self._calibration, self._others = (str(self.folder / name) for name in ("files.npz", "other_files.npz"))

    def checks(self) -> Iterator[Check]:
        try:
            kiosks = self._start_kiosks()
            yield from self._alert()
            yield from self._silence(kiosks)
            yield from self._home()
            yield from self._wave(kiosks)
        except EdgekitError as error:  # such as a full disk: the page stays
            yield Check("the story continues", str(error))
        self.finished.set()

    def _alert(self) -> Iterator[Check]:
        """Boards report ten minutes of version 6, then a slower version 7, and an alert opens."""
        stop, meters = threading.Event(), [Meter(budget_ms=BUDGET_MS) for _ in RETURNING]
        for name, meter in zip(RETURNING, meters, strict=True):
            reporter = _returning(name, meter, self.server.broker_url, self.here)
            reporter.start()
            self.ends.callback(reporter.close)
        answering = threading.Thread(target=_answer, args=(meters, stop), name="docks", daemon=True)
        answering.start()
        self.ends.callback(answering.join, 10.0)
        self.ends.callback(stop.set)

        def problem() -> str:
            found = [one.text for one in self.server.rolling.alerting.tables.list() if one.kind == "p99"]
            named = [text for text in found if "the stage 'inference' grew" in text and "since version 7" in text]
            return "" if named else "; ".join(found) or "no alert yet"

        yield eventually("an alert names the stage and the version", problem, 90.0)

    def _start_kiosks(self) -> list[_Kiosk]:
        self.say("\nA key that signs versions, and one that opens what boards send home:")
        self.run(("keys", "new", _SIGNER, "--folder", str(self.here / "keys")))
        self.run(("fleet", "samples", "new-key", str(self.here / "builder.key")))
        self.say(f"\n{', '.join(KIOSKS)} name the types of files. Their version 1:")
        first = self._build(1, "--calibration", self._calibration, "--evaluation", self._others)
        files = np.load(self._others)["bytes"]
        kiosks = [_Kiosk(name, self, first, files[place :: len(KIOSKS)]) for place, name in enumerate(KIOSKS)]
        for kiosk in kiosks:
            self.ends.callback(kiosk.close)
        for kiosk in kiosks:
            kiosk.start()
        return kiosks

    def _build(self, version: int, *data: str) -> Path:
        """Its bundle, signed."""
        made = self.here / f"version-{version}"
        found = self.run((
            "build", str(self.folder / SECOND), "--profile", _PROFILE, "--recipe", "onnx-int8-qdq", *data,
            "--name", _NAME, "--model-version", str(version), "--rollout-seq", str(version), "--budget-ms", "1000",
            "--sign", str(self.here / "keys" / f"{_SIGNER}.pem"), "-o", str(made),
        ))  # fmt: skip
        self._changed = any("answered as the original" in one["what"] for one in found["data"])
        return made / f"{_NAME}-{_PROFILE}.ekb"

    def _roll_out(self, bundle: Path, *how: str) -> int:
        plan = ("--waves", "30%,100%", "--settle", "3", "--server", self.server.url, "--store", self.store)
        return int(self.run(("fleet", "rollout", str(bundle), *how, *plan))["rollout"])

    def _stops(self, what: str, number: int, state: str, look: Callable[[], object] = lambda: None) -> Iterator[Check]:
        """That it comes to this state by itself, and what the command line shows of it."""

        def problem() -> str:
            look()
            standing = self.server.rolling.tables.get(number).standing
            return "" if standing.state == state else f"{standing.state}; {standing.why or 'nothing is decided yet'}"

        yield eventually(what, problem, 360.0)
        self.run(("fleet", "rollouts", str(number), "--store", self.store))

    def _silence(self, kiosks: Sequence[_Kiosk]) -> Iterator[Check]:
        """Version 2 answers otherwise, which is seen before any caller gets its answer."""
        yield eventually("three boards answer with version 1, and report it", self._all_report, 120.0)
        self.say("\nVersion 2 is built in a hurry, without real inputs, and rolled out. A shadow run comes first:")
        number = self._roll_out(self._build(2, *_IN_A_HURRY), "--shadow", "100%")
        yield from self._stops("version 2 is shadowed, and refused before its first wave", number, "aborted")
        ran = [row.id for row in self.server.store.fleet() if row.id in KIOSKS and row.version == "2"]
        there = ran + [kiosk.name for kiosk in kiosks if kiosk.version != "1"]
        yield Check("no caller got an answer of it", f"it ran on {', '.join(there)}" if there else "")

    def _home(self) -> Iterator[Check]:
        """Doubtful inputs (close scores, or versions that differ) are in the next build."""
        self.say("\nMeanwhile the boards kept inputs that they doubted, encrypted. They come home, and into version 3:")
        pulled = self.run(("fleet", "samples", "pull", "--key", str(self.here / "builder.key"),
                           "-o", str(self.here / "field"), "--store", self.store))  # fmt: skip
        yield Check("inputs that boards doubted came home", "" if pulled["new"] else "none did")
        field = str(self.here / "field" / _NAME)
        self._third = self._build(3, "--calibration", field, "--evaluation", self._calibration)
        yield Check("the report of version 3 says what changed for them", "" if self._changed else "it does not")

    def _wave(self, kiosks: Sequence[_Kiosk]) -> Iterator[Check]:
        """Version 3 passes its trial and is slow at work: two boards say so and roll back."""
        self.say("\nVersion 3 is rolled out in waves. The demo slows it down, as a hot board would:")
        tables, number = self.server.rolling.tables, self._roll_out(self._third)
        moved: set[str] = set()
        yield from self._stops(
            "a roll-out of version 3 stops in its first wave", number, "undone",
            lambda: moved.update(row.device for row in tables.boards(number) if row.version == "3"),
        )  # fmt: skip
        yield Check("one board never moved", "" if len(moved) <= 2 else f"moved: {', '.join(sorted(moved))}")
        yield eventually(
            "every board answers with version 1 again",
            lambda: "" if all(kiosk.version == "1" for kiosk in kiosks) else str([kiosk.version for kiosk in kiosks]),
            60.0,
        )

    def _all_report(self) -> str:
        rows = [row for row in self.server.store.fleet() if row.id in KIOSKS and row.n > 60]
        return "" if len(rows) == len(KIOSKS) else f"{len(rows)} of {len(KIOSKS)}"


def _answer(meters: Sequence[Meter], stop: threading.Event) -> None:
    """Two made-up answers a second on each board, as slow as version 7."""
    draw = random.Random(0)
    while not stop.wait(0.5):
        for meter in meters:
            queue, inference = _made_up(draw, 70.0)
            meter.record("device", queue + inference, None, {"queue": queue, "engine": inference})


def _made_up(draw: random.Random, inference_ms: float) -> tuple[float, float]:
    return draw.lognormvariate(0.0, 0.3), inference_ms * draw.lognormvariate(0.0, 0.1)


def _returning(name: str, meter: Meter, broker: str, folder: Path) -> Reporter:
    """A board whose spool has made-up minutes."""
    draw, file = random.Random(name), folder / f"{name}.db"
    spool, now_ms = Spool.open(file), int(time.time() * 1000)
    for minute in range(_MINUTES, 0, -1):
        version, inference_ms = ("6", 14.0) if minute > _MINUTES // 2 else ("7", 70.0)
        stages = {"queue": Histogram(), "infer": Histogram()}
        whole = Histogram()
        for _ in range(120):
            queue, inference = _made_up(draw, inference_ms)
            stages["queue"].record(queue)
            stages["infer"].record(inference)
            whole.record(queue + inference)
        about = About(name, "dock_camera", version, "0" * 12, "raspberry-pi-4", BUDGET_MS)
        counted = CountedWindow({"device": whole}, over_budget=120 if inference_ms > BUDGET_MS else 0, stages=stages)
        report = Report(about, spool.boot, now_ms - minute * 60_000, 60_000, True, counted)
        spool.append(encode(report))
    spool.close()
    options = TelemetryOptions(broker, name, 60.0, file, most_wait_s=5.0)
    return Reporter(meter, About(name, "dock_camera", "7", "0" * 12, "raspberry-pi-4", BUDGET_MS), options)


class _Kiosk:
    """A board: an agent, and an application as a service that `--then` restarts."""

    def __init__(self, name: str, story: Story, first: Path, files: NDArray[np.int32]) -> None:
        self.name, self._root, self._files, self._finished = name, story.here / name, files, story.finished
        trust = (story.here / "keys" / f"{_SIGNER}.pub.pem",)
        trial = TrialOptions(answers=30, most_s=20.0, least=20)
        asked = InstallOptions(trust=trust, profile=_PROFILE, proving=trial)
        install(first, self._root, asked)
        broker, kept = story.server.broker_url, story.here / "builder.pub.pem"
        self._agent = Agent(AgentOptions(broker, name, self._root, asked, spread_s=0.0, look_s=0.2, most_wait_s=5.0))
        self._telemetry = TelemetryOptions(
            broker, name, 2.0, story.here / f"{name}.db", most_wait_s=5.0, samples=kept, samples_a_day=20
        )
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._agent.run, args=(self._stop,), name=f"{name}-agent", daemon=True),
            threading.Thread(target=self._application, name=name, daemon=True),
        ]

    @property
    def version(self) -> str:
        current = status(self._root).current
        return current.version if current is not None else ""

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _application(self) -> None:
        took, files = list[float](), itertools.cycle(self._files)
        while not self._stop.is_set():
            link = (self._root / "current").readlink()
            with (
                contextlib.suppress(EdgekitError),
                open_bundle(self._root, telemetry=self._telemetry, cache=False) as model,
            ):
                first = model.describe()["version"] == "1"
                model.throttle(0.0 if first else throttle_ms(took))
                while (self._root / "current").readlink() == link and not self._stop.wait(
                    0.5 if self._finished.is_set() else 0.05
                ):
                    begun = time.perf_counter()
                    model.predict(next(files))
                    if first:
                        took.append(1000 * (time.perf_counter() - begun))
            self._stop.wait(0.1)

    def close(self) -> None:
        self._stop.set()
        self._agent.link.wake()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(20.0)


def throttle_ms(took_ms: Sequence[float]) -> float:
    """A delay that a roll-out notices given these times, even on a busy machine."""
    return max(300.0, 2.0 * sorted(took_ms)[int(0.99 * len(took_ms))]) if took_ms else 300.0


@dataclass(frozen=True)
class Check:
    """what: a sentence. problem: why it does not hold, or empty."""

    what: str
    problem: str = ""


def eventually(what: str, problem: Callable[[], str], patience_s: float) -> Check:
    until = time.monotonic() + patience_s
    while True:
        try:
            found = problem()
        except (OSError, ValueError, KeyError) as error:
            found = str(error)
        if not found or time.monotonic() > until:
            return Check(what, found)
        time.sleep(0.2)
