"""edgekit's own columns: python benchmarks/conversion/ours.py FORMAT CASE_FOLDER PLAIN REPAIRED, a process of its own.

- plain: what `edgekit build` makes of the recipe tflite-int8 or onnx-int8-qdq; where the model does not allow all of it
  in int8, the form with float islands that the build makes in its place;
- repaired: what `--max-drop 0.5%` makes of that, given evaluate.npz to keep the limit on, and `--max-drop 1%`, a cosine
  of 0.99, where there are neither labels nor classes; where the limit is kept as it is, that is the same artifact.

No model is treated by its name. Detection brings its own metric, `detection:map50`. The last line on stdout is JSON:
{"plain": {...}, "repaired": {...}}.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECIPES = {"tflite": "tflite-int8", "onnx": "onnx-int8-qdq"}
MAX_DROP = 0.005
MAX_DISTANCE = 0.01
REPAIR_S = 120.0


def main(form: str, folder: Path, plain: Path, repaired: Path) -> None:
    from edgekit_runtime.system.errors import EdgekitError

    start = time.monotonic()
    try:
        said = _both(form, folder, plain, repaired)
    except EdgekitError as error:
        refused = {"reason": f"refused: {error.what}"}
        said = {"plain": refused, "repaired": refused}
    said["repaired"]["seconds"] = round(time.monotonic() - start, 2)
    print("\n" + json.dumps(said), flush=True)


def _both(form: str, folder: Path, plain: Path, repaired: Path) -> dict[str, Any]:
    from edgekit.building.build_request import BuildRequest

    model = folder / (folder / "model.txt").read_text()
    calibrate = np.load(folder / "calibrate.npy")
    with np.load(folder / "evaluate.npz") as stored:
        evaluate = dict(stored)
    metric = "detection:map50" if evaluate.get("y", np.zeros(0)).ndim == 3 else None
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        np.savez(scratch / "calibrate.npz", x=calibrate)
        np.savez(scratch / "evaluate.npz", **evaluate)
        request = BuildRequest(
            model, (), output=scratch / "out", calibration=str(scratch / "calibrate.npz"),
            evaluation=str(scratch / "evaluate.npz"),
            max_drop=MAX_DROP, options=_options(model, calibrate), repair_s=REPAIR_S,
            metric=metric, cache=scratch / "kept",
        )  # fmt: skip
        return _built(request, RECIPES[form], plain, repaired)


def _options(model: Path, calibrate: NDArray[Any]) -> Any:
    """Axes that the file leaves free, as `--shape` would fix them."""
    from edgekit_converters.sources.load_options import LoadOptions

    if model.suffix != ".onnx":
        return LoadOptions()
    import onnx

    value = onnx.load(model).graph.input[0]
    sides = [axis.dim_value for axis in value.type.tensor_type.shape.dim]
    return LoadOptions(shapes={value.name: (1, *calibrate.shape[1:])}) if 0 in sides[1:] else LoadOptions()


def _built(request: Any, name: str, plain: Path, repaired: Path) -> dict[str, Any]:
    """The build's own steps up to the choice: every board would get the same bytes, and what misses the limit is shown
    too.
    """
    from edgekit.building.build_subject import open_subject
    from edgekit.building.evidence import evidence
    from edgekit.building.making import Maker, Workers
    from edgekit.building.repairing import Search, with_islands_beside, with_repairs
    from edgekit_converters.choose import ChoiceLimits
    from edgekit_converters.recipe.artifact import recipe
    from edgekit_converters.recipe.store import DiskStore

    start = time.monotonic()
    with Workers(1, lambda stage, done, total: None) as workers:
        subject = open_subject(request, DiskStore(request.cache), workers.progress)
        maker = Maker(subject, subject.workspace(workers.progress), workers)
        known = subject.reference.labels is not None or subject.contract.task == "classification"
        limits = ChoiceLimits(max_drop=MAX_DROP if known else MAX_DISTANCE)
        made = with_islands_beside(maker, [maker.make(recipe(name))])
        refused = next((one.failed for one in made if one.failed), None)
        first = next((one for one in made if one.artifact and one.fidelity), None)
        if first is None or first.artifact is None or first.fidelity is None:
            return {"plain": {"reason": f"refused: {refused}"}, "repaired": {"reason": f"refused: {refused}"}}
        plain.write_bytes(first.artifact.data)
        said = _told(first) | {"seconds": round(time.monotonic() - start, 2)}
        if refused:
            said["note"] = "with islands in float, as not all of it can be int8"
        found = evidence(first, subject, maker.workspace, workers.progress)["causes"]
        causes = [f"{cause['layer']}: {cause['what']}" for cause in found[:3]]
        after = with_repairs(maker, made, Search(limits, REPAIR_S, 1))
    best = min((one for one in after if one.artifact and one.fidelity), key=lambda one: one.fidelity.loss)
    repaired.write_bytes(best.artifact.data)
    story = _told(best) | {"drop_before": first.fidelity.loss, "causes": causes, "repaired": False}
    told = next((one.repair for one in after if one.repair), None)
    if told:
        story |= {"repaired": True, "met": told["met"], "why": told["why"], "tried": len(told["tried"])}
    return {"plain": said, "repaired": story}


def _told(made: Any) -> dict[str, Any]:
    plan = made.artifact.plan
    said = {"recipe": made.recipe.name, "ranges": plan.ranges, "steps": plan.steps, "drop": made.fidelity.loss}
    return said | {"float_layers": len(plan.float_layers)}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    main(sys.argv[1], *map(Path, sys.argv[2:5]))
