"""The hosts that a model may turn to: for each its client, its breaker, and what was learnt of it.

    hosts = Hosts(["http://gpu-box:8000"], manifest, golden)
    decision = decide(left_ms, device, hosts.prospects())
    if decision.destination == "host":
        # HostError: the device answers instead
        outputs, answer = hosts.infer(decision.host, {"image": pixels}, left_ms)
    elif not decision.fits:
        hosts.explore()

Rules:
- a host is measured before it is relied on: one of the bundle's own examples is sent to it when the model opens, again
  when nothing was heard for a while, and as the breaker's probe, always beside the requests and never as one of them.
  Each time its last bits differ, so that the host computes and does not answer from a cache;
- a host is avoided no longer than its trouble lasts: a probe goes out within half a second of a 503, and while no host
  is expected to be in time four times a second; one good answer outweighs all slower ones before it;
- a host that serves another model, version or contract is never asked;
- closing leaves no thread: every exchange ends by its own deadline.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.budget import Learned, Prospect
from edgekit_runtime.contract.kinds import kind_of
from edgekit_runtime.errors import ClosedError, HostError

if TYPE_CHECKING:
    from edgekit_runtime.bundle import Manifest
    from edgekit_runtime.contract import OutputContract
    from edgekit_runtime.remote.client import HostAnswer, HostClient

__all__ = ["Breaker", "BreakerState", "Hosts"]

BreakerState = Literal["closed", "open", "half-open"]
T = TypeVar("T")
Items = Mapping[str, NDArray[Any]]
PROBE_TIMEOUT_S = 2.0
STALE_S = 5.0
EXPLORE_S = 0.25
_THREADS = 4
_VALUE_BYTES = 32
_BESIDE_BYTES = 64 << 10
Clock = Callable[[], float]


class Breaker:
    """Leaves a host alone that does not answer, and finds out cheaply when it is back.

        breaker = Breaker()
        if breaker.allows():
            try:
                answer = client.infer(...)
            except HostError:
                breaker.failed()
            else:
                breaker.succeeded()

    closed: everything is let through; `threshold` failures in a row open it.
    open: nothing is let through for 0.25 s, and twice as long after each failed probe, at most 2 s.
    half-open: one request is let through, the probe: its success closes the breaker, its failure opens it again.

    A probe that never reports is forgotten after the longest wait, and another may go. While the breaker is open,
    reports of requests that were let through before change nothing: only a probe does. Thread-safe.

    threshold: failures in a row. shortest_s, longest_s: seconds of being open.
    """

    def __init__(
        self,
        *,
        threshold: int = 5,
        shortest_s: float = 0.25,
        longest_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if threshold < 1 or not 0 < shortest_s <= longest_s:
            raise ValueError("threshold must be at least 1, and 0 < shortest_s <= longest_s")
        self._threshold, self._shortest_s, self._longest_s = threshold, shortest_s, longest_s
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._wait_s = 0.0  # 0 while closed
        self._until = 0.0  # open: when the next probe may go; half-open: when the probe counts as lost
        self._probing = False

    @property
    def state(self) -> BreakerState:
        """`half-open` as soon as a probe may go, or while one is on its way."""
        with self._lock:
            if not self._wait_s:
                return "closed"
            return "half-open" if self._probing or self._clock() >= self._until else "open"

    def allows(self) -> bool:
        """Whether a request may go now. In the half-open state the first to ask is the probe, and must report."""
        with self._lock:
            if not self._wait_s:
                return True
            now = self._clock()
            if now < self._until:
                return False
            self._probing, self._until = True, now + self._longest_s
            return True

    def succeeded(self) -> None:
        """An answer came, in time."""
        with self._lock:
            if self._wait_s and not self._probing:
                return
            self._failures, self._wait_s, self._probing = 0, 0.0, False

    def failed(self) -> None:
        """No answer came, or too late."""
        with self._lock:
            if not self._wait_s:
                self._failures += 1
                if self._failures >= self._threshold:
                    self._open(self._shortest_s)
            elif self._probing:
                self._open(min(2 * self._wait_s, self._longest_s))

    def _open(self, wait_s: float) -> None:
        self._wait_s, self._probing = wait_s, False
        self._until = self._clock() + wait_s


class _Host:
    """One host. artifact: digest of the model file that answered last, None before the first answer.

    breaker: opened by failures. busy: opened by a single 503, for 0.05 to 0.5 s. latest_ms: of the last answer.
    """

    def __init__(self, client: HostClient, clock: Clock) -> None:
        self.client = client
        self.breaker = Breaker(threshold=3, clock=clock)
        self.busy = Breaker(threshold=1, shortest_s=0.05, longest_s=0.5, clock=clock)
        self.learned = Learned(max_age_s=30.0, clock=clock)
        self.latest_ms = math.inf
        self.probing = threading.Lock()
        self.last_error = ""
        self.artifact: str | None = None

    @property
    def healthy(self) -> bool:
        return self.breaker.state == "closed" and self.busy.state == "closed"

    @property
    def expected_ms(self) -> float | None:
        """90th percentile of what was seen lately, or the last answer where that was faster."""
        p90_ms = self.learned.p90_ms
        return None if p90_ms is None else min(p90_ms, self.latest_ms)

    def may_probe(self) -> bool:
        gate = self.busy if self.breaker.state == "closed" else self.breaker
        return gate.allows()

    def answered(self, answer: HostAnswer) -> None:
        self.last_error = ""
        self.breaker.succeeded()
        self.busy.succeeded()
        self.latest_ms = answer.total_ms
        self.learned.add(answer.total_ms)
        self.artifact = answer.artifact

    def failed(self, error: HostError) -> None:
        self.last_error = str(error)
        if error.code == "host-busy":  # it is alive
            self.breaker.succeeded()
            self.busy.failed()
        else:
            self.breaker.failed()


class Hosts:
    """Thread-safe. manifest: of the device's bundle. probe: canonical items that the hosts can be measured with."""

    def __init__(self, urls: Sequence[str], manifest: Manifest, probe: Items, clock: Clock = time.monotonic) -> None:
        from edgekit_runtime.remote.client import HostClient, ModelIdentity

        expects = ModelIdentity(manifest.model_id, manifest.version, manifest.contract_digest)
        values = sum(math.prod(output.shape) for output in manifest.contract.outputs)
        most = _BESIDE_BYTES + _VALUE_BYTES * values  # of an answer to one item, as JSON
        clients = [HostClient(url, model=manifest.name, expects=expects, most_bytes=most, clock=clock) for url in urls]
        self._hosts = [_Host(client, clock) for client in clients]
        self._outputs = manifest.contract.outputs
        self._probe = probe
        self._free = {spec.name: kind_of(spec).free_dtypes(spec) for spec in manifest.contract.inputs}
        self._random = np.random.default_rng()
        self._closed = False
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="edgekit-host")
        for host in self._hosts:
            self._measure(host)

    def prospects(self) -> tuple[Prospect, ...]:
        """What each host is good for now. One that was not heard of lately is measured beside this request."""
        found = []
        for host in self._hosts:
            healthy = host.healthy
            if not healthy or host.learned.age_s > STALE_S:
                self._measure(host)
            found.append(Prospect(host.expected_ms, ready=healthy))
        return tuple(found)

    def explore(self) -> None:
        """Measure the hosts beside a request that none of them was expected to answer in time."""
        for host in self._hosts:
            if host.learned.age_s > EXPLORE_S:
                self._measure(host)

    @property
    def artifacts(self) -> tuple[str, ...]:
        """Digests of the model files that the hosts answered with last, each once."""
        return tuple(dict.fromkeys(host.artifact for host in self._hosts if host.artifact is not None))

    def infer(self, index: int, items: Items, left_ms: float) -> tuple[dict[str, NDArray[Any]], HostAnswer]:
        """Ask one host about one item (no batch axis). Raises HostError."""
        return self._ask(self._hosts[index], items, left_ms / 1e3)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work`, which asks a host, in a thread of this room. Raises ClosedError."""
        try:
            return self._pool.submit(work)
        except RuntimeError as error:
            raise ClosedError("the model was closed", do="Open the bundle again") from error

    def describe(self) -> list[dict[str, Any]]:
        return [
            {
                "url": host.client.url,
                "breaker": host.breaker.state,
                "p90_ms": host.learned.p90_ms,
                "busy": host.busy.state != "closed",
                "last_error": host.last_error,
            }
            for host in self._hosts
        ]

    def close(self) -> None:
        """Let what is on its way end by its deadline, start nothing new, leave no connection."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)
        for host in self._hosts:
            host.client.close()

    def _ask(self, host: _Host, items: Items, timeout_s: float) -> tuple[dict[str, NDArray[Any]], HostAnswer]:
        try:
            answer = host.client.infer({name: item[None] for name, item in items.items()}, timeout_s)
            outputs = {output.name: self._checked(output, answer, host) for output in self._outputs}
        except HostError as error:
            host.failed(error)
            raise
        host.answered(answer)
        return outputs, answer

    def _checked(self, output: OutputContract, answer: HostAnswer, host: _Host) -> NDArray[Any]:
        """One item's output as the contract has it, or HostError (host-protocol)."""
        value = answer.outputs.get(output.name)
        if value is None or value.shape != (1, *output.shape) or value.dtype != np.dtype(output.dtype):
            got = "nothing" if value is None else f"{value.dtype} {list(value.shape)}"
            raise HostError(
                f"output '{output.name}' came as {got}, not as {output.dtype} {[1, *output.shape]}",
                where=host.client.url,
                code="host-protocol",
            )
        item: NDArray[Any] = value[0]
        return item

    def _measure(self, host: _Host) -> None:
        """Send the probe in the background, one at a time a host, where the breaker lets it."""
        if self._closed or not host.probing.acquire(blocking=False):
            return
        if not host.may_probe():
            host.probing.release()
            return
        try:
            self._pool.submit(self._send_probe, host).add_done_callback(lambda _: host.probing.release())
        except RuntimeError:  # closed meanwhile
            host.probing.release()

    def _send_probe(self, host: _Host) -> None:
        with contextlib.suppress(HostError):  # the breaker has counted it
            probe = {name: self._varied(item, self._free[name]) for name, item in self._probe.items()}
            self._ask(host, probe, PROBE_TIMEOUT_S)

    def _varied(self, item: NDArray[Any], free: Sequence[np.dtype[Any]]) -> NDArray[Any]:
        """The item with the last bits of its first values drawn at random; integers that may be indexes stay as they
        are.
        """
        varied = np.array(item)
        first = varied.reshape(-1)[:32]
        if varied.dtype.kind == "f":
            first[:] = np.nextafter(first, first.dtype.type(0), where=self._random.random(first.size) < 0.5, out=first)
        elif varied.dtype in free:
            first ^= self._random.integers(0, 2, first.size, np.uint8)
        return varied
