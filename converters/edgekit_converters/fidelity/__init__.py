"""How far an artifact drifts from the original, measured with the engine that boards run.

    answers = reference(source, contract, evaluation)                  # the original, once
    found = compare(answers, artifact, contract, evaluation)           # each artifact
    golden = list(evaluation.pick(pick_golden(answers)))

Rules:
- the artifact runs as a board runs it: its own engine, one item at a time, adapted and finished by the runtime;
- a drop is computed from counts, so that one item of twenty is 0.05 and not nearly so;
- an accuracy never comes without its interval;
- an answer that is not finite is a wrong answer, never a missing one.
"""

from __future__ import annotations

from edgekit_converters.fidelity.compare import compare
from edgekit_converters.fidelity.golden import pick_golden
from edgekit_converters.fidelity.intervals import paired_interval
from edgekit_converters.fidelity.latency import measure_ms
from edgekit_converters.fidelity.reference import Reference, reference
from edgekit_converters.fidelity.result import Fidelity

__all__ = ["Fidelity", "Reference", "compare", "measure_ms", "paired_interval", "pick_golden", "reference"]
