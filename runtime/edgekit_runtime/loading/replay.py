"""Golden examples through an engine, and the distance of each answer from the packed one.

    tested = replay(bundle, entry, engine)                 # SelfTestError at the first that is out of tolerance
    stepper = Stepper(contract, entry.inputs, entry.outputs, engine)
    outputs = stepper.step({"audio": frame})               # named, dequantized, without the states that are carried

Rules:
- with the engine and version that made the golden outputs, values must agree within a few quantization steps; with any
  other, the best class must be the same and the cosine high. The tokens of a language model must be the same;
- a stateful model's examples are sequences: every frame must agree, in order, from a fresh state; the cosine is of the
  whole sequence, and the best class of single frames is not compared;
- a frame that fails leaves an explicit state as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.bundle.manifest import ArtifactEntry, GoldenOutputs
from edgekit_runtime.bundle.reader import Bundle
from edgekit_runtime.contract.adapt import Adapter, Carry, Finisher, dequantize
from edgekit_runtime.contract.spec import Contract, TensorSpec
from edgekit_runtime.engines.registry import Engine, EngineInfo, on_gpu
from edgekit_runtime.system.errors import SelfTestError
from edgekit_runtime.system.records import record


class Stepper:
    """One artifact on one engine, frame after frame. One thread at a time.

    engine: its own state, if any, must be fresh.
    """

    def __init__(
        self, contract: Contract, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], engine: Engine
    ) -> None:
        self._carry = Carry(contract, inputs, outputs)
        self._adapters = [(spec.name, Adapter(contract.input(spec.name), spec)) for spec in self._carry.asked]
        self._finish = Finisher(contract.of_caller, outputs)
        self._engine = engine
        self._inside = contract.state == "internal"
        self._ran = False
        self._state = self._carry.begin()

    @property
    def state(self) -> dict[str, NDArray[Any]]:
        """The state tensors of the next frame by contract name, with their batch axis."""
        return dict(zip(self._carry.names, self._state, strict=True))

    def raw(self, items: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """One frame: all of the engine's raw outputs. Raises EngineError, InputError."""
        tensors = [adapt(items[name]) for name, adapt in self._adapters]
        self._ran = True
        outputs = self._engine.run(self._carry.feed(tensors, self._state))
        self._state = self._carry.after(outputs)
        return outputs

    def step(self, items: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """One frame: what a caller gets."""
        return self._finish(self.raw(items))

    def reset(self) -> None:
        """The next frame is a first one."""
        self._state = self._carry.begin()
        if self._inside and self._ran:
            self._engine.reset()
        self._ran = False


_FLOAT_STEP = 1e-4
ELSEWHERE_COSINE = 0.95
"""Least cosine of the answers of two precisions of one model, on two machines."""


@record(frozen=True)
class SelfTest:
    """examples: golden pairs that agreed, now or when this engine was opened here before.
    same_engine: this engine and version made them.
    worst_steps: the largest difference, in quantization steps (or 1e-4 of the largest value, for float outputs).
    worst_cosine: the least similarity of an output with its golden one.
    """

    examples: int
    same_engine: bool
    worst_steps: float
    worst_cosine: float


@record(frozen=True)
class OutputComparison:
    """One output of one golden example, compared with its golden one.

    steps: the largest difference, in quantization steps (or 1e-4 of the largest golden value, for float outputs).
    same_best: of a classification, whether the best class is the same.
    made_by: the engine and version that made the golden output; same_engine: they are this one.
    fits: the verdict.
    frame: ` at frame N` of a sequence.
    """

    golden: int
    output: str
    steps: float
    cosine: float
    same_best: bool
    same_engine: bool
    made_by: str
    fits: bool
    frame: str = ""


def replay(
    bundle: Bundle,
    entry: ArtifactEntry,
    engine: Engine,
    enough: Callable[[], bool] | None = None,
    *,
    exact: bool = True,
) -> SelfTest:
    """Run every golden example and compare; a sequence frame by frame, each from a fresh state.

    enough: called after each example; True ends the replay.
    exact: see `compare_goldens`.
    Raises SelfTestError at the first that is out of tolerance.
    """
    examples: set[int] = set()
    worst_steps, worst_cosine, same = 0.0, 1.0, True
    for one in compare_goldens(bundle, entry, engine, enough, exact=exact):
        if not one.fits:
            apart = SelfTestError(
                f"golden example {one.golden} of '{one.output}' differs by {one.steps:.0f} steps{one.frame} (cosine "
                f"{one.cosine:.4f}{'' if one.same_best else ', another best class'}); it was made by {one.made_by}, "
                f"this is {engine.info.name} {engine.info.version}",
                where=str(bundle.path),
                do="Do not use this bundle here: build it for this runtime, or install the engine it was built with",
            )
            apart.steps, apart.cosine = one.steps, one.cosine
            raise apart
        examples.add(one.golden)
        same = same and one.same_engine
        worst_steps, worst_cosine = max(worst_steps, one.steps), min(worst_cosine, one.cosine)
    return SelfTest(len(examples), same, worst_steps, worst_cosine)


def compare_goldens(
    bundle: Bundle,
    entry: ArtifactEntry,
    engine: Engine,
    enough: Callable[[], bool] | None = None,
    *,
    exact: bool = True,
) -> Iterator[OutputComparison]:
    """Compare every output of the golden examples with the engine's. enough: see `replay`.

    exact: False if other kernels made the golden outputs, so steps mean nothing.
    """
    contract = bundle.manifest.contract
    stepper = Stepper(contract, entry.inputs, entry.outputs, engine)
    for number, golden in enumerate(bundle.manifest.golden):
        answer = next((a for a in golden.answers if a.recipe == entry.recipe), None)
        if answer is None:
            continue
        got = _run_item(stepper, bundle.golden_items(golden), golden.steps)
        same_engine = exact and _is_same_engine(answer, engine.info)
        for tensor in entry.outputs:
            if tensor.name not in answer.outputs:
                continue
            here, wanted = got[tensor.name], _golden_output(bundle, answer, tensor, golden.steps)
            steps, cosine = _difference(here, wanted, tensor)
            classifier = contract.task == "classification" and tensor.name == contract.outputs[0].name
            same_best = golden.steps is not None or not classifier or _best(here) == _best(wanted)
            # Another engine's answer to a silent sequence has no direction to compare; its distance is what counts.
            near = steps <= answer.tolerance.steps
            agrees = near if same_engine else cosine >= answer.tolerance.cosine or (golden.steps is not None and near)
            if contract.task == "generation":  # ids of tokens that were clear: any version must choose the same
                agrees = steps == 0
            fits = agrees and same_best and bool(np.isfinite(here).all())
            frame = ""
            if not fits and golden.steps is not None:  # of a sequence: the frame that differs most
                apart = [_difference(a, b, tensor)[0] for a, b in zip(here, wanted, strict=True)]
                frame = f" at frame {int(np.argmax(apart))}"
            made_by = f"{answer.engine} {answer.engine_version}"
            yield OutputComparison(number, tensor.name, steps, cosine, same_best, same_engine, made_by, fits, frame)
        if enough is not None and enough():
            break
    if contract.state == "internal":  # the engine's next user begins afresh
        engine.reset()


def check_same_bits(bundle: Bundle, entry: ArtifactEntry, engine: Engine, exact: Engine) -> None:
    """Raise SelfTestError for a golden input on which the engines' answers differ in any bit."""
    steppers = [Stepper(bundle.manifest.contract, entry.inputs, entry.outputs, one) for one in (engine, exact)]
    for number, golden in enumerate(bundle.manifest.golden):
        ours, theirs = (_run_item(stepper, bundle.golden_items(golden), golden.steps) for stepper in steppers)
        for name, values in ours.items():
            if values.tobytes() != theirs[name].tobytes():
                raise SelfTestError(
                    f"its 8-bit sums saturate: '{name}' of golden example {number} differs from what exact "
                    f"arithmetic gives",
                    where=str(bundle.path),
                    do="Nothing to do: exact arithmetic is used",
                )
    for stepper in steppers:
        stepper.reset()


def replay_batch(bundle: Bundle, entry: ArtifactEntry, engine: Engine, batch: int) -> None:
    """Run `batch` golden items at once: each must get the answer that it gets alone.

    Not for sequences. Raises SelfTestError at the first that is out of tolerance.
    """
    contract = bundle.manifest.contract
    adapters = [(tensor.name, Adapter(contract.input(tensor.name), tensor)) for tensor in entry.inputs]
    finisher = Finisher(contract, entry.outputs)
    examples = [(golden, a) for golden in bundle.manifest.golden for a in golden.answers if a.recipe == entry.recipe]
    chosen = [examples[row % len(examples)] for row in range(batch)]
    items = [bundle.golden_items(golden) for golden, _ in chosen]
    raw = engine.run([np.concatenate([adapt(item[name]) for item in items]) for name, adapt in adapters])
    for row, (_, answer) in enumerate(chosen):
        got = finisher(raw, row)
        for tensor in entry.outputs:
            if tensor.name not in answer.outputs:
                continue
            wanted = _golden_output(bundle, answer, tensor, None)
            steps, cosine = _difference(got[tensor.name], wanted, tensor)
            near = steps <= answer.tolerance.steps
            if not (near if _is_same_engine(answer, engine.info) else cosine >= answer.tolerance.cosine):
                raise SelfTestError(
                    f"in a batch of {batch}, '{tensor.name}' of item {row} differs by {steps:.0f} steps (cosine "
                    f"{cosine:.4f}) from what it is alone",
                    where=str(bundle.path),
                    do="Open it with batching=False",
                )


def check_same_rows(bundle: Bundle, entry: ArtifactEntry, single: Engine, engine: Engine, batch: int) -> None:
    """Check to the bit that each of `batch` items, golden and random, gets what it gets alone.

    In two orders. Answers that are all alike prove nothing. Raises SelfTestError.
    """
    random, contract, goldens = np.random.default_rng(batch), bundle.manifest.contract, bundle.manifest.golden
    adapters = [(tensor.name, Adapter(contract.input(tensor.name), tensor)) for tensor in entry.inputs]
    items = [bundle.golden_items(goldens[row // 2 % len(goldens)]) for row in range(batch)]
    tensors = [[adapt(item[name]) for name, adapt in adapters] for item in items]
    tensors[1::2] = [[_random_like(random, tensor) for tensor in item] for item in tensors[1::2]]
    alone = [[output.tobytes() for output in single.run(item)] for item in tensors]
    for order in (range(batch), random.permutation(batch)):
        outputs = engine.run([np.concatenate(column) for column in zip(*(tensors[n] for n in order), strict=True)])
        for output, wanted in zip(outputs, zip(*(alone[n] for n in order), strict=True), strict=True):
            if len(set(wanted)) == 1 or tuple(row.tobytes() for row in output) != wanted:
                raise SelfTestError("its rows differ from what each item gets alone, or are all alike")


def _random_like(random: np.random.Generator, tensor: NDArray[Any]) -> NDArray[Any]:
    if tensor.itemsize == 1:
        return random.integers(0, 256, tensor.shape, np.uint8).view(tensor.dtype)
    return random.normal(tensor.mean(), tensor.std() + 1, tensor.shape).astype(tensor.dtype)


@record(frozen=True)
class ReplayExample:
    """A golden example for another machine.

    items: the canonical inputs.
    answers: for each artifact its outputs, by name.
    """

    items: Mapping[str, NDArray[Any]]
    answers: Sequence[Mapping[str, NDArray[Any]]] = ()


def clearest_example(bundle: Bundle) -> ReplayExample:
    """The golden example with the most distinct best class, or the first; of a stateless model."""
    manifest = bundle.manifest
    found = []
    for golden in manifest.golden:
        answers = []
        for answer in golden.answers:
            tensors = [one for one in bundle.artifact(answer.recipe).outputs if one.name in answer.outputs]
            answers.append({tensor.name: _golden_output(bundle, answer, tensor, None) for tensor in tensors})
        found.append((golden, answers))
    place = 0
    if manifest.contract.task == "classification":
        scores = manifest.contract.outputs[0].name
        best = [[np.sort(answer[scores], axis=None)[-2:] for answer in answers] for _, answers in found]
        clear = [min((float(two[-1] - two[0]) for two in each), default=0.0) for each in best]
        place = int(np.argmax(clear))
    golden, answers = found[place]
    return ReplayExample(bundle.golden_items(golden), answers)


def differs(contract: Contract, got: Mapping[str, NDArray[Any]], wanted: Mapping[str, NDArray[Any]]) -> str:
    """How one model's answers on two machines differ, for a message; empty within tolerance.

    The best class of a classifier must be the same, and each output similar (cosine).
    """
    for output in contract.outputs:
        if output.name not in wanted:
            continue
        here, there = wanted[output.name], got[output.name]
        if contract.task == "classification" and output is contract.outputs[0] and _best(here) != _best(there):
            return f"the best class is {_best(there)}, not {_best(here)}"
        _, cosine = _difference(there, here)
        if not cosine >= ELSEWHERE_COSINE:
            return f"'{output.name}' has a cosine of {cosine:.4f}, not {ELSEWHERE_COSINE} or more"
    return ""


def _is_same_engine(answer: GoldenOutputs, info: EngineInfo) -> bool:
    """A delegate or a GPU may round as it likes, so it counts as another engine."""
    other = info.delegate is not None or on_gpu(info.name, info.kernels)
    return not other and (answer.engine, answer.engine_version) == (info.name, info.version)


def _run_item(stepper: Stepper, items: Mapping[str, NDArray[Any]], frames: int | None) -> dict[str, NDArray[Any]]:
    """One item's outputs by name; of a sequence all frames', [frames, ...]."""
    stepper.reset()
    if frames is None:
        return dict(stepper.step(items))
    answers = [stepper.step({name: array[at] for name, array in items.items()}) for at in range(frames)]
    return {name: np.stack([answer[name] for answer in answers]) for name in answers[0]}


def _best(scores: NDArray[Any]) -> int:
    return int(np.argmax(scores))


def _golden_output(bundle: Bundle, answer: GoldenOutputs, tensor: TensorSpec, frames: int | None) -> NDArray[Any]:
    shape = tensor.shape[1:] if frames is None else (frames, *tensor.shape[1:])
    raw = np.frombuffer(bundle.blob(answer.outputs[tensor.name]), tensor.dtype).reshape(shape)
    return dequantize(raw, tensor, np.dtype(np.float32))


def _difference(got: NDArray[Any], wanted: NDArray[Any], tensor: TensorSpec | None = None) -> tuple[float, float]:
    a, b = np.asarray(got, np.float64).ravel(), np.asarray(wanted, np.float64).ravel()
    quantization = None if tensor is None else tensor.quantization
    step = quantization.scale if quantization else max(_FLOAT_STEP * float(np.abs(b).max(initial=0)), 1e-12)
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(a @ b) / norms if norms > 0 else float(np.array_equal(a, b))
    return float(np.abs(a - b).max(initial=0)) / step, cosine
