"""The request of one build: all options of `edgekit build`."""

from __future__ import annotations

import os
import re
from dataclasses import KW_ONLY, MISSING, dataclass
from pathlib import Path

from edgekit.packaging.bundle_options import BundleTerms, SigningOptions
from edgekit.packaging.output_errors import OutputError
from edgekit_converters.recipe.option import ANCHOR, BUDGET_MS, OUTPUT, PROFILE, PROFILE_PATH, like, option, section
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_runtime.bundle.secrets import Secret

METRICS = ("top1", "top5", "f1", "map", "map50", "mae", "miou", "pixel-accuracy")
_LONGEST = 100  # with a profile's name and a suffix still within the 255 bytes of every file system
_SAVED_MODEL = "saved_model"  # TensorFlow's examples use it for every folder and its file: it identifies no model


@dataclass(frozen=True)
class BuildRequest:
    """Everything that one build is given. command: the command line, for the report."""

    model: Path
    profiles: tuple[str, ...] = like(
        PROFILE,
        MISSING,
        help="The board to build for; `edgekit profiles list` shows them. Repeat it for several boards, which share "
        "the work.",
        flag="--profile",
        section="What to build for",
        link="boards.md#names",
    )
    _: KW_ONLY
    profile_paths: tuple[Path, ...] = like(PROFILE_PATH, ())
    anchors: tuple[Path, ...] = like(ANCHOR, ())
    name: str | None = option(
        None,
        "What the bundles are called, in at most 100 letters, digits, `.`, `_` and `-`. Default: as the model file.",
        metavar="NAME",
    )
    model_version: str = option("1", "Your model's version, kept in the bundle.", metavar="TEXT")
    output: Path = like(OUTPUT, Path("bundles"), help="Where bundles and the report go.")

    signing: SigningOptions = section(SigningOptions, "Who signs, and who can read")
    encrypt: Secret | None = option(
        None,
        "Encrypt what the bundles hold with the key at file:PATH, env:NAME or cmd:COMMAND (make one: edgekit keys new "
        "--secret). Labels and names stay readable.",
        metavar="SOURCE",
        kind="source",
        link="#encryption",
    )

    terms: BundleTerms = section(BundleTerms, "What the bundles state")

    calibration: str | None = option(
        None,
        "A hundred or more typical inputs, without labels: they show which numbers flow through the model, which "
        "INT8 must know. A folder of images or .wav files, .npy, .npz, data.yaml, COCO's .json, or module:function.",
        metavar="SET",
        section="Your data",
        link="#calibration-and-evaluation-sets",
    )
    evaluation: str | None = option(
        None,
        "Other inputs, to measure how far each result drifts from your model. With labels (sub-folders, or `y` in "
        "an .npz) accuracy is measured. Default: a part of --calibration is held out.",
        metavar="SET",
    )
    metric: str | None = option(
        None,
        f"What decides: {', '.join(METRICS)}, or your own module:function. Default: what the task and the labels "
        "suggest.",
        metavar="NAME",
        names="metrics",
        link="#metrics-and-the-limit",
    )
    compare: tuple[Path, ...] = option(
        (),
        "A .tflite or .onnx file that another tool made of MODEL. It is measured and shown with edgekit's own, "
        "and never packed. Tensors are matched by name, else by shape. Repeatable.",
        metavar="FILE",
    )
    allow_random: bool = option(
        False,
        "Make up inputs if none are given. For a first look only: results on real input will differ, and the report "
        "says so.",
    )

    max_drop: float | None = option(
        None,
        "How much accuracy INT8 may cost, in points: 1%. An artifact that loses more is repaired or refused. Without "
        "labels: how many answers may change. 100% allows everything. Default: 5%; no limit on made-up inputs.",
        metavar="PERCENT",
        kind="percent",
        section="Limits",
        link="#metrics-and-the-limit",
    )
    budget_ms: float | None = like(BUDGET_MS, help="The most one inference may take on the board, milliseconds.")
    repair_s: float = option(
        120.0,
        "Processor time to search for a repair of INT8 that loses more than --max-drop. 0: do not repair.",
        "--repair-budget",
        metavar="SECONDS",
        least=0,
        most=86_400,
        link="#repair",
    )
    recipes: tuple[str, ...] = option(
        (),
        "Make only this kind of artifact, such as tflite-int8; repeatable. Default: all that may be worth it.",
        "--recipe",
        metavar="NAME",
        names="recipes",
        link="#recipes",
    )
    alternates: int = option(
        1,
        "How many runners-up to keep in each bundle, so that the board itself can find out which is faster.",
        metavar="N",
        least=0,
        most=2,
    )
    batches: tuple[int, ...] = option(
        (),
        "Also pack the chosen artifact for batches of N, if its file has a fixed batch; repeatable.",
        "--batch",
        metavar="N",
        least=2,
        most=256,
    )
    degraded: tuple[Path, ...] = option(
        (),
        "Also pack the model of this bundle, a smaller one for the same board and contract. It answers what would be "
        "late, where the application opens it with ModelLimits(degraded=True). Repeatable, one a board.",
        metavar="BUNDLE",
        link="app-developer.md#deadlines",
    )

    contract: Path | None = option(
        None,
        "A file that says what inputs and outputs mean. Default: MODEL.contract.toml next to the model.",
        metavar="TOML",
        section="What the model file leaves open",
        link="#the-contract-file",
    )
    options: LoadOptions = section(LoadOptions, "What the model file leaves open")

    jobs: int = option(
        min(2, os.cpu_count() or 1),
        "How much is converted and measured at once. Default: 2, or the number of cores if that is less.",
        metavar="N",
        least=1,
        most=64,
        section="How the build runs",
    )
    cache: Path | None = option(
        None,
        "Where work is kept for the next build. Default: edgekit/build in your cache folder (~/.cache); it stays "
        "below 4 GiB.",
        metavar="DIR",
        link="#the-build-cache",
    )
    command: tuple[str, ...] = ()

    @property
    def bundle_name(self) -> str:
        """Prefix of the bundles' and the report's file names: `name`, or the model's.

        Raises OutputError if it is not a plain file name, because it must never lead out of the output folder.
        """
        if self.name is None:
            return re.sub(r"[^A-Za-z0-9._-]+", "-", _model_name(self.model)).lstrip(".-")[:_LONGEST] or "model"
        if not re.fullmatch(rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{_LONGEST - 1}}}", self.name):
            raise OutputError(
                f"invalid bundle name {self.name[:_LONGEST]!r}",
                where="--name",
                do=f"Use at most {_LONGEST} letters, digits, '.', '_' and '-', not starting with '.' or '-'",
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
