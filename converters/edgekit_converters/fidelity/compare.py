"""One artifact against the original's answers, run by the engine that boards run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from edgekit_converters.calibration.dataset import Dataset, Example, digest
from edgekit_converters.errors import CalibrationError, ConversionError
from edgekit_converters.fidelity.batches import Intake
from edgekit_converters.fidelity.reference import Reference
from edgekit_converters.fidelity.result import Fidelity
from edgekit_converters.fidelity.statistics import Accuracy, Drift, best_class
from edgekit_converters.progress import Progress, silent
from edgekit_converters.targets.artifact import Artifact
from edgekit_runtime.contract.finish import Finisher
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.engines import Engine, load_engine

__all__ = ["compare"]


def compare(
    reference: Reference,
    artifact: Artifact,
    contract: Contract,
    dataset: Dataset,
    progress: Progress = silent,
    *,
    engine: str | None = None,
    threads: int = 1,
    held_out: bool = False,
) -> Fidelity:
    """Run the artifact over the set that `reference` was made from, item by item as a board would.

    One item at a time (or the batch that the file fixes), because a dynamically quantized model answers differently in a
    larger batch. held_out: see `Fidelity`. Answers that are not finite are counted, not raised: see `Fidelity.not_finite`. Raises EngineError
    where the engine refuses the artifact, ConversionError where it answers another shape than the original, CalibrationError
    where the set is not the one that the reference saw.
    """
    drift, accuracy, agreeing = Drift(), Accuracy(), 0
    stage = f"evaluating {artifact.recipe.name}"
    with load_engine(artifact.recipe.format, artifact.data, threads=threads, engine=engine) as loaded:
        name = f"{loaded.info.name} {loaded.info.version}"
        for index, answer in enumerate(_answers(loaded, artifact, contract, _checked(reference, dataset))):
            _same_sizes(reference.outputs[index], answer, artifact.recipe.name)
            finite = drift.add(reference.outputs[index], answer)
            if reference.best is not None:
                best = best_class(answer[contract.outputs[0].name]) if finite else None
                agreeing += best == reference.best[index]
                if reference.labels is not None:
                    truth = reference.labels[index]
                    accuracy.add(reference.best[index] == truth, best == truth)
            progress(stage, index + 1, len(reference))
    scored = accuracy.items > 0
    return Fidelity(
        items=drift.items,
        metric="top1" if scored else None,
        original=accuracy.original if scored else None,
        artifact=accuracy.artifact if scored else None,
        drop=accuracy.drop if scored else None,
        ci95=accuracy.ci95 if scored else None,
        agreement=agreeing / drift.items if reference.best is not None else None,
        cosine=drift.cosine,
        sqnr_db=drift.sqnr_db,
        quantized_macs=artifact.quantized_macs,
        quantized_weights=artifact.quantized_weights,
        engine=name,
        held_out=held_out,
        not_finite=drift.not_finite,
    )


def _answers(
    engine: Engine, artifact: Artifact, contract: Contract, examples: Iterator[Example]
) -> Iterator[Mapping[str, NDArray[Any]]]:
    intake, finish = Intake(contract, artifact.inputs, 1), Finisher(contract, artifact.outputs)
    for group, tensors in intake.batches(examples):
        raw = engine.run(tensors)
        for row in range(len(group)):
            yield finish(raw, row)


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
