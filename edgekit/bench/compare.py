"""Compare two records of `edgekit bench`, unless their conditions differ.

    comparison = compare(read_record(Path("before.json")), found)
    comparison.refused          # conditions that differ: no ratios then
    comparison.ratios           # p50_ms: 0.81, beyond the noise

Rules:
- subjects may differ: build, recipe, engine, its version and threads, cache and batching. Everything else is a
  condition; one that differs, or that one record lacks, refuses the comparison by name;
- models are different, and not compared, if neither the name nor the contract is the same;
- a run on a throttled machine is compared with nothing;
- what a run was too short to measure is not compared;
- a ratio whose two ranges overlap is noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from edgekit.bench.conditions import LEAST_S
from edgekit_runtime.system.errors import BundleError, EdgekitError
from edgekit_runtime.system.files import read_regular
from edgekit_runtime.system.strict_json import from_json, strict_json

_MOST = 1 << 24
_MODEL = ("model", "contract_digest")
_SUBJECTS = ("model", "bundle", "bundle_digest", "recipe", "engine", "engine_version", "threads")
_MACHINE = ("cpu", "cores", "machine", "system", "governor", "python", "numpy")
_SETUP = ("cache", "batch")
_LOAD = ("loop", "concurrency", "rate_per_s", "arrivals", "budget_ms")
_FIGURES = ("p50_ms", "p95_ms", "p99_ms", "throughput_per_s")
_ONCE = ("first_ms", "ready_ms", "cold_start_ms", "cold_rss_mb", "peak_rss_mb")
OTHERS_CPU = 0.15
"""By how much the share of the machine that other processes took may differ."""
FREQUENCY = 0.05
"""By how much the mean clock may differ."""


class ConditionsDifferError(EdgekitError):
    """Two runs cannot be compared, known before the second one."""

    code = "conditions-differ"


class RecordError(EdgekitError):
    """Not a record of `edgekit bench --json`."""

    code = "bench-record"


@dataclass(frozen=True)
class RecordDifference:
    """then, now: the values; None if unknown."""

    name: str
    then: Any
    now: Any

    def __str__(self) -> str:
        unknown = "none" if self.name in _LOAD else "not known"
        most = 12 if self.name == "bundle_digest" else None
        return f"{self.name}: {_show(self.then, unknown)[:most]} then, {_show(self.now, unknown)[:most]} now"


@dataclass(frozen=True)
class Ratio:
    """now / then.

    then_spread, now_spread: [low, high], or None
    verdict: `noise` if the ranges overlap, `unknown` without ranges
    """

    name: str
    then: float
    now: float
    ratio: float
    then_spread: list[float] | None
    now_spread: list[float] | None
    verdict: Literal["better", "worse", "noise", "unknown"]


@dataclass(frozen=True)
class BenchComparison:
    """refused: conditions that differ. subjects: what was compared. ratios: empty if refused."""

    refused: list[RecordDifference]
    subjects: list[RecordDifference]
    ratios: list[Ratio]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Clock:
    mean: float | None = None


@dataclass(frozen=True)
class _TimedConditions:
    frequency_mhz: _Clock | None = None
    others_cpu: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class _Conditions:
    during: _TimedConditions | None = None


@dataclass(frozen=True)
class _BenchRecord:
    """The figures that `compare` reads."""

    conditions: _Conditions
    load: dict[str, Any]
    spread: dict[str, tuple[float, float]] | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    throughput_per_s: float | None = None
    first_ms: float | None = None
    ready_ms: float | None = None
    cold_start_ms: float | None = None
    cold_rss_mb: float | None = None
    peak_rss_mb: float | None = None


def read_record(path: Path) -> dict[str, Any]:
    """Raises RecordError. Figures may be missing, but not of another type."""
    do = "Make one: edgekit bench BUNDLE -o RECORD.json"
    try:
        value: dict[str, Any] = strict_json(read_regular(path, _MOST))
        from_json(_BenchRecord, value, "the record", nulls=True)
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror or error}", where=str(path), do=do) from error
    except (BundleError, ValueError) as error:
        what = error.what if isinstance(error, BundleError) else error
        raise RecordError(f"is not a record of edgekit bench: {what}", where=str(path), do=do) from error
    return value


def known_before(old: Mapping[str, Any], machine: Mapping[str, Any], load: Mapping[str, Any]) -> list[RecordDifference]:
    """Differences known before anything is timed: the machine's and the load's."""
    found = [RecordDifference(name, old["conditions"].get(name), machine.get(name)) for name in _MACHINE]
    found += [RecordDifference(name, old["load"].get(name), load.get(name)) for name in _LOAD]
    return [one for one in found if one.then != one.now]


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> BenchComparison:
    """old, new: as `measure` makes them."""
    subjects = [RecordDifference(name, old.get(name), new.get(name)) for name in _SUBJECTS]
    subjects += [RecordDifference(name, old["load"].get(name), new["load"].get(name)) for name in _SETUP]
    models = [RecordDifference(name, old.get(name), new.get(name)) for name in _MODEL]
    different = all(None not in (one.then, one.now) and one.then != one.now for one in models)
    refused = [*(models[:1] if different else []), *known_before(old, new["conditions"], new["load"])]
    refused += _differences_during(old["conditions"], new["conditions"])
    ratios = [] if refused else [r for name in (*_FIGURES, *_ONCE) if (r := _ratio(name, old, new)) is not None]
    return BenchComparison(refused, [one for one in subjects if one.then != one.now], ratios)


def _differences_during(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[RecordDifference]:
    """Differences of what varies during a run: throttling, clock, other processes."""
    then, now = old.get("during") or {}, new.get("during") or {}
    found = []
    if then.get("throttled") or now.get("throttled"):
        found.append(RecordDifference("throttled", then.get("throttled_by"), now.get("throttled_by")))
    comparable = not _too_short(then) and not _too_short(now)
    if comparable and _differ(then.get("others_cpu"), now.get("others_cpu"), lambda a, b: abs(a - b) > OTHERS_CPU):
        found.append(RecordDifference("others_cpu", then.get("others_cpu"), now.get("others_cpu")))
    if _differ(_mean_clock(then), _mean_clock(now), lambda a, b: abs(b / a - 1) > FREQUENCY):
        found.append(RecordDifference("frequency_mhz", _mean_clock(then), _mean_clock(now)))
    return found


def _too_short(during: Mapping[str, Any]) -> bool:
    return during.get("seconds") is not None and during["seconds"] < LEAST_S


def _differ(then: float | None, now: float | None, far: Callable[[float, float], bool]) -> bool:
    """Whether two figures are far from each other, or only one of them is known."""
    return then is not now if then is None or now is None else far(then, now)


def _mean_clock(during: Mapping[str, Any]) -> float | None:
    mean = (during.get("frequency_mhz") or {}).get("mean")
    return float(mean) if mean else None


def _ratio(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Ratio | None:
    then, now = old.get(name), new.get(name)
    if then is None or now is None or not then > 0:
        return None
    spreads: tuple[Any, Any] = (old.get("spread") or {}).get(name), (new.get("spread") or {}).get(name)
    verdict: Literal["better", "worse", "noise", "unknown"] = "unknown"
    if None not in spreads:
        apart = spreads[0][1] < spreads[1][0] or spreads[1][1] < spreads[0][0]
        better = (now > then) if name == "throughput_per_s" else (now < then)
        verdict = "noise" if not apart else "better" if better else "worse"
    return Ratio(name, then, now, now / then, *spreads, verdict)


def _show(value: Any, unknown: str) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "no"
    return unknown if value is None else str(value)
