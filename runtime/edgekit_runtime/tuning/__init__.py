"""Which artifact, engine, thread count and delegate answers on this board.
Measured once, remembered, and explained.
"""

from __future__ import annotations

from edgekit_runtime.tuning.candidates import (
    CandidateTrial,
    Pin,
    TuningCandidate,
    TuningOptions,
    TuningVerdict,
    candidates,
)
from edgekit_runtime.tuning.tune import Tuner, tune

__all__ = ["CandidateTrial", "Pin", "Tuner", "TuningCandidate", "TuningOptions", "TuningVerdict", "candidates", "tune"]
