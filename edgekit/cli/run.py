"""edgekit run: ask a bundle for answers on this machine."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli.options import BUNDLE, as_json, budget_ms, print_json, threads, trust

if TYPE_CHECKING:
    from edgekit_runtime import Answer, Model
    from edgekit_runtime.contract import Contract

__all__ = ["run"]


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.argument("inputs", nargs=-1, required=True)
@budget_ms
@click.option("--top", "k", default=5, show_default=True, type=click.IntRange(1), help="Classes to show.")
@click.option("--engine", metavar="NAME", help="litert, tflite-runtime or onnxruntime. Default: what is installed.")
@threads
@click.option("--telemetry", metavar="URL", help="Report to this broker: mqtt://host:1883. Needs --device.")
@click.option("--device", metavar="ID", help="This board's id in the fleet.")
@click.option(
    "--window-s", type=click.FloatRange(0.1, 86_400), default=60.0, show_default=True, help="A report's length."
)
@trust
@as_json
def run(bundle: Path, inputs: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Answer each of INPUTS (images; .npy or .npz arrays) with BUNDLE. Exits 1 when one of them got no answer."""
    from edgekit_runtime import EdgekitError, open_bundle

    k, budget = options.pop("k"), options.pop("budget_ms")
    answers: list[dict[str, Any]] = []
    failed = False
    with open_bundle(bundle, **options) as model:
        for given in inputs:
            try:
                answer = model.predict(_load(given, model.contract), budget_ms=budget)
            except EdgekitError as error:
                failed = True
                answers.append({"input": given, "error": error.as_json()})
                if not as_json:
                    click.echo(f"error: {error}", err=True)
                continue
            answers.append(_as_json(given, answer, k))
            if not as_json:
                _print(given, answer, k)
    _tell_telemetry(model)
    if as_json:
        print_json({"answers": answers})
    return 1 if failed else 0


def _tell_telemetry(model: Model) -> None:
    """Say so where a report has not arrived: the answers are there all the same."""
    told = model.stats().telemetry
    if told is not None and told.waiting:
        why = told.trouble or ("no fleet has confirmed it" if told.sent else "not connected")
        click.echo(f"telemetry: {why}; {told.waiting} window(s) wait in the spool", err=True)


def _load(given: str, contract: Contract) -> Any:
    """Arrays from .npy and .npz files; anything else is the decoder's business."""
    if not given.endswith((".npy", ".npz")):
        return given
    from edgekit_runtime.array_file import read_arrays
    from edgekit_runtime.contract.decode import MAX_PIXELS

    # The widest numbers of the shape, or the largest picture that the decoder takes.
    most = max(16 * math.prod(spec.shape) + (spec.image is not None) * 4 * MAX_PIXELS for spec in contract.inputs)
    arrays = read_arrays(Path(given), most)
    return arrays if len(arrays) > 1 else next(iter(arrays.values()), None)


def _as_json(given: str, answer: Answer, k: int) -> dict[str, Any]:
    top = None
    if answer.contract.task == "classification":
        top = [{"label": p.label, "index": p.index, "score": p.score} for p in answer.top(k)]
    outputs = {
        name: {"shape": list(array.shape), "dtype": array.dtype.name, "values": array.ravel().tolist()}
        for name, array in answer.outputs.items()
    }
    return {
        "input": given,
        "top": top,
        "boxes": None,
        "outputs": outputs,
        "source": answer.source,
        "timings_ms": dict(answer.timings),
        "met_budget": answer.met_budget,
    }


def _print(given: str, answer: Answer, k: int) -> None:
    late = "" if answer.met_budget is not False else ", over budget"
    click.echo(f"{given}   {answer.timings['total']:.1f} ms from the {answer.source}{late}")
    if answer.contract.task == "classification":
        for p in answer.top(k):
            click.echo(f"  {100 * p.score:5.1f} %  {p.label}")
        return
    for name, array in answer.outputs.items():
        flat = array.ravel()
        values = ", ".join(f"{v:.5g}" for v in flat[:8]) + (", ..." if flat.size > 8 else "")
        click.echo(f"  {name} {array.dtype}{list(array.shape)}: {values}")
