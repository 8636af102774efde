"""edgekit's own columns: python benchmarks/conversion/ours.py COLUMN CASE_FOLDER OUT, a process of its own.

- `edgekit-tflite`, `edgekit-onnx`: the recipe tflite-int8 or onnx-int8-qdq with its default plan;
- `...-repaired`: what `edgekit build --max-drop 0.5%` makes of the same recipe, given evaluate.npz to keep the limit on;
  where the recipe keeps the limit as it is, that is the same artifact.

No model is treated by its name. Detection brings its own metric, `detection:map50`; where there is neither a truth nor a
class, the limit is kept on the cosine with the original's answers, `scoring:alike`. The last line on stdout is JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECIPES = {"tflite": "tflite-int8", "onnx": "onnx-int8-qdq"}
MAX_DROP = 0.005
REPAIR_S = 120.0


@dataclass(frozen=True)
class Inputs:
    """Calibration inputs, one array an item, with a batch axis of 1."""

    arrays: NDArray[Any]

    def __len__(self) -> int:
        return len(self.arrays)

    def __iter__(self) -> Iterator[Sequence[NDArray[Any]]]:
        return ([np.ascontiguousarray(array)[None]] for array in self.arrays)


def main(column: str, folder: Path, out: Path) -> None:
    from edgekit_runtime.errors import EdgekitError

    start = time.monotonic()
    said: dict[str, Any] = {}
    try:
        said |= _repaired(folder, out) if column.endswith("-repaired") else _plain(folder, out)
    except EdgekitError as error:
        said["reason"] = f"refused: {error.what}"
    said["seconds"] = round(time.monotonic() - start, 2)
    print("\n" + json.dumps(said), flush=True)


def _plain(folder: Path, out: Path) -> dict[str, Any]:
    from edgekit_converters import sources
    from edgekit_converters.targets.recipes import recipe
    from edgekit_converters.targets.workspace import Workspace

    model = folder / (folder / "model.txt").read_text()
    calibrate = np.load(folder / "calibrate.npy", mmap_mode="r")
    source = sources.load(model, _options(model, calibrate))
    artifact = Workspace(source, Inputs(calibrate)).make(recipe(RECIPES[out.suffix[1:]]))
    out.write_bytes(artifact.data)
    return {"steps": artifact.plan.steps, "ranges": artifact.plan.ranges}


def _options(model: Path, calibrate: NDArray[Any]) -> Any:
    """Axes that the file leaves free, as `--shape` would fix them."""
    from edgekit_converters.sources.options import LoadOptions

    if model.suffix != ".onnx":
        return LoadOptions()
    import onnx

    value = onnx.load(model).graph.input[0]
    sides = [axis.dim_value for axis in value.type.tensor_type.shape.dim]
    return LoadOptions(shapes={value.name: (1, *calibrate.shape[1:])}) if 0 in sides[1:] else LoadOptions()


def _repaired(folder: Path, out: Path) -> dict[str, Any]:
    import tempfile

    from edgekit.building import BuildRequest

    model = folder / (folder / "model.txt").read_text()
    calibrate = np.load(folder / "calibrate.npy")
    with np.load(folder / "evaluate.npz") as stored:
        evaluate = dict(stored)
    metric = "detection:map50" if evaluate.get("y", np.zeros(0)).ndim == 3 else None
    if np.load(folder / "truth.npz").files == ["who"]:
        metric, evaluate["y"] = "scoring:alike", _original(model, evaluate["x"])
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        np.savez(scratch / "calibrate.npz", x=calibrate)
        np.savez(scratch / "evaluate.npz", **evaluate)
        request = BuildRequest(
            model, (), scratch / "out", str(scratch / "calibrate.npz"), str(scratch / "evaluate.npz"),
            max_drop=MAX_DROP, options=_options(model, calibrate), repair_s=REPAIR_S,
            metric=metric,
        )  # fmt: skip
        return _built(request, RECIPES[out.suffix[1:]], out)


def _original(model: Path, x: NDArray[Any]) -> NDArray[Any]:
    """The original's largest output for each item, flat."""
    from edgekit_converters import sources

    answers = sources.load(model).predict([x])
    largest = max((np.asarray(answer) for answer in answers), key=lambda array: array[0].size)
    return largest.reshape(len(largest), -1)


def _built(request: Any, name: str, out: Path) -> dict[str, Any]:
    """The build's own steps up to the choice: every board would get the same bytes, and what misses the limit is shown too."""
    from edgekit.building.candidates import Maker, make
    from edgekit.building.evidence import evidence
    from edgekit.building.repairing import with_repairs
    from edgekit.building.subject import open_subject
    from edgekit.building.workers import Workers
    from edgekit_converters.choose import Limits, drop_of
    from edgekit_converters.store import NO_STORE
    from edgekit_converters.targets.recipes import recipe

    with Workers(1, lambda stage, done, total: None) as workers:
        subject = open_subject(request, NO_STORE, workers.progress)
        maker = Maker(subject, subject.workspace(workers.progress), workers)
        made = make(maker, [recipe(name)])
        plain = made[0]
        if plain.artifact is None or plain.fidelity is None:
            return {"reason": f"refused: {plain.failed}"}
        story: dict[str, Any] = {"drop_before": drop_of(plain.fidelity), "repaired": False}
        causes = evidence(plain, subject, maker.workspace, workers.progress)["causes"]
        story["causes"] = [f"{cause['layer']}: {cause['what']}" for cause in causes[:3]] if causes else []
        after = with_repairs(maker, made, Limits(max_drop=MAX_DROP), REPAIR_S, 1)
    best = min((one for one in after if one.artifact and one.fidelity), key=lambda one: drop_of(one.fidelity) or 0.0)
    told = next((one.repair for one in after if one.repair), None)
    if told:
        story |= {"repaired": True, "met": told["met"], "why": told["why"], "tried": len(told["tried"])}
    out.write_bytes(best.artifact.data)
    story |= {"drop": drop_of(best.fidelity), "recipe": best.recipe.name, "steps": best.artifact.plan.steps}
    return story | {"ranges": best.artifact.plan.ranges, "float_layers": len(best.artifact.plan.float_layers)}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
