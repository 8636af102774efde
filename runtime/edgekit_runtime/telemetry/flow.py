"""Which windows to send next: a pure rule of what was sent, what was confirmed and what time it is.

Rules:
- at most `most` windows are on their way at once, in order;
- a new connection begins again at the oldest that is not confirmed: what was on its way may be lost;
- when nothing is confirmed for `patience_s`, one window goes out as a probe, then ever more rarely up to
  `most_patience_s`: a broker without an ingestor behind it swallows everything and says thank you;
- any confirmation opens the flow again; only one that moves the mark counts as progress, so a lost window is sent
  again.

    flow = Flow()
    start, room = flow.room(now)            # send up to `room` windows above seq `start`
    flow.sent(seq, now)
    flow.confirmed(mark, now)
"""

from __future__ import annotations

__all__ = ["Flow"]


class Flow:
    def __init__(self, most: int = 20, patience_s: float = 5.0, most_patience_s: float = 30.0) -> None:
        self._most, self._least_patience_s, self._most_patience_s = most, patience_s, most_patience_s
        self._mark = 0
        self._on_the_way: list[int] = []
        self._heard_at = 0.0
        self._patience_s = patience_s
        self._probing = False

    def room(self, now: float) -> tuple[int, int]:
        """(seq, n): send up to n windows above that seq."""
        if self._on_the_way and now - self._heard_at >= self._patience_s:
            self._on_the_way.clear()
            self._probing = True
            self._patience_s = min(2.0 * self._patience_s, self._most_patience_s)
        most = 1 if self._probing else self._most
        return (self._on_the_way[-1] if self._on_the_way else self._mark), max(0, most - len(self._on_the_way))

    def due_s(self, now: float) -> float | None:
        """Seconds until `room` has more to say with nothing else happening; None for never."""
        return max(0.0, self._heard_at + self._patience_s - now) if self._on_the_way else None

    def sent(self, seq: int, now: float) -> None:
        if not self._on_the_way:
            self._heard_at = now
        self._on_the_way.append(seq)

    def confirmed(self, mark: int, now: float) -> None:
        """The ingestor has stored everything up to `mark`. A mark may come twice, or late."""
        if mark > self._mark:
            self._mark, self._heard_at = mark, now
            self._on_the_way = [seq for seq in self._on_the_way if seq > mark]
        self._patience_s = self._least_patience_s
        if self._probing:
            self._probing = False
            self._on_the_way.clear()

    def begin(self) -> None:
        """There is a new connection, or a new spool."""
        self._on_the_way.clear()
        self._probing = False
        self._patience_s = self._least_patience_s

    def forget(self) -> None:
        """As `begin`, and marks start again at nothing: the epoch is another one."""
        self.begin()
        self._mark = 0
