"""Compare some of the hosts' answers with the device's own answers to the same requests.

    comparison = Comparison(contract, device.run_beside, count=lambda differs: meter.compared(differs=differs))
    comparison.answered(items, outputs)         # of every answer that came from a host

Rules:
- one in COMPARE_EVERY is compared; four times as many after one that differs, down to one in
  COMPARE_CLOSEST, and half as many after each that agrees;
- the device compares when it is idle, and never makes a caller wait: what is due stays due until then;
- what differs is counted and costs no answer: two precisions of one model need not agree on every input.
"""

from __future__ import annotations

from collections.abc import Callable

from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.request import Items, Outputs
from edgekit_runtime.selftest.replaying import differs

COMPARE_EVERY, COMPARE_CLOSEST = 200, 5


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
        self._every, self._since = COMPARE_EVERY, 0

    def answered(self, items: Items, outputs: Outputs, differed: Callable[[], None] = lambda: None) -> None:
        """A host answered a request. differed: called where the device answers otherwise."""
        self._since += 1
        if self._since < self._every:
            return

        def compare(own: Outputs) -> None:
            apart = bool(differs(self._contract, outputs, own))
            self._every = max(COMPARE_CLOSEST, self._every // 4) if apart else min(COMPARE_EVERY, 2 * self._every)
            self._count(apart)
            if apart:
                differed()

        if self._run(items, compare):
            self._since = 0
