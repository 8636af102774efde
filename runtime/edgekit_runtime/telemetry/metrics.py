"""A process's model metrics as a Prometheus page (format 0.0.4), and its server.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from edgekit_runtime.system.closing import ClosedOnExit
from edgekit_runtime.system.errors import MetricsError
from edgekit_runtime.system.threads import begin
from edgekit_runtime.telemetry.histogram import CountedWindow, Histogram

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_OCTAVES = range(-7, 15)
"""Bounds of the buckets: 2^-7 ms (7.8 us) to 2^14 ms (16 s)."""
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
_PARTS = ("cache", "meter", "telemetry")
_SOURCES = ("device", "cache", "similar", "host", "stale", "degraded")

Labels = Mapping[str, str]
Pages = Mapping[str, tuple[str, Callable[[], "str | Iterable[bytes]"]]]
Sample = tuple[str, Labels, float]
"""suffix after the family's name (_bucket of a histogram), labels, value."""


@dataclass(frozen=True)
class ModelMetrics:
    """One model as the page shows it.

    counted: by its meter since it was made.
    info: name to text, shown as labels (recipe, engine, ...).
    queued: requests waiting now.
    batches: size -> how many batches of that size ran.
    caches: tier -> its stats, as MemoryStats; empty without a cache.
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
    caches: Mapping[str, object] = field(default_factory=dict)
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
    return "".join(
        _family(
            name, kind, meaning, [(end, {**base, **more}, n) for base, one in named for end, more, n in samples(one)]
        )
        for name, kind, meaning, samples in _FAMILIES
    )


def family_text(
    name: str, kind: Literal["counter", "gauge"], meaning: str, samples: Sequence[tuple[Labels, float]]
) -> str:
    """One metric family, for counts other than those of models."""
    return _family(name, kind, meaning, [("", labels, value) for labels, value in samples])


def histogram_text(
    name: str, meaning: str, samples: Sequence[tuple[Labels, Sequence[tuple[float, int]], int, float]]
) -> str:
    """One histogram of a page.

    samples: labels, (bound, how many at most that) by bound, how many, their sum.
    """
    return _family(name, "histogram", meaning, [line for sample in samples for line in _histogram(*sample)])


def _family(name: str, kind: str, meaning: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP {name} {_escaped(meaning, quotes=False)}", f"# TYPE {name} {kind}"]
    for suffix, labels, value in samples:
        pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        lines.append(f"{name}{suffix}{{{pairs}}} {value if isinstance(value, int) else repr(float(value))}")
    return "\n".join(lines) + "\n"


def _escaped(text: str, *, quotes: bool = True) -> str:
    """As the format wants it: backslash and line feed, and in a label's value the quote."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _histogram(labels: Labels, bounds: Iterable[tuple[float, int]], count: int, total: float) -> Iterator[Sample]:
    for bound, n in bounds:
        yield "_bucket", {**labels, "le": repr(bound)}, n
    yield "_bucket", {**labels, "le": "+Inf"}, count
    yield "_sum", labels, total
    yield "_count", labels, count


def _by(label: str, figures: Mapping[str, float]) -> Iterator[Sample]:
    """A sample for each value of a label."""
    return (("", {label: value}, n) for value, n in figures.items())


def _of_caches(figure: str, *but: str) -> Callable[[ModelMetrics], Iterator[Sample]]:
    """A sample for each tier. but: those that do not count this."""
    return lambda m: _by("tier", {t: getattr(stats, figure) for t, stats in m.caches.items() if t not in but})


def _latencies(label: str, histograms: Mapping[str, Histogram]) -> Iterator[Sample]:
    for value, histogram in histograms.items():  # milliseconds in, seconds out
        bounds = ((2.0**octave / 1e3, histogram.at_most(octave)) for octave in _OCTAVES)
        yield from _histogram({label: value}, bounds, histogram.count, histogram.total / 1e3)


def _batch_sizes(batches: Mapping[int, int]) -> Iterator[Sample]:
    bounds = ((bound, sum(n for size, n in batches.items() if size <= bound)) for bound in _BATCHES)
    return _histogram({}, bounds, sum(batches.values()), sum(size * n for size, n in batches.items()))


_FAMILIES: tuple[tuple[str, str, str, Callable[[ModelMetrics], Iterable[Sample]]], ...] = (
    ("edgekit_model_info", "gauge", "The running model: always 1, described by its labels.",
        lambda m: [("", m.info, 1)]),
    ("edgekit_healthy", "gauge", "1 while the engine answers, 0 when it hangs or died.",
        lambda m: [("", {}, int(m.healthy))]),
    ("edgekit_engine_restarts_total", "counter", "Times the engine's own process was started again.",
        lambda m: [] if m.restarts is None else [("", {}, m.restarts)]),
    ("edgekit_faults_total", "counter", "Exceptions of the cache, the meter or telemetry; requests were answered.",
        lambda m: _by("part", {**dict.fromkeys(_PARTS, 0), **m.faults})),
    ("edgekit_requests_total", "counter", "Requests answered, by where the answer came from.",
        lambda m: _by("source", dict.fromkeys(_SOURCES, 0) | {by: one.count for by, one in m.counted.answers.items()})),
    ("edgekit_errors_total", "counter", "Requests that got no answer, by the error's code.",
        lambda m: _by("code", m.counted.errors)),
    ("edgekit_budget_total", "counter", "Requests with a budget: answered within it, beyond it, or refused.",
        lambda m: _by("outcome", {
            "met": m.counted.met, "missed": m.counted.over_budget, "refused": m.counted.refused})),
    ("edgekit_frames_dropped_total", "counter", "Frames of a camera that a newer one replaced.",
        lambda m: [("", {}, m.counted.dropped)]),
    ("edgekit_host_compared_total", "counter", "Hosts' answers that the device gave, too: within tolerance or not.",
        lambda m: _by("outcome", {
            "agreed": m.counted.compared - m.counted.differed, "differed": m.counted.differed})),
    ("edgekit_latency_seconds", "histogram", "From the caller's call to the caller's answer.",
        lambda m: _latencies("source", m.counted.answers)),
    ("edgekit_stage_seconds", "histogram", "What answers took in each stage that they went through.",
        lambda m: _latencies("stage", m.counted.stages)),
    ("edgekit_queued_requests", "gauge", "Requests that wait for the engine now.", lambda m: [("", {}, m.queued)]),
    ("edgekit_batch_size", "histogram", "Requests that ran together in one inference.",
        lambda m: _batch_sizes(m.batches)),
    ("edgekit_cache_hits_total", "counter", "Lookups that found an answer.", _of_caches("hits")),
    ("edgekit_cache_misses_total", "counter", "Lookups that found none.", _of_caches("misses")),
    ("edgekit_cache_refused_total", "counter", "Stored answers refused: damaged, or of another writer.",
        _of_caches("refused", "memory")),
    ("edgekit_cache_entries", "gauge", "Answers kept now.", _of_caches("entries", "shared")),
    ("edgekit_cache_bytes", "gauge", "Bytes that the kept answers take.", _of_caches("bytes", "shared")),
    ("edgekit_input_values_total", "counter", "Input values looked at: of a sample of the requests, some.",
        lambda m: [("", {}, m.counted.values)]),
    ("edgekit_input_values_clipped_total", "counter", "Of these, values at the limits of the artifact's 8 bits.",
        lambda m: [("", {}, m.counted.clipped)]),
)  # fmt: skip


class MetricsSource(Protocol):
    """What this module needs of a model."""

    def metrics_text(self) -> str: ...
    def close_with(self, companion: PageServer) -> None: ...


def serve_metrics(of: MetricsSource | Callable[[], str], port: int = 0) -> PageServer:
    """Serve the page on http://127.0.0.1:PORT/metrics until `close` or the model's end.

    of: a model, or a function that makes the page.
    port: 0 for any that is free.

    Raises MetricsError, ClosedError for a closed model, ValueError for another `of` or `port`.
    """
    if not isinstance(port, int) or isinstance(port, bool):
        raise ValueError(f"port must be a whole number, not {port!r:.40}")  # noqa: TRY004 - as all options
    if not callable(of) and not hasattr(of, "metrics_text"):
        raise ValueError(f"of must be a model or a function, not {of!r:.40}")
    server = PageServer({"/metrics": (CONTENT_TYPE, of if callable(of) else of.metrics_text)}, port)
    if callable(of):
        return server
    try:
        of.close_with(server)
    except BaseException:
        server.close()
        raise
    return server


class PageServer(ClosedOnExit["PageServer"]):
    """A small HTTP server in its own thread: GET and HEAD of its pages; 404 for anything else.

    pages: path -> content type, and what makes the page: text, or parts that are sent as they come.
    local: refuse a request by another name than this machine's own, which a foreign site could have rebound to it.
    """

    def __init__(self, pages: Pages, port: int = 0, *, local: bool = False) -> None:
        try:
            self._server = _bound(pages, port, local)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise MetricsError(
                f"cannot listen there: {why}", where=f"127.0.0.1:{port}", do="Take another port, or 0 for any"
            ) from error
        from socket import socketpair

        self.url = f"http://127.0.0.1:{self.port}{next(iter(pages))}"
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

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._end.close()
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)


def _bound(pages: Pages, port: int, local: bool) -> ThreadingHTTPServer:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Page(BaseHTTPRequestHandler):
        timeout = 5.0  # a client that says nothing holds its thread no longer
        server_version, sys_version = "edgekit", ""

        def do_GET(self) -> None:
            kind, make = pages.get(self.path.split("?")[0], ("", None))
            if make is None:
                self.send_error(404, f"The page is {next(iter(pages))}")
                return
            if local and self.headers.get("Host", "").partition(":")[0] not in ("127.0.0.1", "localhost"):
                self.send_error(421)
                return
            try:
                body = make()
            except Exception as error:  # noqa: BLE001 - the next scrape may do better, and this one gets the error
                self.send_error(500, type(error).__name__)
                return
            parts = [body.encode()] if isinstance(body, str) else body
            self.send_response(200)
            self.send_header("Content-Type", kind)
            if isinstance(parts, list):
                self.send_header("Content-Length", str(len(parts[0])))
            self.end_headers()
            for part in parts if self.command != "HEAD" else ():
                self.wfile.write(part)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Scrapes are not logged."""

    class Listener(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        timeout = 0.0  # it is asked to look for a client when there is one

        def handle_error(self, *_: object) -> None:
            """Ignore a client that went away."""

    return Listener(("127.0.0.1", port), Page)
