"""Try inputs that no calibration set holds and every device meets: silence, a covered lens.

    verdicts = odd_inputs(artifact, contract)
    [v for v in verdicts if not v.ok]     # OddInputVerdict(name="zeros", ok=False, what="the engine died with SIGFPE")

Each runs in a child process, because an engine may crash its process. A non-finite answer counts as a failure.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.dataset import sets_of
from edgekit_converters.recipe.artifact import Artifact
from edgekit_runtime.bundle.jobs import ChildOutcome, Run, Say, ask, serve
from edgekit_runtime.contract.adapt import Adapter, Finisher
from edgekit_runtime.contract.spec import Contract, InputContract, OutputContract, TensorSpec
from edgekit_runtime.engines.registry import load_engine
from edgekit_runtime.system.children import python_module
from edgekit_runtime.system.children import run as run_child
from edgekit_runtime.system.errors import EdgekitError
from edgekit_runtime.system.strict_json import from_json, to_json

TIMEOUT_S = 120.0

ODD_SAMPLES = {
    "zeros": "an input of zeros",
    "ones": "an input of ones",
    "smallest": "an input of the smallest value throughout",
    "largest": "an input of the largest value throughout",
    "single": "an input with a single value that is not zero",
    "alternating": "an input that alternates between its extremes",
    "noise": "an input of noise",
}
"""Name -> the sample in words."""


@dataclass(frozen=True)
class OddInputVerdict:
    """name: of the sample.
    ok: whether it was answered with finite numbers.
    what: what happened otherwise, in words.
    """

    name: str
    ok: bool
    what: str = ""


def odd_inputs(artifact: Artifact, contract: Contract, *, run: Run = run_child) -> tuple[OddInputVerdict, ...]:
    """Run every odd sample through the artifact in a child, and a new child after a crash.

    Engine failures become verdicts; raises OSError if no process can be started.
    """
    names = [name for name, _ in odd_samples(contract)]
    found: dict[str, OddInputVerdict] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        model.write_bytes(artifact.data)
        while left := [name for name in names if name not in found]:
            # Verdicts of one child; where it died, the first sample without one is what killed it
            job: dict[str, Any] = {
                "model": str(model),
                "format": artifact.recipe.format,
                "names": list(left),
                "task": contract.task,
                "inputs": to_json(contract.inputs),
                "outputs": to_json(contract.outputs),
                "tensors": [to_json(side) for side in (artifact.inputs, artifact.outputs)],
            }
            came = ask(python_module(__name__), job, silence_s=TIMEOUT_S, run=run)
            verdicts = [OddInputVerdict(**fact) for fact in came.facts if "name" in fact]
            answered = {verdict.name for verdict in verdicts}
            missing = [name for name in job["names"] if name not in answered]
            # before the first sample it was the file itself, which fails for every one
            blamed = missing[:1] if {"loaded": True} in came.facts else missing
            for verdict in [*verdicts, *(OddInputVerdict(name, False, _death(came)) for name in blamed)]:
                found[verdict.name] = verdict
    return tuple(found[name] for name in names)


def odd_samples(contract: Contract) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
    """(name, canonical inputs) of every odd sample, the same at each call."""
    generator = np.random.default_rng(0)
    makers: dict[str, Callable[[NDArray[Any], float, float], NDArray[Any]]] = {
        "zeros": lambda a, low, high: a * 0,
        "ones": lambda a, low, high: a * 0 + 1,
        "smallest": lambda a, low, high: a * 0 + low,
        "largest": lambda a, low, high: a * 0 + high,
        "single": lambda a, low, high: np.where(np.arange(a.size).reshape(a.shape) == 0, high, 0),
        "alternating": lambda a, low, high: np.where(np.arange(a.size).reshape(a.shape) % 2 == 0, low, high),
        "noise": lambda a, low, high: generator.uniform(low, high, a.shape),
    }
    for name, make in makers.items():
        inputs = {}
        for spec in contract.inputs:
            dtype, low, high = sets_of(spec).extent(spec)
            inputs[spec.name] = np.asarray(make(np.zeros(spec.shape), low, high)).astype(dtype)
        yield name, inputs


def _death(came: ChildOutcome) -> str:
    if came.silent:
        return f"there was no answer within {TIMEOUT_S:.0f} s"
    if signal := came.crashed or came.interrupted:
        return f"the engine died with {signal}"
    if came.error is not None:
        return f"the engine failed: {came.error}"
    return f"the engine failed: {came.last_words}" if came.last_words else "the process ended without an answer"


def _work(job: dict[str, Any], say: Say) -> dict[str, Any]:
    """The child: says one fact a sample before it tries the next."""
    inputs = from_json(tuple[InputContract, ...], job["inputs"], "the contract's inputs")
    outputs = from_json(tuple[OutputContract, ...], job["outputs"], "the contract's outputs")
    contract = Contract(job["task"], inputs, outputs)
    took, gave = (from_json(tuple[TensorSpec, ...], side, "the artifact's tensors") for side in job["tensors"])
    adapters, finish = [Adapter(contract.input(spec.name), spec) for spec in took], Finisher(contract, gave)
    samples = dict(odd_samples(contract))
    with load_engine(job["format"], Path(job["model"]).read_bytes()) as engine:
        say({"loaded": True})
        for name in job["names"]:
            values = samples[name]
            arrays = [adapt(values[spec.name]) for adapt, spec in zip(adapters, took, strict=True)]
            rows = max((spec.shape[0] for spec in took if spec.shape), default=1)
            filled = [np.repeat(array, rows, axis=0) if rows > 1 else array for array in arrays]
            try:
                answer = finish(engine.run(filled))
            except EdgekitError as error:
                say(asdict(OddInputVerdict(name, False, str(error))))
                continue
            bad = [output for output, value in answer.items() if not np.isfinite(value).all()]
            say(asdict(OddInputVerdict(name, not bad, f"'{bad[0]}' is NaN or infinite" if bad else "")))
    return {}


if __name__ == "__main__":
    sys.exit(serve(_work))
