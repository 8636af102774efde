"""The request of `edgekit compress`, and its recipe file.

    request = CompressRequest(Path("net.keras"), "train/", "labelled/", Path("out"), steps=("qat",), rate=1e-4)
    compress("net.keras", train="train/", evaluation="labelled/", **read_recipe(Path("net.toml")))

Rules:
- a request that cannot be carried out is refused before anything slow is loaded;
- a recipe file holds only keys that are not options of the command; its paths are relative to its folder;
- whether code in a model may run is decided on the command line and never by a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, MISSING, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from edgekit.building.build_request import BuildRequest
from edgekit_converters.recipe.conversion_errors import CompressError
from edgekit_converters.recipe.option import (
    BUDGET_MS,
    OUTPUT,
    PROFILE,
    PROFILE_PATH,
    like,
    of_field,
    option,
    options_in,
)
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_runtime.system.errors import BundleError
from edgekit_runtime.system.files import read_regular

if TYPE_CHECKING:
    from edgekit_profiles import Profile

STEPS = ("split", "distill", "prune", "sparse", "qat")
"""Names of the steps, in the order in which they are carried out."""
_MOST_BYTES = 1 << 20
_NO_SHAPES: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class CompressRequest:
    """What to compress, with which data, and the limits."""

    model: Path
    train: str = option(
        MISSING,
        "Labelled inputs to train on: a folder with one sub-folder per class, .npz with `x` and `y`, data.yaml, COCO "
        ".json, or module:function.",
        metavar="SET",
    )
    evaluation: str = like(
        of_field(BuildRequest, "evaluation"),
        MISSING,
        help="Other labelled inputs, for evaluation; never trained on.",
    )
    output: Path = like(OUTPUT, Path("compressed"), help="Folder for the trained model and its report.")
    _: KW_ONLY
    steps: tuple[str, ...] = option(
        (),
        f"Steps to run, comma-separated: {', '.join(STEPS)}. Default: those that the limits require.",
        metavar="LIST",
        kind="list",
    )
    metric: str | None = like(of_field(BuildRequest, "metric"))
    max_drop: float | None = like(
        of_field(BuildRequest, "max_drop"), help="Largest accuracy loss allowed, in points: 1%."
    )
    profile: str = like(PROFILE, "", help="The board to estimate latency for.")
    budget_ms: float | None = like(BUDGET_MS, help="Longest inference allowed on the board, milliseconds.")
    epochs: float = option(
        10.0,
        "Most passes over --train; training stops early if held-out items no longer improve.",
        metavar="N",
        above=0,
    )
    teacher: Path | None = option(
        None, "distill: any model with the same outputs. Default: MODEL itself.", metavar="MODEL"
    )
    width: float | None = option(
        None,
        "distill: derive a student with this share of MODEL's channels: 0.5.",
        metavar="SHARE",
        above=0,
        below=1,
    )
    trust_model: bool = like(of_field(LoadOptions, "trust_model"), False)

    batch: int = option(64, "Items in one step.", least=1, in_file=True)
    rate: float = option(1e-3, "The first learning rate.", above=0, in_file=True)
    seed: int = option(0, "The same seed gives the same result.", least=0, in_file=True)
    start: Literal["sliced", "new"] = option(
        "sliced", "distill: the derived student starts from MODEL's weights or from new ones.", in_file=True
    )
    input_size: tuple[int, int] | None = option(
        None, "distill: derive a student for images of this height and width: [160, 160].", in_file=True
    )
    features: str | None = option(
        None,
        "distill: the student also learns this layer's output from the teacher. STUDENT=TEACHER if names differ.",
        in_file=True,
    )
    temperature: float = option(2.0, "distill: softmax temperature of class scores.", above=0, in_file=True)
    alpha: float = option(0.7, "distill: the teacher's share of the loss.", above=0, most=1, in_file=True)
    sparsity: float | None = option(
        None, "sparse: share of weights to set to zero: 0.5.", above=0, below=1, in_file=True
    )
    repair_s: float = option(
        0.0, "Seconds to run a build's repair, to show its result next to the steps. 0: skip it.",
        least=0, most=86_400, in_file=True,
    )  # fmt: skip
    beside: tuple[Path, ...] = option((), "Result folders of runs with other seeds, to show the spread.", in_file=True)
    contract: Path | None = like(of_field(BuildRequest, "contract"), in_file=True)
    shapes: Mapping[str, tuple[int, ...]] = like(of_field(LoadOptions, "shapes"), _NO_SHAPES, in_file=True)
    profile_paths: tuple[Path, ...] = like(PROFILE_PATH, (), in_file=True)
    cache: Path | None = like(of_field(BuildRequest, "cache"), in_file=True)
    jobs: int = 1

    @property
    def options(self) -> LoadOptions:
        return LoadOptions(shapes=self.shapes, trust_model=self.trust_model)

    @property
    def distills(self) -> bool:
        return self.teacher is not None or self.narrows

    @property
    def narrows(self) -> bool:
        """Whether the student is derived from the model."""
        return self.width is not None or self.input_size is not None

    def load_profile(self) -> Profile | None:
        from edgekit_profiles import open_catalogue

        return open_catalogue(self.profile_paths).load(self.profile) if self.profile else None


def read_recipe(path: Path) -> dict[str, Any]:
    """The fields that a recipe file gives. Raises CompressError naming file and key."""
    from edgekit_profiles.schema import parse_toml

    known = {one.name: one for one in options_in(CompressRequest)}
    keys = [name for name, one in known.items() if one.option.in_file]
    try:
        given = parse_toml(read_regular(path, _MOST_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CompressError(f"the recipe cannot be read: {error}", where=str(path), do="Check the file") from error
    found = {}
    for key, value in given.items():
        where = f"{path}: {key}"
        if key not in keys:
            do = f"Give {known[key].flag} on the command line" if key in known else f"Known keys: {', '.join(keys)}"
            raise CompressError(f"'{key}' is not a key of a recipe", where=where, do=do)
        try:
            read = known[key].read(value, where)
        except BundleError as error:
            raise CompressError(error.what, where=error.where, do=known[key].option.help) from error
        if known[key].type is Path:
            read = tuple(path.parent / one for one in read) if known[key].repeats else path.parent / read
        found[key] = read
    return found


def check(request: CompressRequest) -> None:
    """Raises EdgekitError for a request that cannot be carried out; imports nothing slow."""
    from edgekit.building.build_journey import check_cache
    from edgekit.packaging.writer import check_tools

    check_tools("convert")
    where = str(request.model)
    unknown = [step for step in request.steps if step not in STEPS]
    if unknown:
        raise CompressError(f"unknown step '{unknown[0]}'", do=f"Steps: {', '.join(STEPS)}")
    if request.model.suffix in (".h5", ".tflite"):
        raise CompressError(
            f"a file that ends in {request.model.suffix} cannot be trained",
            where=where,
            do="Give the model that it was made from: Keras 3 (save an .h5 file again with it), PyTorch or ONNX",
        )
    if request.model.suffix == ".keras" and request.trust_model:
        raise CompressError(
            "--trust-model trains no code of a .keras file",
            where=where,
            do="Leave it out, and replace layers that hold code, such as a Lambda, by built-in ones",
        )
    if not request.steps and request.max_drop is None and request.budget_ms is None:
        raise CompressError(
            "nothing to do: neither steps nor a limit are given", do="Give --max-drop 1%, or --steps qat"
        )
    for one in options_in(CompressRequest):
        value = getattr(request, one.name)
        if value is not None and not one.allows(value):
            bounds = " and ".join(f"{word} {bound:g}" for word, bound in one.bounds.items())
            name = one.name if one.option.in_file else one.flag
            raise CompressError(f"{name} is {value:g}", do=f"Give a number {bounds}. {one.option.help}".rstrip("."))
    _check_steps(request)
    request.load_profile()
    check_cache(request.cache)
    result = request.output / request.model.name
    if result.exists() and request.model.exists() and result.samefile(request.model):
        raise CompressError("the result would overwrite the model", where=where, do="Choose another folder with -o")


def _check_steps(request: CompressRequest) -> None:
    if ("sparse" in request.steps) != (request.sparsity is not None):
        raise CompressError(
            "the step sparse and sparsity need each other",
            do="Give both: --steps sparse, and sparsity = 0.5 in a --recipe file",
        )
    if "distill" in request.steps and not request.distills:
        raise CompressError(
            "the step distill needs a teacher or a student",
            do="Give --teacher MODEL, whose student is the model; or --width 0.5, to derive a student of it",
        )
    if request.steps and request.distills and "distill" not in request.steps:
        raise CompressError("--teacher, --width and input_size are for the step distill", do="Add it: --steps distill")
    if request.features is not None and not request.distills:
        raise CompressError(
            "features is for the step distill", do="Add a student: --steps distill --width 0.5, or --teacher"
        )
    if request.input_size is not None and min(request.input_size) < 1:
        raise CompressError(
            f"input_size is {list(request.input_size)}", do="Give the height and the width of a picture: [160, 160]"
        )
    if request.distills and not request.steps and request.budget_ms is None:
        raise CompressError("nothing calls for the step distill", do="Give --steps distill, or --budget-ms")
    if "prune" in request.steps and request.budget_ms is None:
        raise CompressError("the step prune needs a latency budget", do="Give --budget-ms, and --profile")
    if request.budget_ms is not None and not request.profile:
        raise CompressError("--budget-ms needs a board to estimate for", do="Give --profile too")
