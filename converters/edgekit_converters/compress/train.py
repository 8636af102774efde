"""The training loop of every step: the best round on held-out items is kept.

    data = TrainingData(x, y, "classes")
    fitted = fit(trainee, data, Teaching(answers), TrainingOptions(steps=2000), folder, "distill")
    trained = train(network, data, TrainingOptions(steps=2000), folder, progress)      # quantization-aware
    trained.values                       # of Simulation.variables at the best round

Rules:
- the loss is 1 - alpha of the labels' and alpha of the teacher's (see `losses`); without labels, and of boxes, it is
  the teacher's alone; hints add their squared error to a training step, but not to the score of a round;
- a tenth of the items, at most 1,000, is held out and decides which round is best; the state before the first step is
  round 0, so that training can never make it worse;
- the state is on the disk after each round: a killed run resumes there, and the same run twice gives the same result;
- weights that are to be zero are set to zero after each step; a round before all of them are is never the best;
- a loss that is not finite ends the run with the best round so far, and the result says so.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.compress.channels import equalised
from edgekit_converters.compress.losses import Teaching, Trainee, TrainingData, TrainingOptions
from edgekit_converters.compress.network import Network
from edgekit_converters.compress.pruning import EVERY, Sparsity, held_zeros
from edgekit_converters.compress.simulation import Simulation, calibrated
from edgekit_converters.recipe.conversion_errors import CompressError
from edgekit_converters.recipe.progress import Progress, silent
from edgekit_runtime.system.files import read_own, write_cache
from edgekit_runtime.system.sealed import SEAL_BYTES, is_sealed, seal

Values = list[NDArray[Any]]

_HELD_OUT, _MOST_HELD_OUT = 0.1, 1000
_CALIBRATION = 512
_ROUND = 100  # steps between two looks at the held-out items
_MOST_STATE = 1 << 36  # bytes
_BETAS, _EPSILON = (0.9, 0.999), 1e-8
_STAGE = "training"
_LAST = 0.01  # of the learning rate, at the last step


@dataclass
class _State:
    """The state of a run, as it is on the disk.

    step: how many were done.
    values: of the variables and the others.
    moments: Adam's two for each variable.
    best: values of the best round.
    """

    values: Values
    moments: Values
    best: Values
    step: int = 0
    best_step: int = 0
    score: tuple[float, float] = (-math.inf, -math.inf)
    waited: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    reason: str = ""


@dataclass(frozen=True)
class TrainingResult:
    """The best round of a run.

    values: of the trainee's variables and others.
    history: step, loss and score of each round.
    reason: why it ended before the last step, or "".
    """

    values: Values
    history: tuple[dict[str, float], ...]
    reason: str
    best_step: int

    def record(self, options: TrainingOptions) -> dict[str, Any]:
        """The run as JSON."""
        return {
            "seed": options.seed, "steps": options.steps, "batch": options.batch, "rate": options.rate,
            "best_step": self.best_step, "ended": self.reason, "history": list(self.history),
        }  # fmt: skip


@dataclass(frozen=True)
class QatResult(TrainingResult):
    """network: with channels equalised."""

    network: Network
    simulation: Simulation


def train(
    network: Network,
    data: TrainingData,
    options: TrainingOptions,
    folder: Path,
    progress: Progress = silent,
    say: Callable[[str], None] = lambda line: None,
    *,
    hold_zeros: bool = False,
) -> QatResult:
    """Train in 8 bits, with the float network as its teacher.

    folder, say: as of `fit`.
    hold_zeros: keep the kernels' zeros.
    """
    used, _ = _parts(data, options)
    first = _batches(data.x, np.sort(used[:_CALIBRATION]), options.batch)
    network = equalised(replace(network, numbers=data.kind != "classes"), first)
    simulation = Simulation(network, calibrated(network, first))
    teaching = Teaching(answers_of(Simulation(network, None), data.x, options.batch, progress))
    sparsity = held_zeros(network) if hold_zeros else None
    found = fit(simulation, data, teaching, options, folder, "qat", progress, say, sparsity=sparsity)
    return QatResult(found.values, found.history, found.reason, found.best_step, network, simulation)


def fit(
    trainee: Trainee,
    data: TrainingData,
    teaching: Teaching,
    options: TrainingOptions,
    folder: Path,
    name: str,
    progress: Progress = silent,
    say: Callable[[str], None] = lambda line: None,
    *,
    sparsity: Sparsity | None = None,
) -> TrainingResult:
    """Train, and return the best round.

    folder: for the state that a later run resumes, under this name; it must exist.
    say: receives a line after each round.

    Raises CompressError if training ends before the sparsity is reached.
    """
    import tensorflow as tf

    used, held = _parts(data, options)
    state_file = folder / f"{name}-{options.seed}.npz"
    state = _load(state_file, options, trainee) or _start(trainee)
    run = _Run(tf, trainee, data, teaching, options, used, sparsity)
    run.assign(state)
    while not state.reason and (state.step < options.steps or not state.history):
        if state.history and not math.isfinite(run.round(state, progress)):
            state.reason = f"the loss was not a finite number at step {state.step}; the best round before it is kept"
            break
        score = run.score(held)
        if not all(map(math.isfinite, score)):
            state.reason = f"the answers were not finite numbers at step {state.step}; the best round before is kept"
            break
        state.history.append({"step": state.step, "score": score[0], "loss": -score[1]})
        if sparsity is not None and not sparsity.reached(state.step, options.steps):
            state.waited = 0
        elif score > state.score:
            state.score, state.best, state.waited = score, [value.copy() for value in state.values], 0
            state.best_step = state.step
        else:
            state.waited += 1
            if state.waited >= options.patience:
                state.reason = f"no better round in the last {options.patience}"
        _save(state_file, options, state)
        say(f"step {state.step} of {options.steps}: {_words(data.kind, score)} on {len(held)} held-out items")
    progress(_STAGE, options.steps, options.steps)
    if sparsity is not None and not math.isfinite(state.score[0]):
        raise CompressError(
            f"training ended at step {state.step}, before the sparsity was reached: the loss or the answers were not "
            "finite numbers",
            do="Try a smaller rate, in a --recipe file",
        )
    if state.reason:
        say(f"training ended: {state.reason}")
    return TrainingResult(state.best, tuple(state.history), state.reason, state.best_step)


def _parts(data: TrainingData, options: TrainingOptions) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(items to train on, held-out items)"""
    order = np.random.default_rng(options.seed).permutation(len(data.x))
    count = max(1, min(_MOST_HELD_OUT, round(len(order) * _HELD_OUT)))
    return order[count:], np.sort(order[:count])


def _words(kind: str, score: tuple[float, float]) -> str:
    if kind == "boxes":
        return f"loss {-score[1]:.4g}"
    first = f"{100 * score[0]:.1f} % right" if kind == "classes" else f"squared error {-score[0]:.4g}"
    return f"{first}, loss {-score[1]:.4g}"


class _Run:
    """One training run in TensorFlow: the compiled step, and the variables that it changes."""

    def __init__(
        self,
        tf: Any,
        trainee: Trainee,
        data: TrainingData,
        teaching: Teaching,
        options: TrainingOptions,
        used: NDArray[np.int64],
        sparsity: Sparsity | None = None,
    ) -> None:
        self._sparsity = sparsity
        self._tf, self._trainee, self._data, self._teaching = tf, trainee, data, teaching
        self._options, self._used = options, used
        self._labels = data.labels(teaching.answers)
        self._alpha = 1.0 if data.y is None else teaching.alpha
        self._variables = list(trainee.variables)
        self._moments = [tf.Variable(tf.zeros_like(one)) for one in self._variables for _ in range(2)]
        places = () if sparsity is None else sparsity.places
        self._masks = {place: tf.Variable(tf.ones_like(self._variables[place])) for place in places}
        self._step = tf.function(self._step_of, reduce_retracing=True)
        self._losses = tf.function(self._losses_of, reduce_retracing=True)

    def assign(self, state: _State) -> None:
        variables = [*_all(self._trainee), *self._moments]
        for variable, value in zip(variables, [*state.values, *state.moments], strict=True):
            variable.assign(value)

    def _choose_zeros(self, step: int) -> None:
        """After that many steps."""
        for place, mask in self._masks.items():
            assert self._sparsity is not None
            variable = self._variables[place]
            mask.assign(self._sparsity.mask(variable.numpy(), step, self._options.steps))
            variable.assign(variable * mask)

    def round(self, state: _State, progress: Progress) -> float:
        """Run up to a hundred steps, update the state, and return the last loss."""
        tf, options, loss, order = self._tf, self._options, math.nan, (-1, self._used)
        a_pass = max(1, len(self._used) // options.batch)
        for _ in range(min(_ROUND, options.steps - state.step)):
            epoch, at = divmod(state.step, a_pass)
            if order[0] != epoch:
                order = epoch, np.random.default_rng((options.seed, epoch)).permutation(self._used)
            rows = order[1][at * options.batch :][: options.batch]
            share = state.step / options.steps
            rate = options.rate * (_LAST + (1 - _LAST) * (1 + math.cos(math.pi * share)) / 2)
            if state.step % EVERY == 0:
                self._choose_zeros(state.step)
            state.step += 1
            parts = [tf.constant(one) for one in self._parts(rows)]
            loss = float(self._step(*parts, tf.constant(rate, tf.float32), tf.constant(state.step, tf.float32)))
            if not math.isfinite(loss):
                return loss
            progress(_STAGE, state.step, options.steps)
        self._choose_zeros(state.step)
        state.values = [variable.numpy() for variable in _all(self._trainee)]
        state.moments = [variable.numpy() for variable in self._moments]
        return loss

    def _parts(self, rows: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
        """Of these items: inputs, labels, and the teacher's answers."""
        return self._data.x[rows], self._labels[rows], self._teaching.of(rows)

    def score(self, held: NDArray[np.int64]) -> tuple[float, float]:
        """(share of right answers, or minus the squared error of numbers; minus the loss)"""
        found = []
        for start in range(0, len(held), self._options.batch):
            rows = held[start : start + self._options.batch]
            parts = [self._tf.constant(one) for one in self._parts(rows)]
            found.append([float(one) * len(rows) for one in self._losses(*parts)])
        right, loss = (float(sum(one)) / len(held) for one in zip(*found, strict=True))
        return right, -loss

    def _step_of(self, x: Any, y: Any, teacher: Any, rate: Any, step: Any) -> Any:
        tf, variables = self._tf, self._variables
        with tf.GradientTape() as tape:
            answers, teacher, far = self._apart(self._trainee.answer(x, training=True), teacher)
            loss = self._loss(answers, y, teacher) + far
        gradients = tape.gradient(loss, variables)
        parts = [loss, *(gradient for gradient in gradients if gradient is not None)]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(part)) for part in parts])  # a clip hides a NaN
        for place, (variable, gradient) in enumerate(zip(variables, gradients, strict=True)):
            if gradient is None:
                continue
            gradient = tf.where(finite, gradient, tf.zeros_like(gradient))
            first, second = self._moments[2 * place], self._moments[2 * place + 1]
            first.assign(_BETAS[0] * first + (1 - _BETAS[0]) * gradient)
            second.assign(_BETAS[1] * second + (1 - _BETAS[1]) * tf.square(gradient))
            size = rate * tf.sqrt(1 - _BETAS[1] ** step) / (1 - _BETAS[0] ** step)
            variable.assign_sub(size * first / (tf.sqrt(second) + _EPSILON))
            if place in self._masks:
                variable.assign(variable * self._masks[place])
        return tf.where(finite, loss, math.nan)

    def _losses_of(self, x: Any, y: Any, teacher: Any) -> tuple[Any, Any]:
        tf = self._tf
        logits, teacher, _ = self._apart(self._trainee.answer(x, training=False), teacher)
        loss = self._loss(logits, y, teacher)
        if self._data.kind == "boxes":
            return -loss, loss
        if self._data.kind == "numbers":
            return -tf.reduce_mean(tf.square(tf.reshape(logits, tf.shape(y)) - y)), loss
        best = tf.argmax(logits, -1) if logits.shape[-1] > 1 else tf.cast(logits[:, 0] > 0, tf.int64)
        return tf.reduce_mean(tf.cast(tf.equal(best, y), tf.float32)), loss

    def _apart(self, answers: Any, teacher: Any) -> tuple[Any, Any, Any]:
        """(answers, the teacher's, how far hints are from the teacher's)"""
        if self._teaching.hints is None:
            return answers, teacher, 0.0
        size = self._teaching.answers.shape[1]
        far = self._tf.reduce_mean(self._tf.square(answers[:, size:] - teacher[:, size:]))
        own, theirs = (self._tf.reshape(one[:, :size], [-1, size]) for one in (answers, teacher))
        return own, theirs, far

    def _loss(self, logits: Any, y: Any, teacher: Any) -> Any:
        alpha, of_teacher = self._alpha, self._data.loss_of_teacher(logits, teacher, self._teaching.temperature)
        return of_teacher if alpha == 1 else (1 - alpha) * self._data.loss(logits, y) + alpha * of_teacher


def _batches(x: NDArray[np.float32], rows: NDArray[np.int64], batch: int) -> Sequence[NDArray[np.float32]]:
    return [np.asarray(x[rows[start : start + batch]]) for start in range(0, len(rows), batch)]


def answers_of(trainee: Trainee, x: NDArray[np.float32], batch: int, progress: Progress) -> NDArray[np.float32]:
    """Its answers before training, [N, outputs]. x: float32 [N, ...]."""
    import tensorflow as tf

    run = tf.function(lambda part: trainee.answer(part, training=False), reduce_retracing=True)
    found = []
    for start in range(0, len(x), batch):
        found.append(run(tf.constant(x[start : start + batch])).numpy())
        progress("answers of the float model", min(start + batch, len(x)), len(x))
    return np.concatenate(found)


def array_on_disk(file: Path, shape: Sequence[int]) -> NDArray[np.float32]:
    """A float32 array to be filled, which may be larger than the memory.

    Raises OSError for a full disk: a write to a mapped file without room would end the process.
    """
    made = np.lib.format.open_memmap(file, "w+", np.float32, tuple(shape))
    try:
        with file.open("r+b") as opened:
            os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error
    return made


def _all(trainee: Trainee) -> list[Any]:
    return [*trainee.variables, *trainee.others]


def _start(trainee: Trainee) -> _State:
    values = [variable.numpy() for variable in _all(trainee)]
    moments = [np.zeros_like(value) for value in values[: len(trainee.variables)] for _ in range(2)]
    return _State(values, moments, [value.copy() for value in values])


def _save(file: Path, options: TrainingOptions, state: _State) -> None:
    head = {
        "step": state.step, "best_step": state.best_step, "score": state.score,
        "waited": state.waited, "history": state.history, "reason": state.reason,
    }  # fmt: skip
    arrays: dict[str, NDArray[Any]] = {"head": np.frombuffer(json.dumps(head).encode(), np.uint8)}
    for name in ("values", "moments", "best"):
        arrays |= {f"{name}{at}": value for at, value in enumerate(getattr(state, name))}
    made = io.BytesIO()
    np.savez(made, **arrays)  # type: ignore[arg-type]
    data = made.getvalue()
    write_cache(file, [seal(options.key.encode(), data), data])


def _load(file: Path, options: TrainingOptions, trainee: Trainee) -> _State | None:
    """None without a state, for another run's, and for one that another user could write."""
    stored = read_own(file, _MOST_STATE) or b""
    data = stored[SEAL_BYTES:]
    if not is_sealed(stored[:SEAL_BYTES], options.key.encode(), data):
        return None
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            head = json.loads(arrays["head"].tobytes())
            count = range(len(_all(trainee)))
            parts = {name: [arrays[f"{name}{at}"] for at in count] for name in ("values", "best")}
            moments = [arrays[f"moments{at}"] for at in range(2 * len(trainee.variables))]
        return _State(parts["values"], moments, parts["best"], **(head | {"score": tuple(head["score"])}))
    except Exception:  # noqa: BLE001 - whatever it is, the run begins again
        return None
