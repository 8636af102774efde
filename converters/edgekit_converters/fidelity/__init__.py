"""How far an artifact drifts from the original, measured with the engine that boards run.

    answers = reference(source, contract, dataset)                     # the original, once
    found = compare(answers, artifact, Evaluation(contract, dataset))  # each artifact
    golden = list(dataset.pick(pick_golden(answers)))

Rules:
- the artifact runs as a board runs it: its own engine, one item at a time, adapted and finished by the runtime;
- a drop is computed from counts, so that one item of twenty is 0.05 and not nearly so;
- an accuracy never comes without its interval;
- an answer that is not finite is a wrong answer, never a missing one.
"""

from __future__ import annotations

from edgekit_converters.fidelity.compare import (
    EngineTimes,
    Evaluation,
    compare,
    compare_crossed,
    compare_parts,
    growth,
    measure_ms,
    size_breakdown,
)
from edgekit_converters.fidelity.detection import Boxes, mean_average_precision
from edgekit_converters.fidelity.explain import Case, Cause, examine, explain
from edgekit_converters.fidelity.layers import LayerError, LayerHistogram, layer_errors, layer_histograms, worst
from edgekit_converters.fidelity.metrics import Metric, named_metric, rehearse, task_metrics
from edgekit_converters.fidelity.odd import ODD_SAMPLES, OddInput, odd_inputs
from edgekit_converters.fidelity.reference import Reference, check_answerable, pick_golden, reference
from edgekit_converters.fidelity.result import Fidelity, OutputDrift, Score, Share, SizeBreakdown
from edgekit_converters.fidelity.statistics import paired_interval

__all__ = [
    "ODD_SAMPLES",
    "Boxes",
    "Case",
    "Cause",
    "EngineTimes",
    "Evaluation",
    "Fidelity",
    "LayerError",
    "LayerHistogram",
    "Metric",
    "OddInput",
    "OutputDrift",
    "Reference",
    "Score",
    "Share",
    "SizeBreakdown",
    "check_answerable",
    "compare",
    "compare_crossed",
    "compare_parts",
    "examine",
    "explain",
    "growth",
    "layer_errors",
    "layer_histograms",
    "mean_average_precision",
    "measure_ms",
    "named_metric",
    "odd_inputs",
    "paired_interval",
    "pick_golden",
    "reference",
    "rehearse",
    "size_breakdown",
    "task_metrics",
    "worst",
]
