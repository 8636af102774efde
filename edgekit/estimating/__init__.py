"""How long an artifact will take on a board that is not here, and what was measured so as to know it better.

subject     what is asked about: a model file, or the artifacts of a bundle
workstation the artifact and MobileNetV1 timed on this machine: the ratio that carries over to boards
result      the estimate for one board, layer by layer, or why there is none
answer      from what is known to that
anchoring   on a board: MobileNetV1 timed with every engine there, under conditions that were watched
"""

from __future__ import annotations

from edgekit.estimating.anchoring import Plan, measure_anchors
from edgekit.estimating.answer import Given, answer, measured_by
from edgekit.estimating.result import Answer, LayerTime
from edgekit.estimating.subject import Subject, open_subjects
from edgekit.estimating.workstation import can_time_here, time_here

__all__ = [
    "Answer",
    "Given",
    "LayerTime",
    "Plan",
    "Subject",
    "answer",
    "can_time_here",
    "measure_anchors",
    "measured_by",
    "open_subjects",
    "time_here",
]
