"""Simulated boards, thousands on one event loop; a board's own code makes what they send.

    found = BoardLoad(Broker.parse("mqtt://127.0.0.1"), BoardLoadPlan(devices=10_000, seconds=300)).run()
    found.live_s, found.drained_s, found.sends_a_window

Rules:
- each board has its own connection (paho's, its socket on this loop) and its own epoch;
- the spool is in memory, because one disk does not stand for ten thousand boards' disks;
- with `backlog`, that many windows wait on each board when it connects, as after an outage.
"""

from __future__ import annotations

import hashlib
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from edgekit.fleet.open_files import raise_limit
from edgekit.fleet.store.fleet_errors import FleetError
from edgekit_runtime.telemetry.histogram import CountedWindow, Histogram
from edgekit_runtime.telemetry.link import FIRST_ANSWER_TIMEOUT_S, KEEPALIVE_S, Broker, Will, new_client
from edgekit_runtime.telemetry.messages import Flow, encode_state, parse_ack
from edgekit_runtime.telemetry.reporter import ROOT
from edgekit_runtime.telemetry.window import About, Report, Seal, System, encode, sealed_payload

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True)
class Habits:
    """A board's habits. median_ms, spread: of its latencies. cached, hosted: shares of answers."""

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
        profile = draw.choice(["raspberry-pi-4", "raspberry-pi-5"])
        median_ms, spread, cached = draw.uniform(9, 30), draw.uniform(0.1, 0.35), draw.uniform(0.0, 0.5)
        return cls(profile, median_ms, spread, cached, draw.choice([0.0, 0.0, 0.05, 0.2]), draw.uniform(5, 40))


_SWEEP_S = 1.0
_BIRTH_AGAIN_S = 10.0
_ANSWERS = 24  # a window; more would measure the drawing of numbers


@dataclass(frozen=True)
class BoardLoadPlan:
    """seconds: of the run, at most; with `backlog` it ends when all is drained.

    connect_s: during which boards connect.
    backlog: windows that wait on each board at the start.
    names: ids of the boards; empty for `devices` numbered ones.
    passwords: of each board's own user; without any, all are the user of the broker's URL.
    """

    devices: int = 1000
    seconds: float = 60.0
    window_s: float = 60.0
    connect_s: float = 10.0
    backlog: int = 0
    model: tuple[str, str, str] = ("efficientnet_lite0", "1", "0" * 12)
    names: tuple[str, ...] = ()
    sites: int = 0
    seed: int = 0
    passwords: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """Counts over all boards; times in seconds from the first connection, None if not reached.

    windows: completed.
    sent: publications; different: their distinct windows.
    confirmed: windows up to the boards' marks.
    live_s: when the last board had heard from the fleet.
    drained_s: when nothing waited any more.
    losses: connections that ended.
    """

    devices: int
    windows: int
    sent: int
    different: int
    confirmed: int
    live: int
    live_s: float | None
    drained_s: float | None
    losses: int
    seconds: float

    @property
    def sends_a_window(self) -> float:
        return self.sent / max(1, self.different)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"sends_a_window": round(self.sends_a_window, 3)}


class BoardLoad:
    def __init__(self, broker: Broker, plan: BoardLoadPlan) -> None:
        self.broker, self.plan = broker, plan
        self.counts: Counter[str] = Counter()
        self.live_s: float | None = None
        self.drained_s: float | None = None
        self.draw = random.Random(plan.seed)
        self.began = 0.0
        self.loop: asyncio.AbstractEventLoop
        self._fault: BaseException | None = None
        self.v5, self.settled = True, False
        self._ended = False
        names = plan.names or [f"board-{number:05}" for number in range(plan.devices)]
        if plan.passwords and (without := [name for name in names if name not in plan.passwords]):
            do = "Add them with `edgekit fleet broker-config --boards`, or pass fewer --devices"
            raise FleetError(f"{len(without):,} boards have no user", where=without[0], do=do)
        self._boards = [_Board(self, number, name) for number, name in enumerate(names)]

    def run(self, progress: Callable[[Outcome], None] = lambda _: None) -> Outcome:
        """Run the plan. progress: called every few seconds. Raises the first error of a board."""
        import asyncio

        asyncio.run(self._run(progress))
        return self.outcome()

    def end(self) -> None:
        """Let `run` return within a second or two; from any thread."""
        self._ended = True

    def outcome(self) -> Outcome:
        counts = self.counts
        return Outcome(
            len(self._boards), counts["windows"], counts["sent"], counts["different"],
            sum(board.mark for board in self._boards), counts["live"], self.live_s, self.drained_s, counts["lost"],
            round(time.monotonic() - self.began, 1),
        )  # fmt: skip

    async def _run(self, progress: Callable[[Outcome], None]) -> None:
        import asyncio

        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(self._failed)
        wanted = len(self._boards) + 256
        if (most := raise_limit()) < wanted:
            what = f"{wanted:,} open files are needed; the limit is {most:,}"
            raise FleetError(what, do=f"Raise it: ulimit -Hn {wanted}")
        self.began = time.monotonic()
        for place, board in enumerate(self._boards):
            self.loop.call_later(self.plan.connect_s * place / len(self._boards), board.connect)
            self.loop.call_later(self.plan.window_s * board.share, board.cut)
        reported_s = self.began
        while (now := time.monotonic()) - self.began < self.plan.seconds and not self._ended:
            await asyncio.sleep(_SWEEP_S)
            if self._fault is not None:
                raise self._fault
            for place, board in enumerate(self._boards):
                board.look_after(now)
                if place % 500 == 499:
                    await asyncio.sleep(0)
            if now - reported_s >= 5.0:
                reported_s = now
                progress(self.outcome())
            if self.plan.backlog and self.is_drained():
                break
        for board in self._boards:
            board.close()

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        fault = context.get("exception") or FleetError(str(context["message"]))
        self._fault = self._fault or fault

    def heard(self, board: _Board) -> None:
        """One more board has an answer from the fleet."""
        self.counts["live"] += 1
        if self.counts["live"] == len(self._boards):
            self.live_s = round(time.monotonic() - self.began, 1)

    def is_drained(self) -> bool:
        if self.drained_s is None and self.live_s is not None and all(not board.lags for board in self._boards):
            self.drained_s = round(time.monotonic() - self.began, 1)
        return self.drained_s is not None


class _Board:
    """The reporter's journey without its thread and its disk."""

    def __init__(self, load: BoardLoad, number: int, name: str) -> None:
        plan = load.plan
        self._load, self._name = load, name
        self._habits = Habits.drawn(random.Random(plan.seed * 100_003 + number))
        site = f"site-{number % plan.sites}" if plan.sites else ""
        self._about = About(
            self._name, *plan.model, self._habits.profile, self._habits.budget_ms, site=site, group=self._habits.profile
        )
        self._epoch, self._flow, self._bodies = secrets.token_hex(8), Flow(), dict[int, bytes]()
        self._tried: set[int] = set()
        self._last = self.mark = 0
        self._client: Any = None
        self._fd = -1
        self._attempts = 0
        self._born_at = self._asked_at = 0.0
        self._live = self._connected = self._writing = self._v5 = False
        self.share = int.from_bytes(hashlib.sha256(self._name.encode()).digest()[:4], "big") / 2.0**32
        now_ms = int(time.time() * 1e3)
        for ago in range(plan.backlog, 0, -1):
            self._append(now_ms - int(1e3 * plan.window_s * (ago + 1)))

    @property
    def lags(self) -> bool:
        """Whether more than the windows of the last moment wait."""
        return self._last - self.mark > 1

    def connect(self) -> None:
        topic = f"{ROOT}/{self._name}/state"
        delay = min(30, int(self._load.plan.window_s / 2))
        will = Will(topic, encode_state(self._epoch, 1, None, 0.0), delay)
        self._v5 = v5 = self._load.v5
        broker, passwords = self._load.broker, self._load.plan.passwords
        if passwords:
            broker = replace(broker, user=self._name, password=passwords[self._name])
        client = new_client(broker, self._name, will=will, v5=v5)
        client.on_connect = lambda _c, _u, _f, reason, _p: self._answered(reason)
        client.on_message = lambda _c, _u, message: self._message(message.payload)
        try:
            client.connect(broker.host, broker.port, KEEPALIVE_S, **({"clean_start": True} if v5 else {}))
        except OSError:
            self._later()
            return
        self._client, self._fd, self._asked_at = client, client.socket().fileno(), time.monotonic()
        self._load.loop.add_reader(self._fd, self._read)
        self._flush()

    def cut(self) -> None:
        plan = self._load.plan
        self._load.loop.call_later(plan.window_s, self.cut)
        self._append(int((time.time() - plan.window_s) * 1e3))
        self._send()
        self._flush()

    def look_after(self, now: float) -> None:
        if self._client is None:
            return
        wrong = self._v5 and not (self._load.settled and self._load.v5)
        if wrong and not self._connected and now - self._asked_at > FIRST_ANSWER_TIMEOUT_S:
            self._load.v5 = False  # the broker speaks MQTT 3.1.1
            self._drop()
            self.connect()
        elif self._client.loop_misc() != 0:
            self._lost()
        elif self._connected and self._flow.due_s(now) == 0.0:
            self._send()
            self._flush()

    def close(self) -> None:
        if self._client is not None:
            self._client.disconnect()
            self._client.loop_write()
            self._drop()

    def _append(self, t0_ms: int) -> None:
        habits, draw = self._habits, self._load.draw
        latency = {"device": Histogram()}
        late = 0
        for _ in range(_ANSWERS):
            kind = draw.random()
            if kind < habits.cached:
                latency.setdefault("cache", Histogram()).record(draw.uniform(0.01, 0.05))
                continue
            took = habits.median_ms * draw.lognormvariate(0.0, habits.spread)
            source = "host" if kind < habits.cached + habits.hosted else "device"
            latency.setdefault(source, Histogram()).record(took)
            late += took > habits.budget_ms
        window_ms = int(1e3 * self._load.plan.window_s)
        system = System(cpu=30.0, mem=40.0, temp=55.0)
        counted = CountedWindow(latency, over_budget=late, stages={"infer": latency["device"]})
        report = Report(self._about, 1, t0_ms, window_ms, True, counted, system)
        self._last += 1
        self._bodies[self._last] = encode(report)
        self._load.counts["windows"] += 1

    def _send(self) -> None:
        if not self._connected:
            return
        floor, now = self.mark + 1, time.monotonic()
        for seq in self._flow.take(now, floor, self._last):
            seal = Seal(self._epoch, seq, floor, 0, self._last - self.mark, 400 * (self._last - self.mark))
            self._client.publish(f"{ROOT}/{self._name}/m", sealed_payload(self._bodies[seq], seal), 1)
            self._load.counts["sent"] += 1
            if seq not in self._tried:
                self._tried.add(seq)
                self._load.counts["different"] += 1

    def _answered(self, reason: Any) -> None:
        """What the broker said to the connection."""
        if reason.is_failure:
            return
        self._load.settled = self._connected = True
        self._attempts = 0
        self._client.subscribe(f"{ROOT}/{self._name}/ack", 1)
        self._flow.begin()
        self._born()
        self._send()

    def _born(self) -> None:
        born = encode_state(self._epoch, 1, self._about, self._load.plan.window_s)
        self._born_at = time.monotonic()
        self._client.publish(f"{ROOT}/{self._name}/state", born, 1, True)
        self._load.counts["births"] += 1

    def _message(self, payload: bytes) -> None:
        ack = parse_ack(payload)
        if ack is None or ack.epoch != self._epoch:
            return
        for seq in range(self.mark + 1, min(ack.hwm, self._last) + 1):
            del self._bodies[seq]
        self.mark = max(self.mark, min(ack.hwm, self._last))
        self._flow.confirmed(ack.hwm, ack.credit, time.monotonic())
        if not self._live:
            self._live = True
            self._load.heard(self)
        if not ack.known and time.monotonic() - self._born_at > _BIRTH_AGAIN_S:
            self._born()
        self._send()

    # The socket.

    def _read(self) -> None:
        if self._client.loop_read() != 0 or self._client.socket() is None:
            self._lost()
        else:
            self._flush()

    def _flush(self) -> None:
        client = self._client
        if client is not None and client.want_write():
            client.loop_write()
        if client is not None and client.socket() is None:
            self._lost()
            return
        wanted = client is not None and client.socket() is not None and client.want_write()
        if wanted != self._writing:
            self._writing = wanted
            if wanted:
                self._load.loop.add_writer(self._fd, self._flush)
            else:
                self._load.loop.remove_writer(self._fd)

    def _lost(self) -> None:
        self._load.counts["lost"] += 1
        self._drop()
        self._later()

    def _drop(self) -> None:
        client, self._client, self._connected, self._writing = self._client, None, False, False
        # Also where paho has closed it: the loop would take the next socket of that number for one that it watches.
        self._load.loop.remove_reader(self._fd)
        self._load.loop.remove_writer(self._fd)
        found = client.socket()
        if found is not None:
            found.close()

    def _later(self) -> None:
        wait_s = min(120.0, 2.0 ** min(self._attempts, 10))
        self._attempts += 1
        self._load.loop.call_later(random.uniform(0.0, wait_s), self.connect)
