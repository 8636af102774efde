"""The hosts of a model, each with its client, circuit breaker and measurements.

    hosts = Hosts(["http://gpu-box:8000"], manifest, example)
    decision = decide(left_ms, device, hosts.outlooks(size=150_528))
    if decision.destination == "host":
        outputs, answer = hosts.infer(decision.host, {"image": pixels}, left_s)      # HostError

Rules:
- a host is ready once one of the bundle's examples came back within tolerance, when the model opens and after the host
  was gone (`RemoteModel.proven`). Its last bits differ each time, so that the host computes and no cache answers;
- probes (see `host_record`) run in parallel to the requests and are never one of them. CONNECTIONS exchanges at most
  run at once;
- a host that serves another model, version or contract is never asked;
- closing leaves no thread: every exchange ends by its own deadline.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from numpy.typing import NDArray

from edgekit_runtime.policy.budget import HostOutlook
from edgekit_runtime.remote.host_record import HostRecord, SentRequest, Step
from edgekit_runtime.system.errors import HostError, model_closed

if TYPE_CHECKING:
    from edgekit_runtime.bundle.manifest import Manifest
    from edgekit_runtime.engines.llamacpp import Way
    from edgekit_runtime.loading.replay import ReplayExample
    from edgekit_runtime.policy.options import Host
    from edgekit_runtime.remote.client import HostAnswer
    from edgekit_runtime.remote.openai import OpenAiModel, OpenAiStream
    from edgekit_runtime.remote.remote_model import RemoteModel

T = TypeVar("T")
Items = Mapping[str, NDArray[Any]]
CONNECTIONS = 64
"""The most exchanges at once, of all hosts together; threads and connections are made on demand."""
TEXT_PROBE_S = 10.0
"""A server that writes for others begins late, and is there all the same: its probes wait so long."""
Clock = Callable[[], float]


class _HostEntry:
    """artifact: digest of the model file that answered last, None before the first answer."""

    def __init__(self, model: RemoteModel | OpenAiModel, clock: Clock) -> None:
        self.model = model
        self.record = HostRecord(clock)
        self.probing = threading.Lock()
        self.last_error = ""
        self.artifact: str | None = None

    def outlook(self, size: int) -> HostOutlook:
        known = self.record.outlook(size)
        return known if self.model.proven else replace(known, ready=False)

    def exchange(
        self, size: int, ask: Callable[[], tuple[T, HostAnswer]], wanted_s: float = math.inf
    ) -> tuple[T, HostAnswer]:
        """Run an inference and record its outcome. wanted_s: how long a caller waits."""
        with self.recorded(size, wanted_s) as sent:
            outputs, answer = ask()
        self.last_error, self.artifact = "", answer.artifact
        said = answer.queue_ms is not None or answer.infer_ms is not None
        self.record.answered(sent, answer.total_ms, answer.total_ms - answer.network_ms if said else None)
        return outputs, answer

    def ping(self, timeout_s: float) -> None:
        with self.recorded(0, timeout_s) as sent:
            ms = self.model.ping(timeout_s)
        self.record.answered(sent, ms)

    @contextlib.contextmanager
    def recorded(self, size: int, wanted_s: float) -> Iterator[SentRequest]:
        """A request whose failure is recorded; the caller records its answer."""
        sent = self.record.sent(size, wanted_s)
        try:
            yield sent
        except BaseException as error:
            self.last_error, code = str(error), error.code if isinstance(error, HostError) else "host"
            if code == "host-golden":  # what it answered before may be wrong, too, where it is kept
                self.artifact = None
            self.record.lost(sent, code)
            raise


class Hosts:
    """Thread-safe.

    manifest: of the device's bundle.
    example: measures the hosts, and proves their model.
    """

    def __init__(
        self, hosts: Sequence[Host | str], manifest: Manifest, example: ReplayExample, clock: Clock = time.monotonic
    ) -> None:
        kind: type[RemoteModel | OpenAiModel]
        if manifest.contract.task == "generation":
            from edgekit_runtime.remote.openai import OpenAiModel

            kind = OpenAiModel
        else:
            from edgekit_runtime.remote.remote_model import RemoteModel

            kind = RemoteModel
        self._hosts = [
            _HostEntry(kind(host, manifest, example, clock, connections=CONNECTIONS + 1), clock) for host in hosts
        ]
        self._probe_size = _size(example.items)
        self._least_probe_s = TEXT_PROBE_S if manifest.contract.task == "generation" else 0.0
        self._closed = False
        self._pool = ThreadPoolExecutor(CONNECTIONS + len(self._hosts), thread_name_prefix="edgekit-host")
        for host in self._hosts:
            self._measure(host)

    def outlooks(self, size: int | None) -> tuple[HostOutlook, ...]:
        """The outlook of each host for a request of `size` bytes; () for one that must not travel."""
        return () if size is None else tuple(host.outlook(size) for host in self._hosts)

    def matter(self) -> None:
        """A request came that the device might not answer in time."""
        for host in self._hosts:
            host.record.matters()

    def look(self) -> None:
        """Probe the hosts that are due, in parallel to the request."""
        for host in self._hosts:
            self._measure(host)

    @property
    def artifacts(self) -> tuple[str, ...]:
        """Digests of the model files that the hosts answered with last, without repetition."""
        return tuple(dict.fromkeys(host.artifact for host in self._hosts if host.artifact is not None))

    def infer(
        self, index: int, items: Items, left_s: float, late_s: float = 0.0
    ) -> tuple[dict[str, NDArray[Any]], HostAnswer]:
        """Ask one host about one item (no batch axis).

        late_s: how long to wait for an answer past its time.

        Raises HostError.
        """
        host = self._hosts[index]
        infer = cast("RemoteModel", host.model).infer
        return host.exchange(_size(items), lambda: infer(items, left_s, late_s), left_s)

    def generate(self, index: int, size: int, way: Way, body: Mapping[str, Any], left_s: float) -> OpenAiStream:
        """Ask one host for text; the stream once its first token is there.

        size: bytes of the prompt.

        Raises HostError.
        """
        host = self._hosts[index]
        ask = cast("OpenAiModel", host.model).open
        return host.exchange(size, lambda: ask(way, body, left_s), left_s)[0]

    def cut(self, index: int, size: int, error: HostError) -> None:
        """A stream of this host ended before its answer did: count it as lost."""
        host = self._hosts[index]
        with contextlib.suppress(HostError), host.recorded(size, 0.0):
            raise error

    def doubt(self, index: int) -> None:
        """The device answered differently a request that this host had answered."""
        self._hosts[index].record.doubt()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work`, which asks a host, in a thread of this pool. Raises ClosedError."""
        try:
            return self._pool.submit(work)
        except RuntimeError as error:
            raise model_closed() from error

    def describe(self) -> list[dict[str, Any]]:
        return [
            {
                "url": host.model.url,
                "breaker": host.record.breaker.state,
                "p90_ms": host.record.p90_ms,
                "proven": host.model.proven,
                "busy": host.record.busy.state != "closed",
                "last_error": host.last_error,
            }
            for host in self._hosts
        ]

    def close(self) -> None:
        """Let exchanges end by their deadline, start none, leave no connection."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)
        for host in self._hosts:
            host.model.close()

    def _measure(self, host: _HostEntry) -> None:
        """Probe in the background, one at a time for each host, if its breaker allows."""
        if self._closed or not host.probing.acquire(blocking=False):
            return
        steps = host.record.probe(proven=host.model.proven)
        if not steps:
            host.probing.release()
            return
        try:
            self._pool.submit(self._send_probe, host, steps).add_done_callback(lambda _: host.probing.release())
        except RuntimeError:  # closed meanwhile
            host.probing.release()

    def _send_probe(self, host: _HostEntry, steps: Sequence[Step]) -> None:
        patience_s = max(self._least_probe_s, host.record.probe_s)
        with contextlib.suppress(HostError):  # it is noted
            for step in steps:
                if step == "ping":
                    host.ping(patience_s)
                else:
                    host.exchange(self._probe_size, lambda: (None, host.model.prove(patience_s)), patience_s)


def _size(items: Items) -> int:
    return sum(item.nbytes for item in items.values())
