"""Compare one in 200 of the hosts' answers with the device's own answer to the same request.

    comparison = Comparison(contract, device.run_beside, count=lambda differs: meter.compared(differs=differs))
    comparison.answered(items, outputs)         # of every answer that came from a host

Rules:
- the device compares when it is idle, and never makes a caller wait: what is due stays due until then;
- what differs is counted and costs no answer: two precisions of one model need not agree on every input.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count as counter

from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.request import Items, Outputs
from edgekit_runtime.selftest import differs

__all__ = ["COMPARE_EVERY", "Comparison"]

COMPARE_EVERY = 200


class Comparison:
    """Thread-safe, but for one comparison more or less.

    run: runs a request on the device where it is idle and passes the outputs on; whether it does. count: takes whether
    the two answers differ.
    """

    def __init__(
        self,
        contract: Contract,
        run: Callable[[Items, Callable[[Outputs], None]], bool],
        count: Callable[[bool], None],
    ) -> None:
        self._contract, self._run, self._count = contract, run, count
        self._answers = counter(1)
        self._due = False

    def answered(self, items: Items, outputs: Outputs) -> None:
        """A host answered a request."""
        if next(self._answers) % COMPARE_EVERY == 0:
            self._due = True
        if self._due:
            self._due = not self._run(items, lambda own: self._count(bool(differs(self._contract, outputs, own))))
