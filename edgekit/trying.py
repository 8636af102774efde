"""A first look at a model: guess its contract, build it, compare ten answers.

    found = look(Path("net.onnx"), like="photos/", output=Path("tried"))
    found.guessed          # ("pixels as numbers of -1 to 1: ...", ...)
    found.answers          # what the original says and what the bundle says, of ten items

Rules:
- a contract file beside the model, or in the output folder, is taken as it is; else a draft is written into the output
  folder, never beside the model;
- what the model's file does not say is guessed from its shapes and from the data, and every guess is printed;
- numbers that are not classes are the same if they differ by at most 5 % of the spread of the original's;
- without data the inputs are made up, and no agreement is claimed;
- a repair is searched for a short time: the first answers are what is waited for.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.api import build
from edgekit.building.build_report import BuildReport
from edgekit.packaging.output_errors import OutputError
from edgekit.report import words
from edgekit_converters.data.dataset import Dataset, Example, Subset, split
from edgekit_converters.data.describe_contract import describe, find_contract_file
from edgekit_converters.data.draft_contract import Family, draft, left_to_say
from edgekit_converters.data.open import open_dataset
from edgekit_converters.data.suspicions import guess_pixels
from edgekit_converters.fidelity.reference import reference
from edgekit_converters.recipe.conversion_errors import CalibrationError
from edgekit_converters.recipe.progress import Progress
from edgekit_converters.recipe.store import DiskStore, default_folder
from edgekit_converters.sources.load import open_source
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.sources.source_model import SourceModel
from edgekit_runtime import Answer, Model, open_bundle
from edgekit_runtime.contract.kinds import pictures
from edgekit_runtime.contract.spec import Contract

_ANSWERS = 10
_BOXES = 2
_REPAIR_S = 20.0
_ALIKE = 0.05
_PICTURE = 'kind = "image"\nmean = {mean}\nstd = {std}'


@dataclass(frozen=True)
class SideBySide:
    """One item.

    item: where it is from.
    original, bundle: what each says of it.
    same: whether that is the same answer.
    """

    item: str
    original: str
    bundle: str
    same: bool


@dataclass(frozen=True)
class FirstLook:
    """contract: the file that was used.
    guessed: what no file said, a sentence each.
    """

    contract: Path
    guessed: tuple[str, ...]
    report: BuildReport
    answers: tuple[SideBySide, ...]


def look(
    model: Path,
    like: str | None,
    output: Path,
    profiles: tuple[str, ...],
    family: Family | None,
    loading: Mapping[str, Any],
    progress: Progress,
    say: Callable[[str], None],
) -> FirstLook:
    """Guess, build, compare.

    like: data as the board will see it, as `edgekit build --calibration` takes them; None for made-up inputs.
    loading: `shapes`, `constants`, `signature` and `trust_model`, as `build` takes them.

    Raises EdgekitError.
    """
    source = open_source(model, LoadOptions.parse(**loading), DiskStore(default_folder()))
    drafted, guessed = output / f"{model.stem}.contract.toml", tuple[str, ...]()
    file = find_contract_file(model) or (drafted if drafted.is_file() else None)
    if file is None:
        text, guessed = _guess(source, like, family, progress)
        file = drafted
        _write(file, text)
        guessed = (*guessed, f"all of it is in {file}: correct it there, and the next run takes it as it is")
    elif file == drafted:
        say(f"uses {drafted} of an earlier run: remove it to guess again")
    for line in guessed:
        say(f"guessed: {line}")
    report = build(
        model, profiles=profiles, calibration=like, allow_random=like is None, contract=file, output=output,
        repair_s=_REPAIR_S, progress=progress, say=say, **loading,
    )  # fmt: skip
    bundle = next((one.path for one in report.bundles if one.path is not None), None)
    answers: tuple[SideBySide, ...] = ()
    if like is not None and bundle is not None:
        with open_bundle(bundle, allow_unsigned=True, cache=False) as opened:
            given = open_dataset(like, opened.contract)
            shown = (
                split(given)[1] if len(given) >= 5 * _ANSWERS else given
            )  # held out, as in the table, if there are ten
            answers = tuple(_answers(source, shown, opened))
    return FirstLook(file, guessed, report, answers)


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        why = f"cannot be written: {error.strerror or error}"
        raise OutputError(why, where=str(file.parent), do="Choose a writable folder with -o") from error


def _guess(
    source: SourceModel, like: str | None, family: Family | None, progress: Progress
) -> tuple[str, tuple[str, ...]]:
    """(a contract that the build accepts, what was guessed for it)."""
    text, guessed = draft(source, family), list[str]()
    shape = source.inputs[0].shape
    takes_pictures = len(source.inputs) == 1 and len(shape) == 4 and {1, 3} & {shape[1], shape[3]}
    if like is not None and takes_pictures and 'kind = "tensor"' in text and Path(like).is_dir():
        contract = _described(source, text.replace('kind = "tensor"', _PICTURE.format(mean=0, std=255)))
        found = guess_pixels(source, contract, open_dataset(like, contract), progress)
        image, name = (found.image, found.name) if found else (pictures(contract.inputs)[0], "0 to 1")
        why = "its answers tell your pictures apart best so"
        if found is None or found.rivals:
            others = " and ".join(found.rivals) + " would fit as well" if found else "the data cannot tell"
            why = f"{others}; say in the contract what it was trained with"
        grey = "; for a spectrogram or the like, give --like a .npz of arrays" if image.channels == 1 else ""
        guessed.append(f"pixels as numbers of {name}, stretched to {image.width} x {image.height}: {why}{grey}")
        text = text.replace('kind = "tensor"', _PICTURE.format(mean=list(image.mean), std=list(image.std)))
    elif like is not None:
        open_dataset(like, _described(source, text))  # what is wrong with it is said before anything else
    task = _described(source, text).task
    guessed.append(f"the outputs look like {task}; the build checks that against the model's answers")
    if any("labels" in clause for clause in left_to_say(source, text)):
        guessed.append("classes are shown by their number: name them with labels = in the contract")
    return text, tuple(guessed)


def _described(source: SourceModel, text: str) -> Contract:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "guess.contract.toml"
        file.write_text(text, encoding="utf-8")
        return describe(source, file)


def _answers(source: SourceModel, dataset: Dataset, model: Model) -> Iterator[SideBySide]:
    """Of items spread over the set, without those that cannot be read."""
    indexes, examples = list[int](), list[Example]()
    for index in np.unique(np.linspace(0, len(dataset) - 1, min(_ANSWERS, len(dataset))).astype(int)).tolist():
        with contextlib.suppress(CalibrationError):
            examples += dataset.pick([index])
            indexes.append(index)
    originals = reference(source, model.contract, Subset(dataset, indexes)).outputs
    spread = float(np.std([_flat(one) for one in originals])) or 1.0
    for example, original in zip(examples, originals, strict=True):
        own = model.predict(example.inputs)
        theirs = replace(own, outputs=original)
        said = [_said(answer) for answer in (theirs, own)]
        off = float(np.sqrt(np.mean((_flat(original) - _flat(own.outputs)) ** 2))) / spread
        same = said[0] == said[1] if said[0] is not None else off <= _ALIKE
        item = Path(example.origin).name.removeprefix(f"{Path(dataset.name).name}, ")
        yield SideBySide(item, _shown(theirs), _shown(own), same)


def _flat(outputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    return np.concatenate([np.ravel(one) for one in outputs.values()]).astype(np.float64)


def _said(answer: Answer) -> list[int] | None:
    """The best class, or the classes of all boxes, sorted. None for other numbers."""
    task = answer.contract.task
    if task == "detection":
        return sorted(box.index for box in answer.boxes)
    return [answer.top(1)[0].index] if task == "classification" else None


def _shown(answer: Answer) -> str:
    """The best class with its score, the best boxes, else the first numbers."""
    if answer.contract.task == "classification":
        (best,) = answer.top(1)
        return f"{best.label if answer.contract.labels else f'class {best.label}'} {words.confidence(best.score)}"
    if answer.contract.task == "detection":
        said = [f"{words.confidence(box.score)} {box.label} at {box.left:.0f},{box.top:.0f}" for box in answer.boxes]
        return ", ".join(said[:_BOXES]) + (f" and {len(said) - _BOXES} more" if len(said) > _BOXES else "") or "nothing"
    numbers = _flat(answer.outputs)
    return " ".join(f"{number:.4g}" for number in numbers[:4]) + (" ..." if len(numbers) > 4 else "")
