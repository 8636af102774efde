"""The agent of a board: takes orders from a broker, installs, and reports.

    agent = Agent(AgentOptions("mqtts://porch-1:secret@broker:8883", "porch-1", Path("/var/lib/edgekit/camera")))
    agent.run(stop)                  # until `stop` is set

Rules:
- only `install` installs: it judges signature, board, dates, rollout_seq and the ordered SHA-256;
- ROOT/agent.json is written before a step begins, and the root says how far a step came: a kill repeats at most it;
- a refused bundle is refused again without a download, as long as the same keys are trusted;
- boards that get an order together do not fetch together: each waits a random part of `spread_s`;
- a bundle that came as a shadow is not fetched again; any other order, or none, ends the shadow;
- a newer order replaces a download; during a self-test or a trial it waits for the end;
- `--then` runs at least once after each switch, before the phase is reported.
"""

from __future__ import annotations

import logging
import random
import subprocess
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgekit_runtime.bundle.trust_store import TrustStore
from edgekit_runtime.install import orders
from edgekit_runtime.install.durable import make_folders, read_text, storage_errors, write_file
from edgekit_runtime.install.hawkbit import HawkbitLink
from edgekit_runtime.install.installing import InstallOptions, fetch_shadow, install
from edgekit_runtime.install.layout import Root, is_root
from edgekit_runtime.install.root_objects import store_of
from edgekit_runtime.install.shadowing import end_shadow, shadow_file
from edgekit_runtime.install.status_and_rollback import activate, rollback, status
from edgekit_runtime.system.errors import EdgekitError, InstallError, StorageError, WindowError
from edgekit_runtime.system.strict_json import json_text, read_json
from edgekit_runtime.system.threads import begin
from edgekit_runtime.telemetry.link import Broker, Link
from edgekit_runtime.telemetry.reporter import ROOT
from edgekit_runtime.telemetry.window import device_id

_LOG = logging.getLogger("edgekit_runtime.install.agent")
_LOOK_S = 1.0
_THEN_S = 120.0
_MOST_REFUSED = 64
_MAY_PASS_LATER = ("bundle-integrity", "download-size", "expired", "not-yet-valid", "root-expired")
"""Refusals that a new file on the server or a corrected clock may fix, with the same keys."""


@dataclass(frozen=True)
class AgentOptions:
    """broker: its URL, which may hold a password.
    device: this board's id, as in telemetry.
    then: a command after each switch, e.g. that restarts the application.
    spread_s: longest wait before fetching.
    look_s: between looks at a trial by the application.
    hawkbit, token: URL of a hawkBit server in place of the broker, and this board's token there.
    """

    broker: str = field(repr=False)  # it may hold a password
    device: str
    root: Path
    asked: InstallOptions = field(default_factory=InstallOptions)
    then: tuple[str, ...] = ()
    spread_s: float = 60.0
    look_s: float = _LOOK_S
    most_wait_s: float = 120.0
    hawkbit: str = ""
    token: str = field(default="", repr=False)


class _NewerOrderError(Exception):
    """The order in hand was replaced; what arrived stays as after a kill."""


class Agent:
    """`run` owns the connection and the note; an install runs in a thread of its own."""

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._topic = f"{ROOT}/{device_id(options.device)}"
        self.note = _read_note(options.root)
        self._rate = orders.OrderRate(time.monotonic)
        self._refused: dict[str, tuple[TrustStore | None, str, str]] = {}
        self._newer: orders.Order | None = None
        self._withdrawn = False
        self._not_before = 0.0
        self._spread = True
        self._work: _Work | None = None
        self._said, self._logged = b"", ""
        self.link: Link | HawkbitLink
        if options.hawkbit:
            callbacks = self._topic, self._message, self._up
            self.link = HawkbitLink(options.hawkbit, options.device, options.token, *callbacks)
            fetching = replace(options.asked.fetching, limits=self.link.limits)
            self._options = replace(options, asked=replace(options.asked, fetching=fetching))
            return
        self.link = Link(
            Broker.parse(options.broker), f"{options.device}.agent", (f"{self._topic}/cmd",),  # no device id has a dot
            message=self._message, up=self._up, most_wait_s=options.most_wait_s,
        )  # fmt: skip

    def run(self, stop: threading.Event) -> None:
        """Run until `stop`. An unfinished install is left to the next start, as after a kill."""
        try:
            while not stop.is_set():
                try:
                    self.link.step(self._options.look_s)
                    if isinstance(self.link, Link) and self.link.trouble != self._logged:
                        self._logged = self.link.trouble
                        reason = f"{self._logged} ({self.link.advice})" if self._logged else "connected again"
                        _LOG.warning("the broker %s: %s", self.link.broker, reason)
                    self._take_newer()
                    self._advance()
                except EdgekitError as error:  # the root or its disk: reported, and tried again
                    _LOG.error("%s", error)
                    self._report(replace(self.note, error=_short(error), code=error.code))
                    stop.wait(self._options.look_s)
                except Exception:  # noqa: BLE001 - one order must not end the agent
                    _LOG.exception("the agent failed; it tries again")
                    stop.wait(self._options.look_s)
        finally:
            self.link.close()

    # What the link calls.

    def _up(self) -> None:
        self._said = b""
        self._report(self.note)

    def _message(self, topic: str, payload: bytes, _retained: bool) -> None:
        if topic != f"{self._topic}/cmd":
            return
        if not payload:  # withdrawn
            self._newer, self._withdrawn = None, True
            return
        try:
            order = orders.parse_order(payload)
        except WindowError as error:
            _LOG.warning("an order was refused (%s): %s", error.word, error)
            return
        if order.root and order.root != self._options.root.name:
            return
        known, later = self.note.order, self._newer
        if order.rev < max(self.note.last_rev, later.rev if later is not None else 0):
            _LOG.warning("an order was refused (%d): a later one came before it", order.rev)
            return
        if known is not None and (known.rev, known.sha256) == (order.rev, order.sha256):
            self._newer, self._withdrawn = None, False
            self._said = b""
            self._report(self.note)
            return
        self._newer, self._withdrawn = order, False

    def _take_newer(self) -> None:
        """Begin another order, unless the current install cannot be interrupted."""
        work = self._work
        if self._withdrawn:
            if work is not None and work.stage == "fetch" and not work.interrupt():
                return
            self._withdrawn = False
            if (work is None or work.stage == "fetch") and self.note.phase in (None, "fetching", "shadowing"):
                self._work = None
                end_shadow(self._options.root)
                self._write(orders.next_note(self.note, None, orders.RootState(), 0))
        if self._newer is None or (work is not None and not work.interrupt()) or not self._rate.take():
            return
        order, self._newer, self._work = self._newer, None, None
        end_shadow(self._options.root, keep=order.sha256)
        self._write(orders.next_note(self.note, order, self._standing(), int(1000 * time.time())))
        self._spread, self._not_before = True, 0.0

    # One step after the other.

    def _advance(self) -> None:
        note, work = self.note, self._work
        if work is not None:
            if work.stage in ("selftest", "trial"):
                self._report(replace(note, phase="trial", error="", code=""))
            if work.over.is_set():
                self._work = None
                self._installed(work)
        elif note.order is not None and not note.final and time.monotonic() >= self._not_before:
            self._take_step(note, note.order)

    def _take_step(self, note: orders.AgentNote, order: orders.Order) -> None:
        root = self._standing()
        step = orders.decide(note, root)
        if step == "install" and note.phase is None and (before := self._refused.get(order.sha256)):
            trusted, error, code = before
            if trusted == self._trusted():
                self._end("refused", error, code)
                return
        if step == "install" and self._spread:
            self._spread = False
            self._wait_a_part_of(self._options.spread_s)
            if note.phase is None:
                self._write(replace(note, phase="fetching"))
        elif step == "install":
            self._write(replace(note, phase="fetching", tries=note.tries + 1, switched=True))
            self._work = _Work(order, self._options)
        elif step in ("give-up-trial", "activate"):
            self._write(replace(note, switched=True))
            self._go_back(step == "activate", root.previous_number)
        elif step == "wait" and note.phase != "trial":
            self._then()
            self._write(replace(note, phase="trial", error="", code=""))
        elif step == "wait":
            self._not_before = time.monotonic() + self._options.look_s
            status(self._options.root)  # counts the failed starts of an application that never came up
        elif step == "committed":
            if note.switched and note.phase != "trial":  # else it was run when the trial began
                self._then()
            self._end("committed")
        elif step == "rolled-back":
            failure = Root.open(self._options.root).journal().failure
            self._end("rolled-back", failure.what if failure else "the trial failed", "trial-failed")
        elif step == "failed":
            self._end("failed", note.error or "it was interrupted too often", note.code or "install")
        elif step == "gone":
            self._end("failed", "the board does not keep that bundle any more", "no-generation")

    def _go_back(self, kept: bool, previous: int) -> None:
        try:
            if kept:
                activate(self._options.root, previous, trust=self._options.asked.trust)
            else:
                rollback(self._options.root)
        except StorageError:
            raise
        except EdgekitError as error:
            if error.code == "install-busy":
                raise
            self._end("failed", _short(error), error.code)

    def _installed(self, work: _Work) -> None:
        error = work.error
        if error is None:
            if self.note.order is not None and self.note.order.shadow:
                self._end("shadowing")
            return  # the root says what came of it
        phase = orders.outcome(error, work.stage in ("selftest", "trial"))
        if phase is not None:
            self._end(phase, _short(error), error.code)
            if phase == "refused" and error.code not in _MAY_PASS_LATER and self.note.order is not None:
                self._refused[self.note.order.sha256] = (self._trusted(), self.note.error, error.code)
                while len(self._refused) > _MOST_REFUSED:
                    del self._refused[next(iter(self._refused))]
            return
        self._write(replace(self.note, error=_short(error), code=error.code))
        self._wait_a_part_of(orders.pause_s(self.note.tries))

    def _end(self, phase: orders.Phase, error: str = "", code: str = "") -> None:
        if phase != "shadowing":
            end_shadow(self._options.root)
        self._write(replace(self.note, phase=phase, error=error[: orders.MOST_ERROR], code=code))

    def _then(self) -> None:
        """Run the owner's command; a failure is only logged."""
        if not self._options.then:
            return
        try:
            subprocess.run(self._options.then, check=True, timeout=_THEN_S, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            _LOG.error("the command after a switch failed: %s", error)

    def _standing(self) -> orders.RootState:
        if not is_root(self._options.root):
            return orders.RootState()
        root = Root.open(self._options.root)
        journal = root.journal()
        current, trial, previous = (root.try_record(n) for n in (journal.current, journal.on_trial, journal.previous))
        return orders.RootState(
            current.object if current else "",
            current.version if current else "",
            trial.object if trial else "",
            previous.object if previous else "",
            previous.number if previous else 0,
        )

    def _trusted(self) -> TrustStore | None:
        """The keys that an install would ask for now; None if they cannot be read."""
        root = Root.open(self._options.root) if is_root(self._options.root) else None
        try:
            return store_of(root, self._options.asked.trust)
        except EdgekitError:
            return None

    def _wait_a_part_of(self, most_s: float) -> None:
        self._not_before = time.monotonic() + random.uniform(0.0, most_s)

    def _write(self, note: orders.AgentNote) -> None:
        """Write the note durably, then report it. Raises StorageError."""
        folder = self._options.root
        if not folder.is_dir():
            with storage_errors(folder):
                make_folders(folder)
        write_file(folder / "agent.json", json_text(note))
        self.note = note
        self._report(note)

    def _report(self, note: orders.AgentNote) -> None:
        if note.order is None:
            return
        version = ""
        try:
            version = self._standing().version
        except EdgekitError as error:
            _LOG.error("%s", error)
        former = orders.Former(note.former_version, note.former_sha256) if note.former_sha256 else None
        phase, sha256 = note.phase or "fetching", note.order.sha256
        said = orders.OrderReport(note.order.rev, phase, version, note.error, note.code, former, sha256).encode()
        if said != self._said and self.link.publish(f"{self._topic}/rep", said, retain=True):
            self._said = said


class _Work:
    """One install in its thread.

    stage: fetch, verify, selftest or trial.
    error: None while running and after success.
    """

    def __init__(self, order: orders.Order, options: AgentOptions) -> None:
        self.stage, self.over = "fetch", threading.Event()
        self.error: EdgekitError | None = None
        self.interrupted = False
        self._order, self._options = order, options
        self._unwanted = threading.Event()
        begin(threading.Thread(target=self._go, name="edgekit-install", daemon=True))

    def interrupt(self) -> bool:
        """Ask a download to end; returns whether the work is over. Self-tests and trials run on."""
        self._unwanted.set()
        return self.over.is_set()

    def _go(self) -> None:
        asked = self._options.asked
        fetching = replace(asked.fetching, progress=self._progress)
        try:
            root, order = self._options.root, self._order
            asked = replace(asked, sha256=order.sha256, fetching=fetching)
            if order.shadow:
                fetch_shadow(order.url, root, order.shadow, asked)
            else:
                install(shadow_file(root, order.sha256) or order.url, root, asked)
        except EdgekitError as error:
            self.error = error
        except _NewerOrderError:
            self.interrupted = True
        except Exception as error:  # noqa: BLE001 - tried again, MOST_TRIES times
            _LOG.exception("an install failed")
            self.error = InstallError(f"{type(error).__name__}: {error}", code="install-busy")
        finally:
            self.over.set()

    def _progress(self, stage: str, _done: int, _total: int | None) -> None:
        if stage == "fetch" and self._unwanted.is_set():
            raise _NewerOrderError
        self.stage = stage


def _read_note(root: Path) -> orders.AgentNote:
    """The stored note; empty if unreadable: the order is retained, and comes again."""
    try:
        text = read_text(root / "agent.json")
        return orders.AgentNote() if text is None else read_json(orders.AgentNote, text, "agent.json", format=1)
    except (ValueError, EdgekitError) as error:
        _LOG.warning("agent.json starts empty: %s", error)
        return orders.AgentNote()


def _short(error: EdgekitError) -> str:
    """Without the place: a report names no path."""
    return " ".join(error.what.split())[: orders.MOST_ERROR]
