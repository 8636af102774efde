"""From the broker into the store, and the acknowledgement back: one thread.

    ingest = Ingest(Broker.parse("mqtt://127.0.0.1"), SqliteStore.open(path))
    ingest.start()

Rules:
- only committed messages are acknowledged, by a contiguous mark, also repeatedly; boards send again what a failing
  store did not take;
- a transaction holds up to `most` messages, or those of `wait_s`; fewer if all that boards had credit for has come;
- a refused payload is counted under one word and stops nothing else;
- an acknowledgement gives a board credit for more of its backlog, within what the broker queues for this ingestor;
- a forgotten board's retained birth is cleared on the broker, so that it does not come back with the next start;
- at each connection the ingestor acknowledges to all known boards, some at a time, because they wait for a sign of it;
- several ingestors may share one store's messages (`$share`); births reach each of them.
"""

from __future__ import annotations

import gc
import logging
import re
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from edgekit.fleet.store.fleet_errors import FleetError, StoreError
from edgekit.fleet.store.messages import origin, parse_event, parse_window
from edgekit.fleet.store.records import Arrival, Change, Event, Mark, moment_of, now_ms, parse_state
from edgekit.fleet.store.sql import SqlStore
from edgekit_runtime.system.errors import WindowError
from edgekit_runtime.system.strict_json import compact_json
from edgekit_runtime.telemetry.link import Broker, Link
from edgekit_runtime.telemetry.reporter import ROOT
from edgekit_runtime.telemetry.window import DEVICE_ID

_LOG = logging.getLogger("edgekit.fleet")
_CLOSE_S = 10.0
_TRY_AGAIN_S = 60.0
"""Boards send again what was not stored; if none does, the store is tried after this time."""


class BrokerThread(ABC):
    """A thread that owns a broker connection, and resumes `pause_s` after a failure.

    `close` wakes the thread and waits until it has finished its work in hand.
    counts: failures (`store`, `fault`) and a subclass's own; read from any thread.
    trouble: why the store took nothing lately, or empty.
    """

    link: Link

    def __init__(self, name: str, pause_s: float, store: SqlStore) -> None:
        self._name, self._pause_s, self._store = name, pause_s, store
        self.trouble, self._failed_at = "", 0.0
        self.counts: Counter[str] = Counter()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"edgekit-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self.link.wake()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    @abstractmethod
    def step_link(self) -> None:
        """Step the link once and do what is due. May raise anything."""

    def finish(self) -> None:  # noqa: B027 - most have nothing
        """Finish pending work when the thread ends. May raise StoreError."""

    def after_failure(self) -> None:  # noqa: B027 - most have nothing
        """Discard pending work."""

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                self.step_link()
                if self.trouble and time.monotonic() - self._failed_at > _TRY_AGAIN_S:
                    self._store.try_writing()
                    self.trouble = ""
            except StoreError as error:
                self._failed("store", error)
            except Exception as error:  # noqa: BLE001 - one message must not end the fleet
                self._failed("fault", error)
        try:
            self.finish()
        except StoreError as error:
            self._failed("store", error)
        except Exception as error:  # noqa: BLE001 - the link is closed all the same
            self._failed("fault", error)
        finally:
            self.link.close()

    def _failed(self, word: str, error: Exception) -> None:
        self.after_failure()
        self.counts[word] += 1
        if word == "store":
            self.trouble, self._failed_at = str(error), time.monotonic()
        _LOG.error("%s: %s", self._name, error, exc_info=word == "fault")
        self._stopping.wait(self._pause_s)


_SHARE = re.compile(r"[A-Za-z0-9-]{1,64}\Z")
_MOST_AT_ONCE = 500
"""Messages that the broker may send without a receipt; beyond it its queue for us fills."""
_LEAST_OF_CREDITS = 100
"""Smaller commits wait, since boards without a backlog send more."""
_FEW, _GATHER_S = 40, 0.2
_MOST_IN_QUEUE = 100_000
"""Boards waiting for credit; others ask again."""
_MOST_PACKET_BYTES = 2 << 20
"""Larger messages are dropped by the broker (MQTT 5). Oversized messages below it are refused and counted here."""
_FIGURES_S = 60.0
"""The time that `WindowIntake.figures` covers."""


@dataclass(frozen=True)
class Pace:
    """most, wait_s: bounds of one transaction, messages and seconds.

    chores_s: between checks for silent boards.
    wake_per_s: boards that are notified of the ingestor each second.
    """

    most: int = 4000
    wait_s: float = 0.5
    chores_s: float = 2.0
    prune_s: float = 300.0
    most_wait_s: float = 15.0
    wake_per_s: float = 300.0


def collect_rarely() -> None:
    """Collect garbage rarely, in a process that only ingests.

    Windows hold no cycles; Python's default, every 700 objects, takes a fifth of the ingestor's time.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


class Credits:
    """How many windows of its backlog each board may send next; in all at most `most`.

    So the broker's queue for the ingestor (500 in flight, 1,000 queued) never overflows. Credit lasts `lasts_s`.

        credits.grant(mark, waiting=40, now=now)            # 20
        credits.arrived("porch-1", 20)
        credits.freed(now)                                  # [(mark, 20), ...] for boards that got none before

    A board without credit is queued, and gets an acknowledgement as soon as there is some.
    """

    def __init__(self, most: int = 1000, most_each: int = 20, lasts_s: float = 6.0) -> None:
        self._most, self._most_each, self._lasts_s = most, most_each, lasts_s
        self._given: OrderedDict[str, tuple[int, float]] = OrderedDict()  # in the order of their ends
        self._queue: OrderedDict[str, tuple[Mark, int]] = OrderedDict()  # the longest waiting first
        self.out = 0

    @property
    def wanted(self) -> bool:
        return bool(self._queue)

    def arrived(self, device: str, n: int) -> None:
        given = self._given.get(device)
        if given is None:
            return
        used = min(n, given[0])
        self.out -= used
        if used == given[0]:
            del self._given[device]
        else:
            self._given[device] = (given[0] - used, given[1])

    def grant(self, mark: Mark, waiting: int, now: float) -> int:
        """mark: the board's last. waiting: windows on the board that are not in flight."""
        self._end(now)
        self.out -= self._given.pop(mark.device, (0, 0.0))[0]
        granted = max(0, min(waiting, self._most_each, self._most - self.out))
        if granted:
            self._given[mark.device] = (granted, now + self._lasts_s)
            self.out += granted
            self._queue.pop(mark.device, None)
        elif waiting <= 0:
            self._queue.pop(mark.device, None)
        elif mark.device in self._queue or len(self._queue) < _MOST_IN_QUEUE:
            self._queue[mark.device] = (replace(mark, known=True), waiting)  # it knows what to send again
        return granted

    def freed(self, now: float) -> list[tuple[Mark, int]]:
        """Queued boards that now get credit, with the amount."""
        self._end(now)
        found = []
        while self._queue and self._most - self.out >= min(self._most_each, next(iter(self._queue.values()))[1]):
            mark, waiting = next(iter(self._queue.values()))
            found.append((mark, self.grant(mark, waiting, now)))
        return found

    def _end(self, now: float) -> None:
        while self._given and next(iter(self._given.values()))[1] <= now:
            self.out -= self._given.popitem(last=False)[1][0]


@dataclass
class _Second:
    at: float
    worked_s: float
    windows: int = 0
    repeated: int = 0
    waited_s: float = 0.0


class WindowIntake:
    """The last minute's intake, second by second, which shows whether the ingestor keeps up.

    clock: seconds, monotonic. worked_s: processor time of the calling thread, seconds."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, worked_s: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._worked_s = clock, worked_s
        self._lock = threading.Lock()
        self._began = clock()
        self._seconds: deque[_Second] = deque()

    def note(self, windows: int, repeated: int, waited_s: float) -> None:
        """waited_s: from the first message to the commit."""
        now, worked_s = self._clock(), self._worked_s()
        with self._lock:
            seconds = self._seconds
            if not seconds or now - seconds[-1].at >= 1.0:
                seconds.append(_Second(now, worked_s))
            last = seconds[-1]
            last.windows += windows
            last.repeated += repeated
            last.waited_s = max(last.waited_s, waited_s)
            last.worked_s = worked_s
            while seconds[0].at < now - _FIGURES_S - 1.0:
                seconds.popleft()

    def figures(self) -> dict[str, float]:
        """windows_per_s: new windows. repeated_per_s: messages already stored.

        busy: share of a core. commit_s: longest time from a message to its commit.
        """
        now = self._clock()
        with self._lock:
            lately = [second for second in self._seconds if second.at >= now - _FIGURES_S]
            over_s = max(1.0, min(_FIGURES_S, now - self._began))
            worked_s = lately[-1].worked_s - lately[0].worked_s if lately else 0.0
            return {
                "windows_per_s": round(sum(second.windows for second in lately) / over_s, 2),
                "repeated_per_s": round(sum(second.repeated for second in lately) / over_s, 2),
                "busy": round(min(1.0, worked_s / over_s), 4),
                "commit_s": round(max((second.waited_s for second in lately), default=0.0), 3),
            }


class Ingest(BrokerThread):
    """Writes boards' messages into the store. The figures may be read from any thread.

    counts: messages, new windows, events, commits, and messages that were repeated.
    refused: payloads by word.
    intake: of the last minute.
    share: group of ingestors among which the broker divides messages; each needs its own name.
    """

    def __init__(
        self,
        broker: Broker,
        store: SqlStore,
        pace: Pace | None = None,
        name: str | None = None,
        share: str | None = None,
    ) -> None:
        super().__init__("ingest", 0.5, store)
        self._pace = pace or Pace()
        self.refused: Counter[str] = Counter()
        self.intake = WindowIntake()
        self._arrivals: list[Arrival] = []
        self._changes: list[Change] = []
        self._first_at = 0.0
        self._credits = Credits()
        self._unacknowledged: deque[tuple[str, str]] = deque()  # boards that wait for a sign: id, epoch
        self._woken_at = 0.0
        self._logged_trouble = ""
        self._clearing: set[str] = set()
        self._cleared: list[str] = []
        self._chores_at = self._prune_at = time.monotonic() + self._pace.chores_s
        if share is not None and not _SHARE.match(share):
            raise FleetError(f"invalid group name {share!r:.40}", do="Use letters, digits and '-'")
        shared = "" if share is None else f"$share/{share}/"
        name = name or ("edgekit-fleet" if share is None else f"edgekit-fleet-{secrets.token_hex(4)}")
        self.link = Link(
            broker,
            name,
            (f"{shared}{ROOT}/+/m", f"{shared}{ROOT}/+/ev", f"{ROOT}/+/state"),
            message=self._message,
            up=self._up,
            most_wait_s=self._pace.most_wait_s,
            most_bytes=_MOST_PACKET_BYTES,
            most_at_once=_MOST_AT_ONCE,
        )

    def step_link(self) -> None:
        left_s = self._first_at + self._pace.wait_s - time.monotonic()
        waited_for = self._unacknowledged or self._credits.wanted
        before = self.counts["messages"]
        self.link.step(max(0.0, left_s) if self._pending else self._pace.wait_s if waited_for else self._pace.chores_s)
        if 0 < self.counts["messages"] - before < _FEW:  # one by one they cost as much to wait for as to read
            self._stopping.wait(min(_GATHER_S, self._pace.wait_s / 2.5))
        if self.link.trouble not in ("", self._logged_trouble):
            self._logged_trouble = self.link.trouble
            _LOG.warning("the broker %s: %s (%s)", self.link.broker, self.link.trouble, self.link.advice)
        now = time.monotonic()
        self._wake(now)
        if self._is_due(now):
            self._commit()
        for mark, credit in self._credits.freed(now):
            self._acknowledge(mark, credit)
        if now >= self._chores_at:
            self._store.look_for_silence(now_ms())
            self._clear_births()
            self._chores_at = now + self._pace.chores_s
        if now >= self._prune_at:
            self._store.prune(now_ms())
            self._clearing.clear()  # what the broker did not take is tried again
            self._prune_at = now + self._pace.prune_s

    def _clear_births(self) -> None:
        cleared, self._cleared = self._cleared, []
        if cleared:
            self._store.mark_cleared(cleared)
        for name in self._store.to_clear():
            if name not in self._clearing and self.link.connected:

                def receipt(taken: bool, name: str = name) -> None:
                    self._cleared += [name] * taken

                self._clearing.add(name)
                self.link.publish(f"{ROOT}/{name}/state", b"", retain=True, receipt=receipt)

    def finish(self) -> None:
        self._commit()

    def after_failure(self) -> None:
        self._arrivals, self._changes = [], []

    def _is_due(self, now: float) -> bool:
        """Whether to commit; also when all boards have used up their credit and wait."""
        n = self._pending
        if not n or now - self._first_at >= self._pace.wait_s:
            return n > 0
        return n >= self._pace.most or n >= self._credits.out >= _LEAST_OF_CREDITS

    @property
    def _pending(self) -> int:
        return len(self._arrivals) + len(self._changes)

    def _commit(self) -> None:
        arrivals, changes = self._arrivals, self._changes
        if not arrivals and not changes:
            return
        marks = self._store.commit(arrivals, changes)
        now, came = time.monotonic(), Counter(arrival.device for arrival in arrivals)
        waiting = {  # (device, epoch) -> the last seq that waits on the board, as its last window says
            (arrival.device, arrival.seal.epoch): arrival.seal.floor - 1 + arrival.seal.spooled
            for arrival in arrivals
            if arrival.window is not None
        }
        self._arrivals, self._changes, self.trouble = [], [], ""
        self.counts["commits"] += 1
        windows, repeated = sum(mark.windows for mark in marks), sum(mark.repeated for mark in marks)
        self.counts["windows"] += windows
        self.counts["repeated"] += repeated
        self.counts["events"] += sum(arrival.event is not None for arrival in arrivals)
        self.intake.note(windows, repeated, now - self._first_at)
        for mark in marks:
            self._credits.arrived(mark.device, came[mark.device])
            left = waiting.get((mark.device, mark.epoch), 0) - mark.hwm - mark.held
            self._acknowledge(mark, self._credits.grant(mark, left, now))

    def _acknowledge(self, mark: Mark, credit: int) -> None:
        value = {"epoch": mark.epoch, "hwm": mark.hwm, "credit": credit, "known": int(mark.known)}
        ack = compact_json(value)
        self.link.publish(f"{ROOT}/{mark.device}/ack", ack, qos=0)

    def _up(self) -> None:
        """Acknowledge to each board, the latest first: earlier acknowledgements may be lost."""
        rows = sorted(self._store.fleet(), key=lambda row: -row.seen_ms)
        self._unacknowledged = deque((row.id, row.epoch) for row in rows if row.epoch)
        self._woken_at = time.monotonic()

    def _wake(self, now: float) -> None:
        n = min(len(self._unacknowledged), int((now - self._woken_at) * self._pace.wake_per_s))
        if not n or not self.link.connected:
            return
        self._woken_at = now
        for _ in range(n):
            device, epoch = self._unacknowledged.popleft()
            self._acknowledge(Mark(device, epoch, 0), 0)

    def _message(self, topic: str, payload: bytes, retained: bool) -> None:
        self.counts["messages"] += 1
        if not self._pending:
            self._first_at = time.monotonic()
        device, _, kind = topic.removeprefix(f"{ROOT}/").partition("/")
        if not DEVICE_ID.match(device):
            self._refuse("device", topic)
        elif kind in ("m", "ev"):
            self._arrive(device, kind, payload)
        elif kind == "state" and payload:
            try:
                self._changes.append(Change(device, now_ms(), parse_state(payload), retained))
            except WindowError as error:
                self._refuse(error.word, f"{device}: {error}")

    def _arrive(self, device: str, kind: str, payload: bytes) -> None:
        """Parse a window or an event."""
        now, window, event, sample = now_ms(), None, None, None
        try:
            if kind == "m":
                window = parse_window(payload, device)
                seal = window.seal
            else:
                happened = parse_event(payload, device)
                seal, sample = happened.seal, happened.sample
                if sample is None:
                    event = Event(moment_of(happened, now), device, happened.kind, happened.text)
        except WindowError as error:
            self._refuse(error.word, f"{device}: {error}")
            known = origin(payload) if error.word in ("version", "shape") else None
            if known is not None:
                self._arrivals.append(Arrival(device, known, now, refused=error.word))
            return
        self._arrivals.append(Arrival(device, seal, now, payload, window, event=event, sample=sample))

    def _refuse(self, word: str, what: str) -> None:
        self.refused[word] += 1
        if self.refused[word] == 1:
            _LOG.warning("refused (%s; further ones are only counted): %r", word, what[:200])
