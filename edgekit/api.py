"""`edgekit build` and `edgekit compress` for notebooks; the command line calls them too.

from edgekit import build

result = build("net.keras", profiles=["raspberry-pi-4"], calibration=x_train[:200], evaluation=(x_test, y_test))
result                          # in Jupyter: a table; elsewhere print(result)
result.bundles[0].path          # bundles/net-raspberry-pi-4.ekb
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgekit_converters.recipe.option import filled
from edgekit_converters.recipe.progress import Progress, silent

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from edgekit.building.build_report import BuildReport
    from edgekit.compressing.compress_report import CompressReport
    from edgekit.packaging.bundle_options import SigningOptions

    Data = str | Path | ArrayLike | tuple[ArrayLike, ArrayLike] | Mapping[str, ArrayLike]
    """A folder, a file or `module:function`; or arrays: items, (items, labels), or input name -> items."""


def build(
    model: str | Path,
    *,
    profiles: str | Sequence[str],
    calibration: Data | None = None,
    evaluation: Data | None = None,
    output: str | Path = "bundles",
    max_drop: float | None = None,
    budget_ms: float | None = None,
    recipes: Sequence[str] = (),
    metric: str | None = None,
    name: str | None = None,
    model_version: str = "1",
    contract: str | Path | None = None,
    shapes: Mapping[str, Sequence[int]] | Sequence[str] = (),
    constants: Mapping[str, float] | Sequence[str] = (),
    signature: str | None = None,
    trust_model: bool = False,
    allow_random: bool = False,
    repair_s: float = 120.0,
    alternates: int = 1,
    batches: Sequence[int] = (),
    degraded: Sequence[str | Path] = (),
    compare: str | Path | Sequence[str | Path] = (),
    sign: str | Sequence[str] | SigningOptions = (),
    encrypt: str | None = None,
    licence: str | None = None,
    rollout_seq: int | None = None,
    not_before: str | None = None,
    expires: str | None = None,
    compatible: Sequence[str] = (),
    profile_paths: Sequence[str | Path] = (),
    anchors: Sequence[str | Path] = (),
    jobs: int = min(2, os.cpu_count() or 1),
    cache: str | Path | bool = True,
    command: Sequence[str] = (),
    progress: Progress = silent,
    say: Callable[[str], None] = print,
) -> BuildReport:
    """Convert, compare and pack `model` for each board.

    Arguments have the names of the options of `edgekit build --help`.

    model: a path, or `module:function` for PyTorch.
    calibration, evaluation: arrays have one item a row; images are uint8 [N, H, W, C] or the model's own form.
    max_drop: points of the metric, 0.01 for 1 %; None is 5 %, and no limit on made-up inputs.
    sign: names of keys, or PEM files; their passphrases come from the environment.
    cache: a folder, False for none.
    command: the command line, for the report.
    say: receives warnings, and the artifacts as they are before repairs.

    Raises EdgekitError for what stops every board. A board without a bundle raises nothing: see `result.complete`.
    """
    given = locals()
    from edgekit.building.build_journey import build as journey
    from edgekit.building.build_request import BuildRequest
    from edgekit.packaging.bundle_options import BundleTerms, SigningOptions, checked_terms, refuse_past
    from edgekit_converters.choose import MAX_DROP
    from edgekit_runtime.bundle.secrets import load_secret

    given["terms"] = checked_terms(filled(BundleTerms, given))
    refuse_past(given["terms"])
    given["signing"] = sign if isinstance(sign, SigningOptions) else filled(SigningOptions, given)
    given["encrypt"] = None if encrypt is None else load_secret(encrypt)
    given["max_drop"] = MAX_DROP if max_drop is None and not allow_random else max_drop
    with _read(given, "calibration", "evaluation"):
        return journey(filled(BuildRequest, given), progress, say)


def compress(
    model: str | Path,
    *,
    train: Data,
    evaluation: Data,
    output: str | Path = "compressed",
    steps: Sequence[str] = (),
    metric: str | None = None,
    max_drop: float | None = None,
    profile: str = "",
    budget_ms: float | None = None,
    epochs: float = 10.0,
    batch: int = 64,
    rate: float = 1e-3,
    seed: int = 0,
    teacher: str | Path | None = None,
    width: float | None = None,
    start: Literal["sliced", "new"] = "sliced",
    input_size: tuple[int, int] | None = None,
    features: str | None = None,
    temperature: float = 2.0,
    alpha: float = 0.7,
    sparsity: float | None = None,
    repair_s: float = 0.0,
    beside: Sequence[str | Path] = (),
    contract: str | Path | None = None,
    shapes: Mapping[str, Sequence[int]] | Sequence[str] = (),
    trust_model: bool = False,
    profile_paths: Sequence[str | Path] = (),
    cache: str | Path | bool = True,
    progress: Progress = silent,
    say: Callable[[str], None] = print,
) -> CompressReport:
    """Train `model` a little more, narrower or for 8 bits.

    Arguments have the names of the options of `edgekit compress --help`.
    train, evaluation: as for `build`, with labels unless the model is a detector.

    Raises EdgekitError. Limits that are not kept raise nothing: see `result.kept`.
    """
    given = locals()
    from edgekit.compressing.compress_journey import compress as journey
    from edgekit.compressing.compress_request import CompressRequest

    with _read(given, "train", "evaluation"):
        return journey(filled(CompressRequest, given), progress, say)


@contextlib.contextmanager
def _read(given: dict[str, Any], *sets: str) -> Iterator[None]:
    """Replace data sets and the cache by paths, and NAME=VALUE by LoadOptions."""
    from edgekit_converters.recipe.store import default_folder
    from edgekit_converters.sources.load_options import LoadOptions

    shapes = _words(given["shapes"], lambda sizes: ",".join(map(str, sizes)))
    loading = {name: given[name] for name in ("signature", "trust_model") if name in given}
    options = LoadOptions.parse(shapes=shapes, constants=_words(given.get("constants", ()), str), **loading)
    given |= {"options": options, "shapes": options.shapes}
    if isinstance(given["cache"], bool):
        given["cache"] = default_folder() if given["cache"] else None
    with contextlib.ExitStack() as stack:
        given |= {name: _source(name, given[name], stack) for name in sets}
        yield


def _words(given: Mapping[str, Any] | Sequence[str], spell: Callable[[Any], str]) -> Iterator[str]:
    """The values in the command line's form, NAME=VALUE."""
    if isinstance(given, Mapping):
        yield from (f"{name}={spell(value)}" for name, value in given.items())
    else:
        yield from given


def _source(name: str, data: Data | None, stack: contextlib.ExitStack) -> str | None:
    """The path to read; arrays are written to NAME.npz, which the stack removes."""
    if data is None or isinstance(data, (str, Path)):
        return None if data is None else str(data)
    import numpy as np

    if isinstance(data, Mapping):
        arrays = dict(data)
    elif isinstance(data, tuple):
        if len(data) != 2:
            raise ValueError(f"{name}: a tuple is (items, labels), not {len(data)} arrays")
        arrays = {"x": data[0], "y": data[1]}
    else:
        arrays = {"x": data}
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="edgekit-data-"))
    file = Path(folder) / f"{name}.npz"
    np.savez(file, **{name: np.asarray(array) for name, array in arrays.items()})  # type: ignore[arg-type]
    return str(file)
