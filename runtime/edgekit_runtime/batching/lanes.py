"""Who is next: a lane a priority, first come first served within it, and waiting counts.

    lanes = Lanes(age_s=1.0)
    lanes.push(request); lanes.pop()

A level of priority is worth `age_s` seconds of waiting: a request stands where it would stand had it come that much earlier a
level. So a higher priority goes first, and nobody is overtaken by what comes later than `age_s` times the difference.
Cancelled requests leave a gap that is skipped, and swept when gaps are many. Not thread-safe: the batcher's mutex is held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from edgekit_runtime.batching.request import Request, State

__all__ = ["Lanes"]


class Lanes:
    """live: how many wait; `len` says the same."""

    def __init__(self, age_s: float = 1.0) -> None:
        self._age_s = age_s
        self._lanes: dict[int, deque[Request]] = {}
        self.live = 0
        self._gaps = 0
        self._soonest = float("inf")

    def __len__(self) -> int:
        return self.live

    def __iter__(self) -> Iterator[Request]:
        """All that wait, lane by lane."""
        return (request for lane in self._lanes.values() for request in lane if request.state is State.WAITING)

    def push(self, request: Request) -> None:
        lane = self._lanes.get(request.priority)
        if lane is None:
            lane = self._lanes[request.priority] = deque()
        lane.append(request)
        self.live += 1
        self._soonest = min(self._soonest, request.due)

    def pop(self) -> Request | None:
        """The next that waits; it is out of the queue then."""
        lane = self._next()
        if lane is None:
            return None
        self.live -= 1
        return lane.popleft()

    def put_back(self, request: Request) -> None:
        """Undo a `pop`."""
        self._lanes.setdefault(request.priority, deque()).appendleft(request)
        self.live += 1
        self._soonest = min(self._soonest, request.due)

    def dropped(self) -> None:
        """One that waited here was cancelled or told: its state says so, its place becomes a gap."""
        self.live -= 1
        self._gaps += 1
        if self._gaps > 32 and self._gaps > self.live:
            for priority, lane in list(self._lanes.items()):
                self._lanes[priority] = deque(r for r in lane if r.state is State.WAITING)
            self._gaps = 0

    def hopeless(self, before: float) -> list[Request]:
        """Take out all that are due before this time. Costs nothing when none is."""
        if self._soonest >= before:
            return []
        found = self._take_if(lambda request: request.due < before)
        self._soonest = min((request.due for request in self), default=float("inf"))
        return found

    def clear(self) -> list[Request]:
        """Take out all."""
        return self._take_if(lambda request: True)

    def ahead(self, priority: int, now: float) -> int:
        """How many would go before a request of this priority that came now."""
        total = 0
        for lane_priority, lane in self._lanes.items():
            if lane_priority >= priority:
                total += len(lane)
                continue
            came_before = now - (priority - lane_priority) * self._age_s
            for request in lane:
                if request.queued_at > came_before:
                    break
                total += 1
        return min(total, self.live)

    def _next(self) -> deque[Request] | None:
        best, best_key = None, float("inf")
        for priority, lane in list(self._lanes.items()):
            while lane and lane[0].state is not State.WAITING:
                lane.popleft()
                self._gaps -= 1
            if not lane:
                del self._lanes[priority]
                continue
            key = lane[0].queued_at - priority * self._age_s
            if key < best_key:
                best, best_key = lane, key
        return best

    def _take_if(self, wanted: Callable[[Request], bool]) -> list[Request]:
        taken: list[Request] = []
        for priority, lane in list(self._lanes.items()):
            kept: deque[Request] = deque()
            for request in lane:
                if request.state is not State.WAITING:
                    continue
                (taken if wanted(request) else kept).append(request)
            self._lanes[priority] = kept
        self._gaps = 0
        self.live -= len(taken)
        return taken
