"""A bundle that answers a share of the requests in silence, beside the active one.

    shadow = Shadow(task, journey)          # in a process of its own, at the lowest priority
    shadow.cut(system, counted, budget_ms)      # what it did since the last cut
    shadow.close()

Rules:
- a caller's answer is the active bundle's, and is there before it is compared. A fault here is noted, and no caller
  hears of it;
- one input waits at most, and it waits for the device to be idle; any other is counted as skipped;
- it rests for a window where `hindrance` finds a word: hot, short of memory, or budgets at risk;
- a process that cannot be started, or dies, is not started again: its code is the word from then on;
- a shadow that is closed leaves the journey as it was.
"""

from __future__ import annotations

import json
import os
import queue
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.bundle.jobs import bundle_job
from edgekit_runtime.contract.adapt import top_score
from edgekit_runtime.contract.detect import candidates, overlaps
from edgekit_runtime.contract.picture import EncodedImage
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.engines.arena import frame, read_frame, read_layout
from edgekit_runtime.engines.isolated import EngineChild
from edgekit_runtime.loading.replay import differs
from edgekit_runtime.serving.journey import Journey
from edgekit_runtime.serving.opened import ShadowTask
from edgekit_runtime.serving.request import Answer, Outputs
from edgekit_runtime.serving.tap import tap
from edgekit_runtime.system.errors import EdgekitError, EngineError, from_json
from edgekit_runtime.system.memory import room_here
from edgekit_runtime.system.strict_json import load_json
from edgekit_runtime.system.threads import begin
from edgekit_runtime.telemetry.histogram import BINS, LEAST, CountedWindow, ShadowWindow, count_score, psi
from edgekit_runtime.telemetry.window import System

HOT, THROTTLED, FULL = 75.0, 0xF, 90.0
"""Degrees Celsius, bits of the firmware, and percent of the memory from which on it rests."""
AT_RISK = 0.01
"""Share of late or refused requests."""
NEAR = 0.8
"""Part of a budget that an answer may take, for a copy of its request to be run."""
PROCESS_MB, FILE_TIMES = 80.0, 4.0
"""Memory that must be free to begin: of the process, and times the size of the file."""
IDLE_S, OPEN_S, RUN_S = 0.5, 600.0, 120.0
_CLEARLY, _OVERLAP = 0.1, 0.5


class Shadow:
    """draw: random numbers from 0 to 1. room_mb: free memory, None if unknown."""

    def __init__(
        self, task: ShadowTask, journey: Journey, draw: Callable[[], float] = random.random,
        room_mb: Callable[[], float | None] = lambda: room_here().soft_mb,
    ) -> None:  # fmt: skip
        self.task, self.journey = task, journey
        self._draw, self._room_mb = draw, room_mb
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._now = ShadowWindow(task.sha256[:12])
        self._ms, self._scores = 0.0, ([0] * BINS, [0] * BINS)
        self._mb: float | None = None
        self._rests, self._ended = "", ""
        self._waiting: queue.Queue[tuple[dict[str, Any], Outputs, float] | None] = queue.Queue(1)
        self._child: EngineChild | None = None
        self._thread = threading.Thread(target=self._work, name="edgekit-shadow", daemon=True)
        tap(journey).add(self)
        begin(self._thread)

    def cut(self, system: System, counted: CountedWindow) -> ShadowWindow:
        """What it did since the last cut.

        Whether it rests until the next one follows from `system` and `counted`."""
        with self._lock:
            done, self._now = self._now, ShadowWindow(self._now.sha)
            if done.n:
                done.ms, self._ms = self._ms / done.n, 0.0
            if min(map(sum, self._scores)) >= LEAST:
                done.psi = psi(*self._scores)
        done.mb = self._mb
        self._rests = hindrance(system, counted)
        busy = "busy" if done.skipped and not done.n else ""
        done.rests = self._ended or self._rests or busy
        return done

    def close(self) -> None:
        """End its process. Idempotent."""
        self._stop.set()
        tap(self.journey).remove(self)
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        child = self._child
        if child is not None:
            child.process.kill()
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)

    # In the callers' threads.

    def wants(self, answer: Answer | None) -> bool:
        if self._draw() >= self.task.share:
            return False
        if self._rests or self._ended or self._waiting.full():
            with self._lock:
                self._now.skipped += 1
            return False
        return True

    def take(self, copied: dict[str, Any], answer: Answer, budget_ms: float | None) -> None:
        near = budget_ms is not None and answer.timings["total"] > NEAR * budget_ms
        with self._lock, suppress(queue.Full):
            self._now.skipped += 1
            if not near:
                self._waiting.put_nowait((copied, answer.outputs, answer.timings["engine"]))
                self._now.skipped -= 1

    # In its own thread, which waits for the process.

    def _work(self) -> None:
        try:
            if not self._start():
                return
            while (taken := self._waiting.get()) is not None and not self._stop.is_set():
                if self._rests or not self._idle():
                    with self._lock:
                        self._now.skipped += 1
                    continue
                self._compare(*taken)
        except EdgekitError as error:
            self._ended = error.code
        except Exception as error:  # noqa: BLE001 - no caller may hear of it
            self.journey.faults.note("shadow", error)
            self._ended = "shadow"
        finally:
            child, self._child = self._child, None
            if child is not None:
                child.end(0)

    def _start(self) -> bool:
        """Whether it answers. Raises EdgekitError."""
        info, bundle = self.journey.device.engine.info, self.task.open()
        job = bundle_job(bundle) | {"engine": info.name, "threads": info.threads}
        size, left_mb = bundle.path.stat().st_size, self._room_mb()
        del bundle
        if left_mb is not None and left_mb < PROCESS_MB + FILE_TIMES * size / 1e6:
            self._ended = "memory"
            return False
        self._child = EngineChild(self.task.module)
        self._ask(job, OPEN_S)
        return True

    def _idle(self) -> bool:
        """Wait for the device to be idle, for a moment."""
        until = monotonic() + IDLE_S
        while not self._stop.wait(0.002):
            if self.journey.device.idle:
                return True
            if monotonic() > until:
                return False
        return False

    def _compare(self, copied: dict[str, Any], outputs: Outputs, engine_ms: float) -> None:
        contract = self.journey.contract
        given = {name: _as_it_came(value) for name, value in copied.items()}
        if not all(isinstance(value, (np.ndarray, bytes)) for value in given.values()):
            given, _ = self.journey.intake.decode(copied)
        arrays = [np.frombuffer(one, np.uint8) if isinstance(one, bytes) else one for one in given.values()]
        assert self._child is not None
        layout = self._child.arena.write(arrays)
        job = {"inputs": layout, "names": [[name, isinstance(one, bytes)] for name, one in given.items()]}
        said = None
        with suppress(EdgekitError):
            said = self._ask(job, RUN_S)
        if said is None:  # it gives no answer to what the active bundle answers
            if self._child.process.poll() is not None:
                raise EngineError("the shadow's process died")
            same, ratio = False, 1.0
        else:
            names, places = said["outputs"]
            self._child.arena.forget()
            arrays = self._child.arena.read(read_layout(places))
            others = dict(zip(outputs if len(names) == len(outputs) else names, arrays, strict=True))
            same, ratio, self._mb = agrees(contract, outputs, others), said["ms"] / max(engine_ms, 1e-6), said["mb"]
        if not same and self.journey.doubted is not None:
            self.journey.doubted(copied, outputs, "shadow")
        with self._lock:
            self._now.n += 1
            self._now.same += same
            self._now.ratios.record(min(1e6, max(1e-6, ratio)))
            if said is not None:
                self._ms += said["ms"]
                for counts, some in zip(self._scores, (outputs, others), strict=True):
                    count_score(counts, top_score(some, contract))

    def _ask(self, job: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Raises EngineError, also for no answer in time."""
        child = self._child
        assert child is not None
        answer = None
        with suppress(OSError):
            os.write(child.to_child, frame(b"r", json.dumps(job).encode()))
            if child.poll.poll(limit_s * 1e3):
                answer = read_frame(child.from_child)
        if answer is None:
            child.end(0)
            raise EngineError("the shadow's process died, or does not answer")
        value = load_json(answer[1]) if answer[1] else {}
        if answer[0] == b"e":
            raise from_json(value, EngineError)
        return dict(value)


def _as_it_came(value: Any) -> Any:
    """Bytes of an encoded picture, so that the other bundle decodes it by its own contract."""
    if isinstance(value, EncodedImage):
        return value.data
    if isinstance(value, (str, os.PathLike)) and Path(value).suffix.lower() not in (".npy", ".npz"):
        return EncodedImage.read(Path(value)).data
    return value


def hindrance(system: System, counted: CountedWindow) -> str:
    """Why a shadow should rest, in a word; empty if it may run."""
    if (system.temp or 0.0) >= HOT or (system.thr or 0) & THROTTLED:
        return "hot"
    if (system.mem or 0.0) >= FULL:
        return "memory"
    bad, of = counted.over_budget + counted.over_bundle + counted.refused, counted.latency().count + counted.refused
    return "budget" if bad > AT_RISK * of else ""


def agrees(contract: Contract, mine: Outputs, others: Mapping[str, NDArray[Any]]) -> bool:
    """Whether two versions decide the same.

    The best class of a classifier; of a detector each box that is clearly above the threshold has one of its class in
    the other answer; any other output is similar, as for a host's answers. others: with the names of `mine`.
    """
    if any(name not in others or others[name].shape != value.shape for name, value in mine.items()):
        return False
    if contract.task == "classification":
        name = contract.outputs[0].name
        return int(np.argmax(mine[name])) == int(np.argmax(others[name]))
    if contract.task != "detection" or contract.detection is None:
        return not differs(contract, mine, others)
    clearly = contract.detection.score_threshold + _CLEARLY
    found = [candidates(outputs, contract) for outputs in (mine, others)]
    for these, those in (found, found[::-1]):
        alike = overlaps(these.corners, those.corners, _OVERLAP) & (these.classes[:, None] == those.classes[None, :])
        if not alike.any(axis=1)[these.scores >= clearly].all():
            return False
    return True
