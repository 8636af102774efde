"""Faults of a calibration or evaluation set that show without running the model.

    for finding in findings(survey(calibration), survey(evaluation), contract):
        print(finding.level, finding.what, finding.do)

Codes: `few-samples`, `few-evaluation`, `duplicates`, `constant-samples`, `identical-samples`, `overlap`,
`other-scale`, `out-of-range`, `not-finite`, `unreadable`.

Rules: each set is read once; an unreadable file is skipped, counted and named, and more than one in ten, or none that
can be read, is an error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from edgekit_converters.data.dataset import Dataset, Example, Subset, digest, sets_of
from edgekit_converters.recipe.conversion_errors import CalibrationError
from edgekit_converters.recipe.progress import Progress, silent
from edgekit_runtime.contract.spec import Contract

_FEW, _BETTER = 8, 100
_SHOWN = 3
_BEARABLE = 0.1


@dataclass(frozen=True)
class Finding:
    """level: `error` stops a build, `warning` may spoil the result, `note` is worth knowing.
    digests: for `overlap`, the items concerned, to leave out.
    where: of an error, the set that it is in."""

    code: str
    level: Literal["error", "warning", "note"]
    what: str
    do: str
    digests: frozenset[str] = frozenset()
    where: str = ""


@dataclass
class Survey:
    """What one pass over a set found. Values are origins of items, in reading order.
    by_digest: digest -> items with that content.
    reach: per image input given as floats, the (least, greatest) value.
    unreadable: index in the set -> what was wrong; `items` and the rest are of the others.
    digests, labels: one of each an item: its content, and its label or ""."""

    name: str
    items: int = 0
    unreadable: dict[int, str] = field(default_factory=dict)
    labelled: bool = False
    digests: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    by_digest: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    constant: list[str] = field(default_factory=list)
    not_finite: list[str] = field(default_factory=list)
    reach: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, example: Example) -> None:
        self.items += 1
        self.labelled = self.labelled or example.label is not None
        self.digests.append(digest(example))
        label = "" if example.label is None else str(example.label)
        if isinstance(example.label, np.ndarray):  # whose text leaves numbers out
            bytes_of = np.ascontiguousarray(example.label).tobytes().hex()
            label = f"{example.label.dtype.str} {example.label.shape} {bytes_of}"
        self.labels.append(label)
        self.by_digest[self.digests[-1]].append(example.origin)
        arrays = list(example.inputs.values())
        if all(array.size > 1 and (array == array.flat[0]).all() for array in arrays):
            self.constant.append(example.origin)
        if not all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f"):
            self.not_finite.append(example.origin)
        for name, array in example.inputs.items():
            if array.dtype.kind == "f" and array.size:
                low, high = self.reach.get(name, (np.inf, -np.inf))
                self.reach[name] = (min(low, float(array.min())), max(high, float(array.max())))

    def merge(self, other: Survey) -> Survey:
        """Of the items of both."""
        whole = Survey(self.name, self.items + other.items, labelled=self.labelled or other.labelled)
        whole.unreadable = dict(enumerate([*self.unreadable.values(), *other.unreadable.values()]))
        for part in (self, other):
            whole.digests += part.digests
            whole.labels += part.labels
            whole.constant += part.constant
            whole.not_finite += part.not_finite
            for digest_, origins in part.by_digest.items():
                whole.by_digest[digest_] += origins
            for name, (low, high) in part.reach.items():
                least, greatest = whole.reach.get(name, (np.inf, -np.inf))
                whole.reach[name] = (min(least, low), max(greatest, high))
        return whole


def survey(dataset: Dataset, progress: Progress = silent) -> Survey:
    """Read a set once, holding a digest and an origin an item."""
    result = Survey(dataset.name)
    for index, example in _items(dataset):
        if isinstance(example, CalibrationError):
            result.unreadable[index] = str(example)
        else:
            result.add(example)
        progress("checking the data", index + 1, len(dataset))
    return result


def _items(dataset: Dataset) -> Iterator[tuple[int, Example | CalibrationError]]:
    """Every item, or why it cannot be read.
    A file is read apart from the others; what code yields is not: it stops there."""
    whole = dataset
    while isinstance(whole, Subset):
        whole = whole.dataset
    if not hasattr(whole, "files"):
        yield from enumerate(dataset)
        return
    for index in range(len(dataset)):
        try:
            (example,) = dataset.pick([index])
        except CalibrationError as error:
            yield index, error
        else:
            yield index, example


def findings(first: Survey, second: Survey | None, contract: Contract, *, one_set: bool = False) -> tuple[Finding, ...]:
    """Findings on the survey of the calibration set and of the evaluation set, errors first.
    Pure.
    one_set: the two are parts of one set that was given. What is wrong with it is then reported once, and counted over
    all of it; and items that are all the same are an error, because nothing is left to calibrate with."""
    if second is not None and one_set:
        return _ranked([*_size(first), *_evaluation_size(second, contract), *_of_parts(first, second, contract)])
    found = [*_unreadable(first), *_size(first), *_content(first, contract)]
    if second is not None:
        found += [*_unreadable(second), *_evaluation_size(second, contract), *_content(second, contract)]
        shared = [key for key in first.by_digest if key in second.by_digest]
        if shared:
            origins = [origin for key in shared for origin in first.by_digest[key]]
            what = f"{first.name}: {_some(origins, first.name)} that the evaluation set {second.name} has too"
            do = "They are left out of calibration; a result measured on them would flatter"
            found.append(Finding("overlap", "warning", what, do, frozenset(shared)))
        for name in sorted(first.reach.keys() & second.reach.keys()):
            ours, theirs = (max(map(abs, one.reach[name])) for one in (first, second))
            if min(ours, theirs) > 0 and not 0.1 < ours / theirs < 10:
                what = f"'{name}' is up to {ours:g} in {first.name} and up to {theirs:g} in {second.name}"
                found.append(Finding("other-scale", "warning", what, "Scale both sets as the model takes them"))
    return _ranked(found)


def _ranked(found: list[Finding]) -> tuple[Finding, ...]:
    rank = {"error": 0, "warning": 1, "note": 2}
    return tuple(sorted(found, key=lambda finding: rank[finding.level]))


def _of_parts(first: Survey, second: Survey, contract: Contract) -> Iterator[Finding]:
    """Of both parts of one set together.
    What is in both is a duplicate, whose digest has it left out of calibration."""
    whole, shared = first.merge(second), frozenset(first.by_digest) & frozenset(second.by_digest)
    yield from _unreadable(whole)
    for finding in _content(whole, contract):
        if finding.code == "identical-samples":
            yield replace(finding, level="error")
        else:
            yield replace(finding, digests=shared) if finding.code == "duplicates" else finding


def _unreadable(found: Survey) -> Iterator[Finding]:
    if not found.unreadable:
        return
    count, whole = len(found.unreadable), len(found.unreadable) + found.items
    shown = "; ".join(list(found.unreadable.values())[:_SHOWN])
    rest = f"; and {count - _SHOWN} more" if count > _SHOWN else ""
    bad = count > _BEARABLE * whole
    what = f"{found.name}: {count} of {whole} files cannot be read{'' if bad else ' and are left out'}: {shown}{rest}"
    do = "Remove them, or save them again"
    yield Finding("unreadable", "error" if bad else "warning", what, do, where=found.name)


def _size(found: Survey) -> Iterator[Finding]:
    if found.items < _FEW:
        what = f"{found.name}: {_count(found.items, 'item')} cannot show the ranges that the network will meet"
        yield Finding("few-samples", "warning", what, f"Give {_BETTER} or more that look like what the board will see")
    elif found.items < _BETTER:
        do = f"{_BETTER} to 500 make ranges steadier"
        yield Finding("few-samples", "note", f"{found.name}: {found.items} items are few for calibration", do)


def _evaluation_size(found: Survey, contract: Contract) -> Iterator[Finding]:
    scored = contract.task == "classification" and found.labelled
    if 0 < found.items < _BETTER:
        weight = f"{_count(found.items, 'item')} {'is' if found.items == 1 else 'are'} little to compare on"
        if contract.task == "classification":
            points = f"{100 / found.items:.1f} points of {'accuracy' if found.labelled else 'agreement'}"
            weight = f"one item of {found.items} is {points}"
        do = "Read the confidence interval, not the drop alone" if scored else f"{_BETTER} or more say more"
        yield Finding("few-evaluation", "note", f"{found.name}: {weight}", do)


def _content(found: Survey, contract: Contract) -> Iterator[Finding]:
    if found.not_finite:
        what = f"{found.name}: {_some(found.not_finite, found.name)} with NaN or infinity"
        yield Finding("not-finite", "error", what, "Remove them or mend what made them", where=found.name)
    if found.items > 1 and len(found.by_digest) == 1:
        what = f"{found.name}: every item is the same, all {found.items} of them"
        yield Finding("identical-samples", "warning", what, "Give different items")
    elif len(found.by_digest) < found.items:
        repeated = [origin for origins in found.by_digest.values() for origin in origins[1:]]
        verb = "repeats" if len(repeated) == 1 else "repeat"
        what = f"{found.name}: {_some(repeated, found.name)} that {verb} an earlier one exactly"
        yield Finding("duplicates", "warning", what, "Remove them: they add weight, not information")
    if found.constant:
        every = "every item is blank: " if len(found.constant) == found.items else ""
        what = f"{found.name}: {every}{_some(found.constant, found.name)} with one value throughout"
        yield Finding("constant-samples", "warning", what, "Remove blank pictures and broken captures")
    # Floats for an image input are taken as normalised: 0..255 given to a network that wants -1..1 shows here
    for spec in contract.inputs:
        expected = sets_of(spec).normalised(spec)
        if expected is None or spec.name not in found.reach:
            continue
        (least, most), (low, high) = expected, found.reach[spec.name]
        slack = 0.05 * (most - least)
        if low < least - slack or high > most + slack:
            seen = f"{found.name}: values from {low:g} to {high:g} for '{spec.name}'"
            what = f"{seen}, but mean and std make pixels {least:g} to {most:g}"
            do = "Save uint8 pixels, or normalise the floats as the contract says"
            yield Finding("out-of-range", "warning", what, do)


def _some(origins: list[str], name: str) -> str:
    """A count and the first few; an array file is named before them, once."""
    shown = ", ".join(origin.removeprefix(f"{name}, ") for origin in origins[:_SHOWN])
    rest = len(origins) - _SHOWN
    return f"{_count(len(origins), 'item')} ({shown}{f' and {rest} more' if rest > 0 else ''})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
