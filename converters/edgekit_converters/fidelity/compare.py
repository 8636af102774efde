"""One artifact against the original's answers, run by the engine that boards run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from edgekit_converters.calibration.dataset import Dataset, Example, digest
from edgekit_converters.deadline import tick
from edgekit_converters.errors import CalibrationError, ConversionError
from edgekit_converters.fidelity.batches import Intake
from edgekit_converters.fidelity.detection import DecisionCount
from edgekit_converters.fidelity.kinds import kinds
from edgekit_converters.fidelity.metrics import Metric, task_metrics
from edgekit_converters.fidelity.over_time import OverTime
from edgekit_converters.fidelity.reference import Reference
from edgekit_converters.fidelity.result import Fidelity, Score
from edgekit_converters.fidelity.size import size_breakdown
from edgekit_converters.fidelity.statistics import Drift
from edgekit_converters.progress import Progress, silent
from edgekit_converters.targets.artifact import Artifact
from edgekit_converters.workload import uncounted
from edgekit_runtime.contract.finish import Finisher
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.engines import Engine, load_engine
from edgekit_runtime.stepping import Stepper

__all__ = ["Evaluation", "compare"]


@dataclass(frozen=True)
class Evaluation:
    """What every artifact of a model is measured on, and how.

    metric: the deciding one, None for the task's own (`named_metric` makes one from a name). engine: None for what a board
    would pick. held_out: see `Fidelity`.
    """

    contract: Contract
    dataset: Dataset
    metric: Metric | None = None
    engine: str | None = None
    threads: int = 1
    held_out: bool = False


def compare(
    reference: Reference,
    artifact: Artifact,
    evaluation: Evaluation,
    progress: Progress = silent,
    seen: Callable[[int, Mapping[str, NDArray[Any]]], None] | None = None,
) -> Fidelity:
    """Run the artifact over the set that `reference` was made from, item by item as a board would.

    One item at a time (or the batch that the file fixes), because a dynamically quantized model answers differently in a
    larger batch. seen: is shown every item's index and answer. Answers that are not finite are counted, not raised: see
    `Fidelity.not_finite`. Raises EngineError where the engine refuses the artifact, ConversionError where it answers
    another shape than the original, CalibrationError where the set is not the one that the reference saw, MetricError
    where the metric does not fit the labels. A stateful model's artifact carries its own state along each sequence, from the
    beginning.
    """
    contract = evaluation.contract.of_caller
    names = [output.name for output in contract.outputs]
    drift = Drift(names, kinds(contract, reference.outputs))
    metrics = task_metrics(contract, reference.labels, evaluation.metric)
    kept: list[list[Any]] = [[] for _ in metrics]
    counted = DecisionCount(contract) if contract.detection is not None else None
    along = OverTime(names) if contract.state != "none" else None
    recipe = artifact.recipe
    with load_engine(recipe.format, artifact.data, threads=evaluation.threads, engine=evaluation.engine) as loaded:
        name = f"{loaded.info.name} {loaded.info.version}"
        examples = _checked(reference, evaluation.dataset)
        for index, (step, answer) in enumerate(_answers(loaded, artifact, evaluation.contract, examples)):
            _same_sizes(reference.outputs[index], answer, recipe.name)
            if along is not None:
                along.add(step or 0, reference.outputs[index], answer)
            finite = drift.add(reference.outputs[index], answer)
            if counted is not None:
                counted.add(reference.outputs[index], answer if finite else None)
            if seen is not None:
                seen(index, answer)
            for metric, items in zip(metrics, kept, strict=True):
                items.append(metric.keep(answer if finite else None, _label(reference, index)))
            progress(f"evaluating {recipe.name}", index + 1, len(reference))
            tick()
    scores = tuple(_scored(reference, metric, items) for metric, items in zip(metrics, kept, strict=True))
    outputs = drift.outputs()
    first = next((o.agreement for o in outputs if reference.best is not None and o.agreement is not None), None)
    agreement = first.value if first is not None else None
    decisions = counted.found() if counted is not None else None
    return Fidelity(
        items=drift.items,
        **_deciding(scores),
        agreement=agreement if decisions is None else decisions.agreement,
        cosine=drift.cosine,
        sqnr_db=drift.sqnr_db,
        quantized_macs=artifact.quantized_macs,
        quantized_weights=artifact.quantized_weights,
        engine=name,
        held_out=evaluation.held_out,
        not_finite=drift.not_finite,
        outputs=outputs,
        scores=scores,
        size=size_breakdown(recipe.format, artifact.data),
        sequences=along.sequences if along is not None else None,
        over_time=along.spans() if along is not None else (),
        uncounted=_uncounted(artifact),
        decisions=decisions,
    )


def _uncounted(artifact: Artifact) -> tuple[str, ...]:
    """Nothing where the file cannot be read: then no share of it is known either."""
    try:
        return uncounted(artifact.recipe.format, artifact.data)
    except ConversionError:
        return ()


def _deciding(scores: Sequence[Score]) -> dict[str, Any]:
    if not scores:
        return dict.fromkeys(("metric", "original", "artifact", "drop", "ci95"))
    first = scores[0]
    shares = {"metric": first.metric, "original": first.original, "artifact": first.artifact}
    return {**shares, "drop": first.drop, "ci95": first.ci95}


def _scored(reference: Reference, metric: Metric, items: Sequence[Any]) -> Score:
    before = [metric.keep(answer, _label(reference, index)) for index, answer in enumerate(reference.outputs)]
    return metric.compare(before, items)


def _label(reference: Reference, index: int) -> Any:
    assert reference.labels is not None
    return reference.labels[index]


def _answers(
    engine: Engine, artifact: Artifact, contract: Contract, examples: Iterator[Example]
) -> Iterator[tuple[int | None, Mapping[str, NDArray[Any]]]]:
    """(step, answer) of each item."""
    if contract.state != "none":
        stepper = Stepper(contract, artifact.inputs, artifact.outputs, engine)
        for example in examples:
            if not example.step:
                stepper.reset()
            yield example.step, stepper.step(example.inputs)
        return
    intake, finish = Intake(contract, artifact.inputs, 1), Finisher(contract, artifact.outputs)
    for group, tensors in intake.batches(examples):
        raw = engine.run(tensors)
        for row in range(len(group)):
            yield None, finish(raw, row)


def _same_sizes(original: Mapping[str, NDArray[Any]], answer: Mapping[str, NDArray[Any]], where: str) -> None:
    for name, value in original.items():
        if answer[name].size != value.size:
            raise ConversionError(
                f"answers {list(answer[name].shape)} for '{name}' where the original answers {list(value.shape)}",
                where=where,
            )


def _checked(reference: Reference, dataset: Dataset) -> Iterator[Example]:
    """The set's items, each proved to be the one that the original answered."""
    if len(dataset) != len(reference):
        raise CalibrationError(
            f"has {len(dataset)} items and the original answered {len(reference)}",
            where=dataset.name,
            do="Evaluate both on the same set",
        )
    for index, example in enumerate(dataset):
        if digest(example) != reference.digests[index]:
            raise CalibrationError(
                "is not the item that the original answered",
                where=example.origin,
                do="Give the same items in the same order at every pass: fix the seed, sort the files",
            )
        yield example
