"""What the models of a process have done, as a page for Prometheus (text exposition format 0.0.4).

    print(metrics_text([measured]))                     # one page for any number of models

Rules:
- names carry their unit, in base units: seconds and bytes, not milliseconds;
- the bounds of the latency buckets are powers of two of a millisecond, which are bounds of the meter's own finer buckets
  too: every count is exact, and never estimated from a coarser one;
- what is counted starts at zero and is there before the first request, as far as its labels are known;
- no input, file name or class label is on the page, only counts, names and versions;
- nothing here runs while requests are answered: a page is made when it is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from edgekit_runtime.telemetry.histogram import Histogram
from edgekit_runtime.telemetry.meter import Cut

__all__ = ["CONTENT_TYPE", "CacheFigures", "Measured", "metrics_text"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_OCTAVES = range(-7, 15)
"""Bounds of the buckets: 2^-7 ms, which is 7.8 us, to 2^14 ms, which is 16 s."""
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
_PARTS = ("cache", "meter", "telemetry")
_SOURCES = ("device", "cache", "similar", "host", "stale")

Labels = Mapping[str, str]


@dataclass(frozen=True)
class CacheFigures:
    """One tier of the cache, counted since it was opened; bytes and entries are those it holds now."""

    hits: int
    misses: int
    entries: int
    bytes: int


@dataclass(frozen=True)
class Measured:
    """One model as the page shows it. counted: what its meter counted since it was made. info: name to text, shown as
    labels (recipe, engine, ...). queued: requests waiting now. batches: size -> how many batches of that size ran.
    caches: tier -> its figures; empty without a cache. healthy: whether the engine answers. restarts: of the engine's own
    process, None where it has none. faults: part -> exceptions without which requests were answered.
    """

    model: str
    version: str
    counted: Cut
    info: Mapping[str, str] = field(default_factory=dict)
    queued: int = 0
    batches: Mapping[int, int] = field(default_factory=dict)
    caches: Mapping[str, CacheFigures] = field(default_factory=dict)
    healthy: bool = True
    restarts: int | None = None
    faults: Mapping[str, int] = field(default_factory=dict)


def metrics_text(models: Sequence[Measured]) -> str:
    """The page. Two models of one name and version are told apart by a label `copy`."""
    named = list(zip(_labelled(models), models, strict=True))
    lines: list[str] = []
    for family in _FAMILIES:
        lines.append(f"# HELP {family.name} {_escaped(family.help, quotes=False)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for base, measured in named:
            lines += [_line(family.name, base, sample) for sample in family.samples(measured)]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Sample:
    """suffix: what follows the family's name, as _bucket of a histogram."""

    labels: Labels
    value: float
    suffix: str = ""


@dataclass(frozen=True)
class _Family:
    name: str
    kind: str
    help: str
    samples: Callable[[Measured], Iterator[_Sample]]


def _one(figure: Callable[[Measured], float | None]) -> Callable[[Measured], Iterator[_Sample]]:
    """One sample without labels; none for None."""

    def samples(measured: Measured) -> Iterator[_Sample]:
        value = figure(measured)
        if value is not None:
            yield _Sample({}, value)

    return samples


def _by(label: str, figures: Callable[[Measured], Mapping[str, float]]) -> Callable[[Measured], Iterator[_Sample]]:
    """A sample for each value of a label."""
    return lambda measured: (_Sample({label: value}, n) for value, n in figures(measured).items())


def _faults(measured: Measured) -> Mapping[str, float]:
    return {**dict.fromkeys(_PARTS, 0), **measured.faults}


def _requests(measured: Measured) -> Mapping[str, float]:
    answers = {source: histogram.count for source, histogram in measured.counted.answers.items()}
    return {**dict.fromkeys(_SOURCES, 0), **answers}


def _budget(measured: Measured) -> Mapping[str, float]:
    counted = measured.counted
    return {"met": counted.met, "missed": counted.over_budget, "refused": counted.refused}


def _of_caches(figure: Callable[[CacheFigures], int]) -> Callable[[Measured], Iterator[_Sample]]:
    return _by("tier", lambda measured: {tier: figure(figures) for tier, figures in measured.caches.items()})


def _histograms(
    label: str, histograms: Callable[[Measured], Mapping[str, Histogram]]
) -> Callable[[Measured], Iterator[_Sample]]:
    def samples(measured: Measured) -> Iterator[_Sample]:
        for value, histogram in histograms(measured).items():
            yield from _histogram({label: value}, histogram)

    return samples


def _histogram(labels: Labels, histogram: Histogram) -> Iterator[_Sample]:
    """Milliseconds in, seconds out."""
    for octave in _OCTAVES:
        yield _Sample({**labels, "le": repr(2.0**octave / 1e3)}, histogram.at_most(octave), "_bucket")
    yield _Sample({**labels, "le": "+Inf"}, histogram.count, "_bucket")
    yield _Sample(labels, histogram.total / 1e3, "_sum")
    yield _Sample(labels, histogram.count, "_count")


def _batch_sizes(measured: Measured) -> Iterator[_Sample]:
    for bound in _BATCHES:
        yield _Sample({"le": str(bound)}, sum(n for size, n in measured.batches.items() if size <= bound), "_bucket")
    ran = sum(measured.batches.values())
    yield _Sample({"le": "+Inf"}, ran, "_bucket")
    yield _Sample({}, sum(size * n for size, n in measured.batches.items()), "_sum")
    yield _Sample({}, ran, "_count")


_FAMILIES = (
    _Family("edgekit_model_info", "gauge", "What answers: always 1, the labels tell.", lambda m: iter([_Sample(m.info, 1)])),
    _Family("edgekit_healthy", "gauge", "1 while the engine answers, 0 when it hangs or died.", _one(lambda m: int(m.healthy))),
    _Family("edgekit_engine_restarts_total", "counter", "Times the engine's own process was started again.", _one(lambda m: m.restarts)),
    _Family(
        "edgekit_faults_total", "counter", "Exceptions of the cache, the meter or telemetry; requests were answered.", _by("part", _faults)
    ),
    _Family("edgekit_requests_total", "counter", "Requests answered, by where the answer came from.", _by("source", _requests)),
    _Family("edgekit_errors_total", "counter", "Requests that got no answer, by the error's code.", _by("code", lambda m: m.counted.errors)),
    _Family(
        "edgekit_budget_total", "counter", "Requests with a budget: answered within it, beyond it, or refused.", _by("outcome", _budget)
    ),
    _Family("edgekit_latency_seconds", "histogram", "From the caller's call to the caller's answer.", _histograms("source", lambda m: m.counted.answers)),
    _Family("edgekit_stage_seconds", "histogram", "What answers took in each stage that they went through.", _histograms("stage", lambda m: m.counted.stages)),
    _Family("edgekit_queued_requests", "gauge", "Requests that wait for the engine now.", _one(lambda m: m.queued)),
    _Family("edgekit_batch_size", "histogram", "Requests that ran together in one inference.", _batch_sizes),
    _Family("edgekit_cache_hits_total", "counter", "Lookups that found an answer.", _of_caches(lambda c: c.hits)),
    _Family("edgekit_cache_misses_total", "counter", "Lookups that found none.", _of_caches(lambda c: c.misses)),
    _Family("edgekit_cache_entries", "gauge", "Answers kept now.", _of_caches(lambda c: c.entries)),
    _Family("edgekit_cache_bytes", "gauge", "Bytes that the kept answers take.", _of_caches(lambda c: c.bytes)),
    _Family("edgekit_input_values_total", "counter", "Input values looked at: of a sample of the requests, some.", _one(lambda m: m.counted.values)),
    _Family(
        "edgekit_input_values_clipped_total", "counter", "Of these, values at the limits of the artifact's 8 bits.", _one(lambda m: m.counted.clipped)
    ),
)  # fmt: skip


def _labelled(models: Sequence[Measured]) -> Iterator[dict[str, str]]:
    seen: Counter[tuple[str, str]] = Counter()
    for measured in models:
        key = (measured.model, measured.version)
        seen[key] += 1
        labels = {"model": measured.model, "version": measured.version}
        yield labels if seen[key] == 1 else {**labels, "copy": str(seen[key])}


def _line(name: str, base: Labels, sample: _Sample) -> str:
    labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in {**base, **sample.labels}.items())
    value = sample.value if isinstance(sample.value, int) else repr(float(sample.value))
    return f"{name}{sample.suffix}{{{labels}}} {value}"


def _escaped(text: str, *, quotes: bool = True) -> str:
    """As the format wants it: backslash and line feed, and in a label's value the quote."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
