"""How long an artifact will take on a board that is not here.
Anchors, measured on such a board, narrow the range.

subject     what is asked about: a model file, or the artifacts of a bundle
answer      the estimate for one board, layer by layer, or why there is none; records passed on as measured
anchoring   MobileNetV1 timed: on a board with every engine, on a workstation beside the artifact
"""

from __future__ import annotations

from edgekit.estimating.anchoring import MeasurePlan, can_time_here, measure_anchors, time_here
from edgekit.estimating.answer import EstimateOptions, EstimateResult, LayerTime, answer, measured_by
from edgekit.estimating.subject import EstimateSubject, open_subjects

__all__ = [
    "EstimateOptions",
    "EstimateResult",
    "EstimateSubject",
    "LayerTime",
    "MeasurePlan",
    "answer",
    "can_time_here",
    "measure_anchors",
    "measured_by",
    "open_subjects",
    "time_here",
]
