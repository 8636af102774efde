"""Timing a bundle the way an application uses it.
Through `predict` and `submit`, on the machine that it will run on.

conditions   the machine, and what became of it while something was timed
load         callers in a closed loop, arrivals in an open one
measure      one bundle under one load: what `edgekit bench --json` prints
compare      two of those, unless their conditions differ
"""

from __future__ import annotations

from edgekit.bench.compare import (
    BenchComparison,
    ConditionsDifferError,
    RecordDifference,
    RecordError,
    compare,
    known_before,
    read_record,
)
from edgekit.bench.conditions import MachineObserver, conditions, facts_of
from edgekit.bench.load import Load, LoadError, LoadOutcome
from edgekit.bench.measure import BenchSetup, golden_inputs, load_words, measure

__all__ = [
    "BenchComparison",
    "BenchSetup",
    "ConditionsDifferError",
    "Load",
    "LoadError",
    "LoadOutcome",
    "MachineObserver",
    "RecordDifference",
    "RecordError",
    "compare",
    "conditions",
    "facts_of",
    "golden_inputs",
    "known_before",
    "load_words",
    "measure",
    "read_record",
]
