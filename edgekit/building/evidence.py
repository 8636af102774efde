"""What a report shows of a candidate besides its figures: where it was damaged, by what, and what it answers otherwise.

Rules: evidence never fails a build: what cannot be shown is left out; it is remembered like everything that costs time.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from itertools import islice
from typing import Any

from numpy.typing import NDArray

from edgekit.building.disagreements import shown
from edgekit.building.kept import key
from edgekit.building.making import Made
from edgekit.building.subject import Subject
from edgekit_converters.calibration import Subset, source_samples
from edgekit_converters.fidelity import examine, explain, layer_histograms, worst
from edgekit_converters.graph import open_graph
from edgekit_converters.progress import Progress
from edgekit_converters.store import kept_json
from edgekit_converters.targets.workspace import Workspace
from edgekit_runtime.bundle.codec import to_json
from edgekit_runtime.errors import EdgekitError

__all__ = ["evidence", "finite"]

_SAMPLES = 10  # of the evaluation set, that layers are compared on
_WORST = 6  # layers whose values are drawn


def evidence(made: Made, subject: Subject, workspace: Workspace, progress: Progress) -> dict[str, Any]:
    """The candidate's part of the report, beside its size and fidelity. JSON has no infinity: null stands for it."""
    artifact = made.artifact
    assert artifact is not None
    told: dict[str, Any] = {"plan": to_json(artifact.plan), "layers": [], "causes": [], "histograms": []}
    if made.recipe.needs_calibration:
        sets = (subject.sets.calibration_digest, subject.sets.evaluation_digest)
        name = key("layers", made.sha256, made.recipe.format, subject.source.sha256, *sets)
        told.update(kept_json(subject.store, name, dict[str, Any], lambda: _layers(made, subject, workspace, progress)))
    told["disagreements"] = shown(made.differing, subject.sets.evaluation, subject.contract)
    return told


def _layers(made: Made, subject: Subject, workspace: Workspace, progress: Progress) -> dict[str, Any]:
    """Layer by layer against the float file of the same format; where channels were equalised, against the float file after
    that, which answers the same with other values inside."""
    artifact, form = made.artifact, made.recipe.format
    assert artifact is not None

    def said(stage: str, done: int, total: int | None) -> None:
        progress(f"{made.recipe.name} {stage}", done, total)

    try:
        steps = tuple(step for step in artifact.plan.steps if step == "equalise")
        original = workspace.ground(form, steps).graph if steps else workspace.graph(form)
        answer = open_graph(form, artifact.data)
        items, feeds = _items(subject, workspace, form)
        calibrated = workspace.ground(form, steps).statistics.ranges("minmax")
        case = examine(original, answer, feeds, _SAMPLES, said, calibrated)
        errors, causes = case.errors, explain(case)
        histograms = layer_histograms(original, answer, feeds, worst(errors, _WORST), limit=_SAMPLES)
    except (EdgekitError, ValueError, KeyError, IndexError) as error:
        return {"layers": [], "causes": [], "histograms": [], "unexplained": str(error) or type(error).__name__}
    return {
        "layers_from": {"set": items, "items": len(feeds)},
        "layers": [finite(asdict(error)) for error in errors],
        "causes": [finite(asdict(cause)) for cause in causes],
        "histograms": [
            finite({"layer": h.layer, "edges": h.edges, "original": h.original, "artifact": h.quantized})
            for h in histograms
        ],
    }


def _items(subject: Subject, workspace: Workspace, form: str) -> tuple[str, list[list[NDArray[Any]]]]:
    """Which set layers are compared on, and its items as the float file takes them: some from all over the evaluation set,
    because damage that only its items suffer does not show on those that ranges were made from. A model that keeps a state
    is run on calibration samples, whose states are known.
    """
    if subject.contract.state != "none":
        return "calibration", list(islice(workspace.feeds(form), _SAMPLES))
    evaluation = subject.sets.evaluation
    count = min(_SAMPLES, len(evaluation))
    chosen = Subset(evaluation, [(2 * place + 1) * len(evaluation) // (2 * count) for place in range(count)])
    samples = source_samples(chosen, subject.contract, subject.source)
    return "evaluation", list(islice(workspace.feeds(form, samples), _SAMPLES))


def finite(value: Any) -> Any:
    """Null for what is not finite, lists for tuples."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): finite(inner) for name, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, (list, tuple)) else value
