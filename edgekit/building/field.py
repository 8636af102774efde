"""What a build changes for the inputs that boards doubted (`fleet samples pull`).

Rule: what a board answered is compared with the original's answer now, and so is each artifact's. No build fails by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.building.build_subject import BuildSubject
from edgekit.building.making import RecipeResult
from edgekit_converters.data.lint import Finding
from edgekit_converters.data.open import PULLED, open_dataset
from edgekit_converters.fidelity.compare import compare as compare_outputs
from edgekit_converters.fidelity.reference import reference
from edgekit_converters.recipe.progress import Progress
from edgekit_runtime.system.errors import EdgekitError
from edgekit_runtime.system.strict_json import load_json


def field_findings(
    calibration: str | Path | None, subject: BuildSubject, results: Sequence[RecipeResult], progress: Progress
) -> list[Finding]:
    """calibration: as it was given; empty if it is not a folder of samples."""
    folder = Path(calibration or "")
    if calibration is None or not (folder / PULLED).is_file():
        return []
    try:
        samples = load_json((folder / "samples.json").read_bytes())["samples"]
        why = Counter(str(one["why"]) for one in samples)
        kinds = ", ".join(f"{n} {word}" for word, n in why.most_common())
        what = f"{len(samples)} inputs come from boards ({kinds})"
        if subject.contract.task == "classification":
            what += _answers(folder, [one["best"] for one in samples], subject, results, progress)
    except (EdgekitError, OSError, ValueError, KeyError, TypeError) as error:
        return [Finding("field", "note", f"the samples of boards could not be compared: {error}", "Pull them again")]
    return [Finding("field", "note", what, "Label those that the original gets wrong, and train with them")]


def _answers(
    folder: Path, before: Sequence[int | None], subject: BuildSubject, results: Sequence[RecipeResult],
    progress: Progress,
) -> str:  # fmt: skip
    dataset = open_dataset(folder, subject.contract, labelled=False)
    original = reference(subject.source, subject.contract, dataset, progress)
    best = original.best or ()
    judge = replace(subject, sets=replace(subject.sets, evaluation=dataset), reference=original, metric=None)
    same = sum(a == b for a, b in zip(before, best, strict=True))
    words = [f"there the boards answered as the original does on {same}"]
    for one in results:
        if one.artifact is None:
            continue
        alike: list[bool] = []

        def watch(index: int, answer: Mapping[str, NDArray[Any]], alike: list[bool] = alike) -> None:
            first = answer[subject.contract.outputs[0].name]
            alike.append(int(np.argmax(first)) == best[index])

        compare_outputs(original, one.artifact, judge.evaluation, progress, watch)
        words.append(f"{one.recipe.name} now does on {sum(alike)}")
    return f"; {', '.join(words)}"
