"""Representative and evaluation data.
Opened from a folder, an array file or a function, linted, split and streamed.

    dataset = open_dataset("photos/", contract)
    calibration, held_out = split(dataset)
    artifact = convert(source, recipe, SourceSamples(calibration, contract, source), progress)

Rules:
- a dataset has a length, may be read again and again, and gives the same items each time; items are made one by one;
- an item holds canonical arrays: what the board's own decoder makes of the file, so both see the same pixels;
- array files are never unpickled;
- a file that cannot be read is left out, counted and named; more than a tenth of such files is an error;
- NaN and infinity are refused where they are read, and the error names the item.
"""

from __future__ import annotations

from edgekit_converters.calibration.dataset import (
    FEWEST_APART,
    HELD_OUT,
    Dataset,
    Example,
    Label,
    RandomDataset,
    Subset,
    digest,
    fingerprint,
    folds,
    halves,
    split,
    without,
)
from edgekit_converters.calibration.lint import Finding, Survey, findings, lint, survey
from edgekit_converters.calibration.observe import (
    ObserveOptions,
    SourceSamples,
    observe,
    visiting_order,
)
from edgekit_converters.calibration.open import open_dataset
from edgekit_converters.calibration.sequences import Sequences, open_sequences, random_sequences, split_sequences
from edgekit_converters.calibration.statistics import Statistics, TensorStatistics
from edgekit_converters.calibration.suspicions import suspicions

__all__ = [
    "FEWEST_APART",
    "HELD_OUT",
    "Dataset",
    "Example",
    "Finding",
    "Label",
    "ObserveOptions",
    "RandomDataset",
    "Sequences",
    "SourceSamples",
    "Statistics",
    "Subset",
    "Survey",
    "TensorStatistics",
    "digest",
    "findings",
    "fingerprint",
    "folds",
    "halves",
    "lint",
    "observe",
    "open_dataset",
    "open_sequences",
    "random_sequences",
    "split",
    "split_sequences",
    "survey",
    "suspicions",
    "visiting_order",
    "without",
]
