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
        help="The board to build for, from `edgekit profiles list`. Repeatable; boards share the work.",
        flag="--profile",
        section="Targets",
        link="boards.md#names",
    )
    _: KW_ONLY
    profile_paths: tuple[Path, ...] = like(PROFILE_PATH, ())
    anchors: tuple[Path, ...] = like(ANCHOR, ())
    name: str | None = option(
        None,
        "Name of the bundles: at most 100 letters, digits, `.`, `_` and `-`. Default: the model file's name.",
        metavar="NAME",
    )
    model_version: str = option("1", "The model's version, stored in the bundle.", metavar="TEXT")
    output: Path = like(OUTPUT, Path("bundles"), help="Folder for the bundles and the report.")

    signing: SigningOptions = section(SigningOptions, "Signing and encryption")
    encrypt: Secret | None = option(
        None,
        "Encrypt the bundles' contents with the key at file:PATH, env:NAME or cmd:COMMAND (make one: edgekit keys new "
        "--secret). Labels and names stay readable.",
        metavar="SOURCE",
        kind="source",
        link="#encryption",
    )

    terms: BundleTerms = section(BundleTerms, "Bundle metadata")

    calibration: str | None = option(
        None,
        "A hundred or more typical inputs, without labels, to measure value ranges for INT8. A folder of images or "
        ".wav files, .npy, .npz, data.yaml, COCO .json, or module:function.",
        metavar="SET",
        section="Data",
        link="#calibration-and-evaluation-sets",
    )
    evaluation: str | None = option(
        None,
        "Other inputs, to compare each artifact with your model. With labels (sub-folders, or `y` in an .npz) accuracy "
        "is measured. Default: part of --calibration is held out.",
        metavar="SET",
    )
    metric: str | None = option(
        None,
        f"The metric to compare by: {', '.join(METRICS)}, or your own module:function. Default: chosen from the task "
        "and the labels.",
        metavar="NAME",
        names="metrics",
        link="#metrics-and-the-limit",
    )
    compare: tuple[Path, ...] = option(
        (),
        "A .tflite or .onnx file that another tool made from MODEL. It is measured for comparison and never packed. "
        "Tensors are matched by name, else by shape. Repeatable.",
        metavar="FILE",
    )
    allow_random: bool = option(
        False,
        "Use random inputs if none are given. For a first look only: results on real inputs will differ.",
    )

    max_drop: float | None = option(
        None,
        "Largest accuracy loss allowed, in points: 1%. An artifact that loses more is repaired or rejected. Without "
        "labels: share of answers that may change. 100% allows everything. Default: 5%; no limit on random inputs.",
        metavar="PERCENT",
        kind="percent",
        section="Limits",
        link="#metrics-and-the-limit",
    )
    budget_ms: float | None = like(BUDGET_MS, help="Longest inference allowed on the board, milliseconds.")
    repair_s: float = option(
        120.0,
        "CPU time for repairing an INT8 artifact that loses more than --max-drop. 0: do not repair.",
        "--repair-budget",
        metavar="SECONDS",
        least=0,
        most=86_400,
        link="#repair",
    )
    recipes: tuple[str, ...] = option(
        (),
        "Build only this kind of artifact, such as tflite-int8; repeatable. Default: all that suit the boards.",
        "--recipe",
        metavar="NAME",
        names="recipes",
        link="#recipes",
    )
    alternates: int = option(
        1,
        "Number of runners-up to pack into each bundle; the board picks the fastest.",
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
        "Also pack the model of this bundle: a smaller one for the same board and contract. It answers requests that "
        "would be late, if opened with ModelLimits(degraded=True). Repeatable, one per board.",
        metavar="BUNDLE",
        link="app-developer.md#deadlines",
    )

    contract: Path | None = option(
        None,
        "File that describes the inputs and outputs. Default: MODEL.contract.toml next to the model.",
        metavar="TOML",
        section="Model",
        link="#the-contract-file",
    )
    options: LoadOptions = section(LoadOptions, "Model")

    jobs: int = option(
        min(2, os.cpu_count() or 1),
        "Number of parallel conversions and measurements. Default: 2, or the number of cores if lower.",
        metavar="N",
        least=1,
        most=64,
        section="Execution",
    )
    cache: Path | None = option(
        None,
        "Build cache. Default: edgekit/build in your cache folder (~/.cache), at most 4 GiB.",
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
            return re.sub(r"[^A-Za-z0-9._-]+", "-", _model_name(self.model)).strip(".-")[:_LONGEST] or "model"
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
