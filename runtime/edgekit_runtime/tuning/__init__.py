"""Which artifact, engine, thread count and delegate answers on this board: measured once, remembered, and explained."""

from __future__ import annotations

from edgekit_runtime.tuning.candidates import Candidate, Pin, Tried, Verdict, Wanted, candidates
from edgekit_runtime.tuning.tune import Tuning, tune

__all__ = ["Candidate", "Pin", "Tried", "Tuning", "Verdict", "Wanted", "candidates", "tune"]
