"""Which artifact, engine, thread count and delegate answers on this board: measured once, remembered, and explained."""

from __future__ import annotations

from edgekit_runtime.tuning.candidates import Candidate, Pin, Wanted, candidates
from edgekit_runtime.tuning.tune import Tuning, tune
from edgekit_runtime.tuning.verdict import Tried, Verdict

__all__ = ["Candidate", "Pin", "Tried", "Tuning", "Verdict", "Wanted", "candidates", "tune"]
