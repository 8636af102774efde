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


_SAVED_MODEL = "saved_model"
"""What TensorFlow's examples call every folder, and its file in it: a name that identifies no model."""


@dataclass(frozen=True)
class BuildRequest:
    """max_drop: points of the metric, 0.05 for 5 %, None for no limit.
    budget_ms: None for no limit.

    calibration, evaluation: a path or `module:function`. recipes: empty for all. contract: None to look beside the
    model.
    name: of the bundles, None for the model file's. profiles, recipes: one that is named twice counts once. signing:
    with which keys, none for an unsigned bundle.
    options: what the model file does not say itself. allow_random: make up examples where none are given. repair_s:
    seconds of the processor that repair may take, in all. metric: decides instead of the task's own. alternates:
    runners-up kept in each bundle. batches: sizes for which a variant is packed where the chosen file has a fixed
    batch. jobs: how much is done at once. cache: folder for what a later build can use again, None for none. command:
    how this was asked for, for the report. profile_paths: folders with profiles of the user's own. anchors: what
    `edgekit profiles measure` wrote on boards.
    compare: files of other tools, measured beside what is made here.
    degraded: bundles of a smaller model, at most one a board, whose artifact answers what would be late.
    terms: licence, roll-out and boards that the bundles may be installed on. secret: encrypts what the bundles hold.
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

        Raises OutputError for a name that is no plain file name: it must never lead out of the output folder.
        """
        if self.name is None:
            return re.sub(r"[^A-Za-z0-9._-]+", "-", _called(self.model)).lstrip(".-")[:_LONGEST] or "model"
        if not re.fullmatch(rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{_LONGEST - 1}}}", self.name):
            raise OutputError(
                f"the bundles cannot be called {self.name[:_LONGEST]!r}",
                where="--name",
                do=f"Take at most {_LONGEST} of letters, digits, '.', '_' and '-', and begin with none of '.' and '-'",
            )
        return self.name


def _called(model: Path) -> str:
    """A file's name without its suffix.
    Of a SavedModel the folder's, or that of the folder around it where it says nothing."""
    place = model.parent if model.name == f"{_SAVED_MODEL}.pb" else model
    if not place.is_dir():
        return place.stem
    place = place.absolute()
    while (
        place.name == _SAVED_MODEL or place.name.isdigit()
    ) and place.parent != place:  # numbers are versions, in serving
        place = place.parent
    return place.name
