"""Second half of `edgekit demo --fleet`: an alert, a wrong version, a slow one.

    story = Story(server, store, bundle, photo, folder, ends)
    for check in story.checks(): print(check.what, check.problem)

Rules:
- the alert is real but for its reports: boards come back with twenty made-up minutes in their spools;
- the roll-outs are real: three install roots, agents and models, and signed bundles. Version 2 looks at
  the middle of a picture alone, and version 3 is throttled;
- its versions promise no time, and the throttle follows what version 1 took, so that a busy machine changes nothing;
- what it starts ends with `ends` and not with the last check.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgekit.fleet.rollouts.rollout_tables import Rollout, fitting
from edgekit.fleet.rollouts.waves import RolloutPlan
from edgekit.fleet.serve import FleetServer
from edgekit.fleet.web import BundleFiles, bundles_beside, read_bundle_facts
from edgekit.packaging.writer import BundleDraft, SigningKey, canonical_json, write_bundle
from edgekit_runtime import EdgekitError, TelemetryOptions, open_bundle
from edgekit_runtime.bundle.manifest import contract_digest
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.contract.kinds import pictures
from edgekit_runtime.install import InstallOptions, TrialOptions, install, status
from edgekit_runtime.install.agent import Agent, AgentOptions
from edgekit_runtime.system.strict_json import to_json
from edgekit_runtime.telemetry.histogram import CountedWindow, Histogram
from edgekit_runtime.telemetry.meter import Meter
from edgekit_runtime.telemetry.reporter import Reporter
from edgekit_runtime.telemetry.spool import Spool
from edgekit_runtime.telemetry.window import About, Report, encode

RETURNING = ("dock-1", "dock-2", "dock-3")
KIOSKS = ("kiosk-1", "kiosk-2", "kiosk-3")
BUDGET_MS = 30.0
_MINUTES = 22
_PLAN = RolloutPlan((0.3, 1.0), settle_s=3.0, figures_s=300.0, deadline_s=600.0)
_MIDDLE = 0.05
"""Part of a picture that version 2 sees."""


@dataclass
class Story:
    """store: the server's URL of it.
    ends: closes the boards.
    say: a line for a person who waits.
    told: set when there is nothing more to check, and the boards may rest between answers."""

    server: FleetServer
    store: str
    bundle: Path
    photo: Path
    folder: Path
    ends: contextlib.ExitStack
    say: Callable[[str], object] = lambda line: None
    told: threading.Event = field(default_factory=threading.Event)

    def checks(self) -> Iterator[Check]:
        try:
            kiosks = self._start_kiosks()
            yield from self._alert()
            yield from self._silence(kiosks)
            yield from self._wave(kiosks)
        except EdgekitError as error:  # such as a full disk: the page stays
            yield Check("a roll-out undoes itself", str(error))
        self.told.set()

    def _alert(self) -> Iterator[Check]:
        """Boards report ten minutes of version 6, then a slower version 7, and an alert opens."""
        stop, meters = threading.Event(), [Meter(budget_ms=BUDGET_MS) for _ in RETURNING]
        for name, meter in zip(RETURNING, meters, strict=True):
            reporter = _returning(name, meter, self.server.broker_url, self.folder)
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
        self._key, public = _key(self.folder)
        first = _version(self.bundle, self.folder, 1, self._key)
        kiosks = [_Kiosk(name, self, first, public) for name in KIOSKS]
        for kiosk in kiosks:
            self.ends.callback(kiosk.close)
        for kiosk in kiosks:
            kiosk.start()
        return kiosks

    def _roll_out(self, version: int, plan: RolloutPlan) -> int:
        bundle = _version(self.bundle, self.folder, version, self._key, crop=_MIDDLE if version == 2 else None)
        facts, data = read_bundle_facts(bundle)
        BundleFiles(bundles_beside(self.store)).add(facts.sha256, data)
        url, devices = f"{self.server.url}bundles/{facts.sha256}.ekb", fitting(facts, self.server.store.fleet())
        return self.server.rolling.tables.make(facts, url, plan, devices, int(time.time() * 1000)).id

    def _silence(self, kiosks: Sequence[_Kiosk]) -> Iterator[Check]:
        """Version 2 answers otherwise, which is seen before any caller gets its answer."""
        yield eventually("three boards answer with version 1, and report it", self._all_report, 120.0)
        tables, number = self.server.rolling.tables, self._roll_out(2, replace(_PLAN, shadow=1.0))

        def stopped() -> str:
            return "" if tables.get(number).standing.state == "aborted" else _describe(tables.get(number))

        yield eventually("version 2 is shadowed, and refused before its first wave", stopped, 360.0)
        self.say(f"        {_describe(tables.get(number))}")
        ran = [row.id for row in self.server.store.fleet() if row.id in KIOSKS and row.version == "2"]
        there = ran + [kiosk.name for kiosk in kiosks if kiosk.version != "1"]
        yield Check("no caller got an answer of it", f"it ran on {', '.join(there)}" if there else "")

    def _wave(self, kiosks: Sequence[_Kiosk]) -> Iterator[Check]:
        """Version 3 passes its trial and is slow at work: two boards say so and roll back."""
        tables, number = self.server.rolling.tables, self._roll_out(3, _PLAN)
        moved: list[str] = []

        def stopped() -> str:
            moved.extend(row.device for row in tables.boards(number) if row.version == "3")
            return "" if tables.get(number).standing.state == "undone" else _describe(tables.get(number))

        yield eventually("a roll-out of version 3 stops in its first wave", stopped, 360.0)
        self.say(f"        {_describe(tables.get(number))}")
        boards = sorted(set(moved))
        yield Check("one board never moved", "" if len(boards) <= 2 else f"moved: {', '.join(boards)}")
        yield eventually(
            "every board answers with version 1 again",
            lambda: "" if all(kiosk.version == "1" for kiosk in kiosks) else str([kiosk.version for kiosk in kiosks]),
            60.0,
        )

    def _all_report(self) -> str:
        rows = [row for row in self.server.store.fleet() if row.id in KIOSKS and row.n > 60]
        return "" if len(rows) == len(KIOSKS) else f"{len(rows)} of {len(KIOSKS)}"


def _describe(rollout: Rollout) -> str:
    standing = rollout.standing
    return f"roll-out {rollout.id}: {standing.state}; {standing.why or 'nothing is decided yet'}"


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


def _key(folder: Path) -> tuple[SigningKey, Path]:
    """A key of this run alone, and the file with its public half."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    public = folder / "demo.pub.pem"
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(private.public_key().public_bytes(encoding, form))
    return SigningKey(private), public


def _version(bundle: Path, folder: Path, number: int, key: SigningKey, *, crop: float | None = None) -> Path:
    """The demo's bundle with another name and number, signed.

    crop: part of a picture that it sees.
    """
    read = read_bundle(bundle)
    draft = BundleDraft()
    for blob in read.manifest.blobs:
        draft.add(read.blob(blob.sha256))
    promise = read.manifest.promise and replace(read.manifest.promise, p50_ms=None, p99_ms=None)
    contract = read.manifest.contract
    if crop is not None:
        image = replace(pictures(contract.inputs)[0], resize="center-crop", crop=crop)
        contract = replace(contract, inputs=(replace(contract.inputs[0], image=image),))
    digest = contract_digest(canonical_json(to_json(contract)))
    manifest = replace(
        read.manifest, contract=contract, contract_digest=digest, name="kiosk_camera", version=str(number),
        rollout_seq=number, promise=promise,
    )  # fmt: skip
    path = folder / f"kiosk_camera-{number}.ekb"
    write_bundle(path, draft, manifest, [key])
    return path


class _Kiosk:
    """A board: an agent, and an application as a service that `--then` restarts."""

    def __init__(self, name: str, story: Story, first: Path, public: Path) -> None:
        self.name, self._root = name, story.folder / name
        self._photo, self._told = story.photo, story.told
        profile = read_bundle(first).manifest.target.profile
        asked = InstallOptions(
            trust=(public,), profile=profile, proving=TrialOptions(answers=30, most_s=20.0, least=20)
        )
        install(first, self._root, asked)
        options = AgentOptions(
            story.server.broker_url, name, self._root, asked, spread_s=0.0, look_s=0.2, most_wait_s=5.0
        )
        self._agent, self._stop = Agent(options), threading.Event()
        self._telemetry = TelemetryOptions(
            story.server.broker_url, name, 2.0, story.folder / f"{name}.db", most_wait_s=5.0
        )
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
        took: list[float] = []
        while not self._stop.is_set():
            link = (self._root / "current").readlink()
            with (
                contextlib.suppress(EdgekitError),
                open_bundle(self._root, telemetry=self._telemetry, cache=False) as model,
            ):
                first = model.describe()["version"] == "1"
                model.throttle(0.0 if first else throttle_ms(took))
                while (self._root / "current").readlink() == link and not self._stop.wait(
                    0.5 if self._told.is_set() else 0.05
                ):
                    begun = time.perf_counter()
                    model.predict(self._photo)
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
