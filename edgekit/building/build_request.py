"""The request of one build: all options of `edgekit build`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from edgekit.packaging.assemble import BundleTerms
from edgekit.packaging.output_errors import OutputError
from edgekit.packaging.signers import SigningOptions
from edgekit_converters.sources.source_model import LoadOptions
from edgekit_profiles import Profile, RuntimeSupport
from edgekit_runtime.bundle.secrets import Secret

Board = tuple[Profile, tuple[RuntimeSupport, ...]]
"""A board's profile, and what each engine's support on it is."""

_LONGEST = 100  # with a profile's name and a suffix still within the 255 bytes of every file system
_SAVED_MODEL = "saved_model"  # TensorFlow's examples use it for every folder and its file: it identifies no model


@dataclass(frozen=True)
class BuildRequest:
    """Everything that one build is given.

    profiles, recipes: names; duplicates count once; no recipes means all.
    calibration, evaluation: a path or `module:function`.
    max_drop: points of the metric, 0.05 for 5 %; None for no limit.
    budget_ms: None for no limit.
    contract: None to look next to the model.
    name: of the bundles; None for the model file's.
    signing: no keys for unsigned bundles.
    options: what the model file does not state.
    allow_random: make up examples if none are given.
    repair_s: processor seconds for all repairs together.
    metric: replaces the task's own.
    alternates: runners-up kept in each bundle.
    batches: sizes to pack a variant for, if the chosen file has a fixed batch.
    degraded: bundles of a smaller model, at most one a board, that answers when the chosen one would be late.
    compare: files that other tools made of the model, to be measured too.
    jobs: tasks at once.
    cache: folder for work that a later build can reuse; None for none.
    command: the command line, for the report.
    profile_paths: folders with the user's own profiles.
    anchors: files that `edgekit profiles measure` wrote on boards.
    terms: licence, roll-out and compatible boards.
    secret: encrypts the bundles.
    """

    model: Path
    profiles: tuple[str, ...]
    output: Path
    calibration: str | None = None
    evaluation: str | None = None
    max_drop: float | None = None
    budget_ms: float | None = None
    recipes: tuple[str, ...] = ()
    contract: Path | None = None
    name: str | None = None
    version: str = "1"
    signing: SigningOptions = field(default_factory=SigningOptions)
    options: LoadOptions = field(default_factory=LoadOptions)
    allow_random: bool = False
    repair_s: float = 120.0
    metric: str | None = None
    alternates: int = 1
    batches: tuple[int, ...] = ()
    degraded: tuple[Path, ...] = ()
    compare: tuple[Path, ...] = ()
    jobs: int = 2
    cache: Path | None = None
    command: tuple[str, ...] = ()
    profile_paths: tuple[Path, ...] = ()
    anchors: tuple[Path, ...] = ()
    terms: BundleTerms = field(default_factory=BundleTerms)
    secret: Secret | None = None

    @property
    def bundle_name(self) -> str:
        """Prefix of the bundles' and the report's file names: `name`, or the model's.

        Raises OutputError if it is not a plain file name, because it must never lead out of the output folder.
        """
        if self.name is None:
            return re.sub(r"[^A-Za-z0-9._-]+", "-", _model_name(self.model)).lstrip(".-")[:_LONGEST] or "model"
        if not re.fullmatch(rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{_LONGEST - 1}}}", self.name):
            raise OutputError(
                f"the bundles cannot be called {self.name[:_LONGEST]!r}",
                where="--name",
                do=f"Take at most {_LONGEST} of letters, digits, '.', '_' and '-', and begin with none of '.' and '-'",
            )
        return self.name


def _model_name(model: Path) -> str:
    """The file's stem; for a SavedModel, the nearest folder name that identifies it."""
    place = model.parent if model.name == f"{_SAVED_MODEL}.pb" else model
    if not place.is_dir():
        return place.stem
    place = place.absolute()
    while (place.name == _SAVED_MODEL or place.name.isdigit()) and place.parent != place:  # digits: a served version
        place = place.parent
    return place.name
