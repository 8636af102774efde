"""An artifact and MobileNetV1 timed on this machine, one thread each: how many times the one takes as long as the other.

    found = time_here([("tflite", data, "int8")])
    found[0].ratio                                # 1.8: with the board's MobileNetV1, what it will take there

Rules:
- both are timed in one run, in turn, a few times over, and the least counts: what else this machine does makes any other
  figure larger (a median can be twice the least on a shared machine, and then says nothing of the network);
- the clock is the thread's own processor time: one thread computes, and waiting for a busy processor is not its work;
- rounds go on until the two best of each agree; where they never do, the machine is too busy, and nothing is told;
- only what was tested is offered: an x86-64 machine, LiteRT, float32 and int8.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_profiles import CannotEstimateError, HostTimes
from edgekit_runtime.engines import Engine, available, load_engine
from edgekit_runtime.tensors import TensorSpec

__all__ = ["can_time_here", "time_here"]

ENGINE = "litert"
_PRECISIONS = ("float32", "int8")
_WARM_UP, _LEAST_RUNS, _ROUND_S = 3, 4, 0.08
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 8
_AGREE, _AT_ALL = 1.05, 1.2
"""By how much the two best rounds may differ to be done, and to count after the last round."""

Asked = tuple[str, bytes, str]
"""format, bytes, precision"""


def can_time_here(format: str, precision: str) -> str:  # noqa: A002
    """Why this machine cannot time such an artifact for boards; empty where it can."""
    if format != "tflite" or precision not in _PRECISIONS:
        return f"ratios of {precision} {format} files were never tested"
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"ratios were tested on x86-64 only, and this is {platform.machine()}"
    if ENGINE not in available():
        return "LiteRT is not installed here: pip install 'edgekit-deploy[litert]'"
    return ""


def time_here(
    asked: Sequence[Asked], clock: Callable[[], float] = time.thread_time, engine: str = ENGINE
) -> list[HostTimes]:
    """Of each artifact, in their order; about a third of a second for each and for each precision's MobileNetV1, more for
    what takes longer than that. Raises CannotEstimateError where an input's size is free or this machine is too busy,
    EngineError for a file that the engine refuses."""
    from edgekit_converters.zoo.mobilenet_v1 import anchor_model

    precisions = sorted({precision for _, _, precision in asked})
    references = [("tflite", anchor_model("tflite", precision), precision) for precision in precisions]
    with ExitStack() as stack:
        engines = [
            stack.enter_context(load_engine(form, data, engine=engine)) for form, data, _ in (*references, *asked)
        ]
        least = _least_ms([_runner(one) for one in engines], clock)
        version = engines[0].info.version
    reference = dict(zip(precisions, least, strict=False))
    machine = f"{platform.node()} ({platform.machine()})"
    return [
        HostTimes(round(ms, 4), round(reference[precision], 4), engine, version, machine)
        for (_, _, precision), ms in zip(asked, least[len(references) :], strict=True)
    ]


def _least_ms(runs: Sequence[Callable[[], object]], clock: Callable[[], float]) -> list[float]:
    for run in runs:
        for _ in range(_WARM_UP):
            run()
    rounds: list[list[float]] = [[] for _ in runs]
    for number in range(_MOST_ROUNDS):
        for run, found in zip(runs, rounds, strict=True):
            found.append(_round(run, clock))
        if number + 1 >= _LEAST_ROUNDS and all(_agree(found, _AGREE) for found in rounds):
            break
    if not all(_agree(found, _AT_ALL) for found in rounds):
        raise CannotEstimateError("this machine is too busy to time anything", do="Try again when it is idle")
    return [min(found) * 1e3 for found in rounds]


def _round(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds of the fastest run of a short block."""
    start, least, count = clock(), float("inf"), 0
    while count < _LEAST_RUNS or clock() - start < _ROUND_S:
        before = clock()
        run()
        least = min(least, clock() - before)
        count += 1
    return least


def _agree(found: Sequence[float], within: float) -> bool:
    best, second = sorted(found)[:2]
    return second <= within * best


def _runner(engine: Engine) -> Callable[[], object]:
    random = np.random.default_rng(0)
    inputs = [_made_up(spec, random) for spec in engine.inputs]
    return lambda: engine.run(inputs)


def _made_up(spec: TensorSpec, random: np.random.Generator) -> NDArray[Any]:
    """Noise, of one item; nothing for whole numbers, which may be places in a table."""
    shape = (1, *spec.shape[1:]) if spec.free_batch else spec.shape
    if any(side < 1 for side in shape):
        what = f"the size of its input '{spec.name}' is free, {list(spec.shape)}"
        raise CannotEstimateError(what, do="Fix it when the model is built: edgekit build --shape")
    if spec.dtype.startswith("float"):
        return (random.random(shape) * 2 - 1).astype(spec.dtype)
    if spec.dtype in ("int8", "uint8"):
        return random.integers(0, 127, shape).astype(spec.dtype)
    return np.zeros(shape, spec.dtype)
