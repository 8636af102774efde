"""Evidence of an artifact's loss: damaged layers, causes, and differing answers.

Rule: evidence never fails a build; a comparison that fails leaves its reason.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice, pairwise
from typing import Any

from numpy.typing import NDArray

from edgekit.building.build_subject import BuildSubject
from edgekit.building.data import key
from edgekit.building.making import RecipeResult, shown
from edgekit_converters.data.dataset import Subset, spread
from edgekit_converters.data.statistics import SourceSamples
from edgekit_converters.fidelity.causes import Cause
from edgekit_converters.fidelity.explain import examine, explain
from edgekit_converters.fidelity.layers import LayerError, LayerHistogram, layer_histograms, worst
from edgekit_converters.formats.graph import open_graph
from edgekit_converters.recipe.progress import Progress, titled
from edgekit_converters.recipe.store import cached_json
from edgekit_converters.targets.workspace import Workspace
from edgekit_runtime.system.errors import EdgekitError
from edgekit_runtime.system.strict_json import finite_json, to_json

_SAMPLES = 10  # items that layers are compared on
_WORST = 6  # layers with histograms


def evidence(made: RecipeResult, subject: BuildSubject, workspace: Workspace, progress: Progress) -> dict[str, Any]:
    """The candidate's part of the report besides its size and fidelity; null for infinity."""
    artifact = made.artifact
    assert artifact is not None
    record: dict[str, Any] = {"plan": to_json(artifact.plan), "layers": [], "causes": [], "histograms": []}
    if made.recipe.needs_calibration:
        sets = (subject.sets.calibration_digest, subject.sets.evaluation_digest)
        name = key("layers", made.sha256, made.recipe.format, subject.source.sha256, *sets)
        compared = partial(_layers, made, subject, workspace, progress)
        record |= cached_json(subject.store, name, _LayerEvidence, compared, _LayerEvidence.is_possible).as_json()
    record["disagreements"] = shown(made.differing, subject.sets.evaluation, subject.contract)
    return record


@dataclass(frozen=True)
class _LayerEvidence:
    """set, items: what the layers were compared on. unexplained: why they were not, else ""."""

    set: str = ""
    items: int = 0
    layers: tuple[LayerError, ...] = ()
    causes: tuple[Cause, ...] = ()
    histograms: tuple[LayerHistogram, ...] = ()
    unexplained: str = ""

    def is_possible(self) -> bool:
        return self.items >= 0 and all(
            len(one.edges) == len(one.original) + 1 == len(one.quantized) + 1
            and all(low <= high for low, high in pairwise(one.edges))
            and -math.inf < one.edges[0] < one.edges[-1] < math.inf
            for one in self.histograms
        )

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "layers": [finite_json(asdict(error)) for error in self.layers],
            "causes": [finite_json(asdict(cause)) for cause in self.causes],
            "histograms": [
                finite_json({"layer": h.layer, "edges": h.edges, "original": h.original, "artifact": h.quantized})
                for h in self.histograms
            ],
        }
        if self.unexplained:
            return shown | {"unexplained": self.unexplained}
        return shown | {"layers_from": {"set": self.set, "items": self.items}}


def _layers(made: RecipeResult, subject: BuildSubject, workspace: Workspace, progress: Progress) -> _LayerEvidence:
    """Layer by layer against the float file of the same format, equalised if the artifact is."""
    artifact, form = made.artifact, made.recipe.format
    assert artifact is not None

    try:
        steps = tuple(step for step in artifact.plan.steps if step == "equalise")
        original = workspace.ground(form, steps).graph if steps else workspace.graph(form)
        answer = open_graph(form, artifact.data)
        items, feeds = _items(subject, workspace, form)
        calibrated = workspace.ground(form, steps).statistics.ranges("minmax")
        case = examine(original, answer, feeds, _SAMPLES, titled(progress, made.recipe.name), calibrated)
        errors, causes = case.errors, explain(case)
        histograms = layer_histograms(original, answer, feeds, worst(errors, _WORST), limit=_SAMPLES)
    except (EdgekitError, ValueError, KeyError, IndexError) as error:
        return _LayerEvidence(unexplained=str(error) or type(error).__name__)
    return _LayerEvidence(items, len(feeds), errors, causes, histograms)


def _items(subject: BuildSubject, workspace: Workspace, form: str) -> tuple[str, list[list[NDArray[Any]]]]:
    """The set that layers are compared on, and items spread over it, for the float file.

    It is the evaluation set, because calibration items do not show all damage; a stateful model has states for
    calibration samples only."""
    if subject.contract.state != "none":
        return "calibration", list(islice(workspace.feeds(form), _SAMPLES))
    evaluation = subject.sets.evaluation
    chosen = Subset(evaluation, spread(len(evaluation), _SAMPLES))
    samples = SourceSamples(chosen, subject.contract, subject.source)
    return "evaluation", list(islice(workspace.feeds(form, samples), _SAMPLES))
