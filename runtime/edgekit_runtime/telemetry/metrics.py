"""The figures of a process's models as a Prometheus page (format 0.0.4), and its server.

    print(metrics_text([measured]))                     # one page for any number of models
    with serve_metrics(model, port=9400) as server:     # or any function that makes the page
        print(server.url)                               # http://127.0.0.1:9400/metrics

Rules:
- names carry their unit, in base units: seconds and bytes, not milliseconds;
- bounds of latency buckets are powers of two of a millisecond, which are bounds of the meter's buckets too: every count
  is exact;
- counters start at zero and are there before the first request, as far as their labels are known. No input, file name
  or class label is on the page;
- a page is made on request, in the server's thread; what a server needs is imported at the first use;
- on loopback only; a proxy with a password may show it elsewhere;
- when `model.close()` returns, the port is free. A client that is silent, goes away or asks for something else does no
  harm.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol

from edgekit_runtime.system.errors import MetricsError
from edgekit_runtime.system.threads import begin
from edgekit_runtime.telemetry.histogram import Histogram
from edgekit_runtime.telemetry.meter import CountedWindow

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_OCTAVES = range(-7, 15)
"""Bounds of the buckets: 2^-7 ms (7.8 us) to 2^14 ms (16 s)."""
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
_PARTS = ("cache", "meter", "telemetry")
_SOURCES = ("device", "cache", "similar", "host", "stale", "degraded")

Labels = Mapping[str, str]


@dataclass(frozen=True)
class CacheFigures:
    """One tier of the cache, counted since it was opened. entries, bytes: now, None if unknown."""

    hits: int
    misses: int
    entries: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class ModelMetrics:
    """One model as the page shows it.

    counted: by its meter since it was made.
    info: name to text, shown as labels (recipe, engine, ...).
    queued: requests waiting now.
    batches: size -> how many batches of that size ran.
    caches: tier -> its figures; empty without a cache.
    healthy: whether the engine answers.
    restarts: of the engine's own process, None if it has none.
    faults: part -> exceptions despite which requests were answered.
    """

    model: str
    version: str
    counted: CountedWindow
    info: Mapping[str, str] = field(default_factory=dict)
    queued: int = 0
    batches: Mapping[int, int] = field(default_factory=dict)
    caches: Mapping[str, CacheFigures] = field(default_factory=dict)
    healthy: bool = True
    restarts: int | None = None
    faults: Mapping[str, int] = field(default_factory=dict)


def metrics_text(models: Sequence[ModelMetrics]) -> str:
    """The page. Two models of one name and version are distinguished by a label `copy`."""
    named: list[tuple[Labels, ModelMetrics]] = []
    seen: Counter[tuple[str, str]] = Counter()
    for measured in models:
        seen[measured.model, measured.version] += 1
        copy = seen[measured.model, measured.version]
        labels = {"model": measured.model, "version": measured.version}
        named.append((labels if copy == 1 else {**labels, "copy": str(copy)}, measured))
    lines: list[str] = []
    for family in _FAMILIES:
        lines += _head(family.name, family.kind, family.help)
        for base, measured in named:
            lines += [_line(family.name, base, sample) for sample in family.samples(measured)]
    return "\n".join(lines) + "\n"


def family_text(
    name: str, kind: Literal["counter", "gauge"], meaning: str, samples: Sequence[tuple[Labels, float]]
) -> str:
    """One family of a page, for what a process counts besides its models."""
    lines = [*_head(name, kind, meaning), *(_line(name, labels, _Sample({}, value)) for labels, value in samples)]
    return "\n".join(lines) + "\n"


def histogram_text(
    name: str, meaning: str, samples: Sequence[tuple[Labels, Sequence[tuple[float, int]], int, float]]
) -> str:
    """One histogram of a page.

    samples: labels, (bound, how many at most that) by bound, how many, their sum.
    """
    lines = _head(name, "histogram", meaning)
    for labels, bounds, count, total in samples:
        for bound, n in bounds:
            lines.append(_line(name, labels, _Sample({"le": repr(float(bound))}, n, "_bucket")))
        lines.append(_line(name, labels, _Sample({"le": "+Inf"}, count, "_bucket")))
        lines.append(_line(name, labels, _Sample({}, total, "_sum")))
        lines.append(_line(name, labels, _Sample({}, count, "_count")))
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Sample:
    """suffix: after the family's name, as _bucket of a histogram."""

    labels: Labels
    value: float
    suffix: str = ""


@dataclass(frozen=True)
class _Family:
    name: str
    kind: str
    help: str
    samples: Callable[[ModelMetrics], Iterator[_Sample]]


def _one(figure: Callable[[ModelMetrics], float | None]) -> Callable[[ModelMetrics], Iterator[_Sample]]:
    """One sample without labels; none for None."""

    def samples(measured: ModelMetrics) -> Iterator[_Sample]:
        value = figure(measured)
        if value is not None:
            yield _Sample({}, value)

    return samples


def _by(
    label: str, figures: Callable[[ModelMetrics], Mapping[str, float]]
) -> Callable[[ModelMetrics], Iterator[_Sample]]:
    """A sample for each value of a label."""
    return lambda measured: (_Sample({label: value}, n) for value, n in figures(measured).items())


def _of_caches(figure: Callable[[CacheFigures], int | None]) -> Callable[[ModelMetrics], Iterator[_Sample]]:
    def figures(measured: ModelMetrics) -> Mapping[str, float]:
        found = {tier: figure(figures) for tier, figures in measured.caches.items()}
        return {tier: value for tier, value in found.items() if value is not None}

    return _by("tier", figures)


def _histograms(
    label: str, histograms: Callable[[ModelMetrics], Mapping[str, Histogram]]
) -> Callable[[ModelMetrics], Iterator[_Sample]]:
    def samples(measured: ModelMetrics) -> Iterator[_Sample]:
        for value, histogram in histograms(measured).items():
            labels = {label: value}
            for octave in _OCTAVES:  # milliseconds in, seconds out
                yield _Sample({**labels, "le": repr(2.0**octave / 1e3)}, histogram.at_most(octave), "_bucket")
            yield _Sample({**labels, "le": "+Inf"}, histogram.count, "_bucket")
            yield _Sample(labels, histogram.total / 1e3, "_sum")
            yield _Sample(labels, histogram.count, "_count")

    return samples


def _batch_sizes(measured: ModelMetrics) -> Iterator[_Sample]:
    for bound in _BATCHES:
        yield _Sample({"le": str(bound)}, sum(n for size, n in measured.batches.items() if size <= bound), "_bucket")
    ran = sum(measured.batches.values())
    yield _Sample({"le": "+Inf"}, ran, "_bucket")
    yield _Sample({}, sum(size * n for size, n in measured.batches.items()), "_sum")
    yield _Sample({}, ran, "_count")


_FAMILIES = (
    _Family("edgekit_model_info", "gauge", "The running model: always 1, described by its labels.",
        lambda m: iter([_Sample(m.info, 1)])),
    _Family("edgekit_healthy", "gauge", "1 while the engine answers, 0 when it hangs or died.",
        _one(lambda m: int(m.healthy))),
    _Family("edgekit_engine_restarts_total", "counter", "Times the engine's own process was started again.",
        _one(lambda m: m.restarts)),
    _Family(
        "edgekit_faults_total", "counter", "Exceptions of the cache, the meter or telemetry; requests were answered.",
        _by("part", lambda m: {**dict.fromkeys(_PARTS, 0), **m.faults})
    ),
    _Family("edgekit_requests_total", "counter", "Requests answered, by where the answer came from.",
        _by("source", lambda m: dict.fromkeys(_SOURCES, 0) | {by: one.count for by, one in m.counted.answers.items()})),
    _Family("edgekit_errors_total", "counter", "Requests that got no answer, by the error's code.",
        _by("code", lambda m: m.counted.errors)),
    _Family(
        "edgekit_budget_total", "counter", "Requests with a budget: answered within it, beyond it, or refused.",
        _by("outcome", lambda m: {"met": m.counted.met, "missed": m.counted.over_budget, "refused": m.counted.refused})
    ),
    _Family(
        "edgekit_host_compared_total", "counter", "Hosts' answers that the device gave, too: within tolerance or not.",
        _by("outcome", lambda m: {"agreed": m.counted.compared - m.counted.differed, "differed": m.counted.differed})
    ),
    _Family("edgekit_latency_seconds", "histogram", "From the caller's call to the caller's answer.",
        _histograms("source", lambda m: m.counted.answers)),
    _Family("edgekit_stage_seconds", "histogram", "What answers took in each stage that they went through.",
        _histograms("stage", lambda m: m.counted.stages)),
    _Family("edgekit_queued_requests", "gauge", "Requests that wait for the engine now.", _one(lambda m: m.queued)),
    _Family("edgekit_batch_size", "histogram", "Requests that ran together in one inference.", _batch_sizes),
    _Family("edgekit_cache_hits_total", "counter", "Lookups that found an answer.", _of_caches(lambda c: c.hits)),
    _Family("edgekit_cache_misses_total", "counter", "Lookups that found none.", _of_caches(lambda c: c.misses)),
    _Family("edgekit_cache_entries", "gauge", "Answers kept now.", _of_caches(lambda c: c.entries)),
    _Family("edgekit_cache_bytes", "gauge", "Bytes that the kept answers take.", _of_caches(lambda c: c.bytes)),
    _Family("edgekit_input_values_total", "counter", "Input values looked at: of a sample of the requests, some.",
        _one(lambda m: m.counted.values)),
    _Family(
        "edgekit_input_values_clipped_total", "counter", "Of these, values at the limits of the artifact's 8 bits.",
        _one(lambda m: m.counted.clipped)
    ),
)  # fmt: skip


def _head(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {_escaped(meaning, quotes=False)}", f"# TYPE {name} {kind}"]


def _line(name: str, base: Labels, sample: _Sample) -> str:
    labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in {**base, **sample.labels}.items())
    value = sample.value if isinstance(sample.value, int) else repr(float(sample.value))
    return f"{name}{sample.suffix}{{{labels}}} {value}"


def _escaped(text: str, *, quotes: bool = True) -> str:
    """As the format wants it: backslash and line feed, and in a label's value the quote."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


class MetricsSource(Protocol):
    """What this module needs of a model."""

    def metrics_text(self) -> str: ...
    def close_with(self, companion: MetricsServer) -> None: ...


def serve_metrics(of: MetricsSource | Callable[[], str], port: int = 0) -> MetricsServer:
    """Serve the page on http://127.0.0.1:PORT/metrics until `close` or the model's end.

    of: a model, or a function that makes the page.
    port: 0 for any that is free.

    Raises MetricsError, ClosedError for a closed model, ValueError for another `of` or `port`.
    """
    if not isinstance(port, int) or isinstance(port, bool):
        raise ValueError(f"port must be a whole number, not {port!r:.40}")  # noqa: TRY004 - as all options
    if not callable(of) and not hasattr(of, "metrics_text"):
        raise ValueError(f"of must be a model or a function, not {of!r:.40}")
    if callable(of):
        return MetricsServer(of, port)
    server = MetricsServer(of.metrics_text, port)
    try:
        of.close_with(server)
    except BaseException:
        server.close()
        raise
    return server


class MetricsServer:
    """A small HTTP server in its own thread: GET and HEAD of /metrics; anything else is 404."""

    def __init__(self, text: Callable[[], str], port: int = 0) -> None:
        try:
            self._server = _bound(text, port)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise MetricsError(
                f"cannot listen there: {why}", where=f"127.0.0.1:{port}", do="Take another port, or 0 for any"
            ) from error
        from socket import socketpair

        self._ended, self._end = socketpair()
        self._thread = threading.Thread(target=self._serve, name="edgekit-metrics", daemon=True)
        begin(self._thread)

    def _serve(self) -> None:
        import selectors

        with self._server, self._ended, selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._ended, selectors.EVENT_READ)
            while not any(key.fileobj is self._ended for key, _ in selector.select()):
                self._server.handle_request()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._end.close()
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _bound(text: Callable[[], str], port: int) -> ThreadingHTTPServer:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Page(BaseHTTPRequestHandler):
        timeout = 5.0  # a client that says nothing holds its thread no longer
        server_version, sys_version = "edgekit", ""

        def do_GET(self) -> None:
            if self.path.split("?")[0] != "/metrics":
                self.send_error(404, "The page is /metrics")
                return
            try:
                body = text().encode()
            except Exception as error:  # noqa: BLE001 - the next scrape may do better, and this one gets the error
                self.send_error(500, type(error).__name__)
                return
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """A board's log is no place for scrapes."""

    class PageServer(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        timeout = 0.0  # it is asked to look for a client when there is one

        def handle_error(self, *_: object) -> None:
            """Ignore a client that went away."""

    return PageServer(("127.0.0.1", port), Page)
