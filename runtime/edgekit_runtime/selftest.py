"""Does this bundle give its golden answers on this machine's engine?

The golden examples travel in the bundle with what the artifact answered on the workstation. They are replayed

- in a child process at the first open of a (bundle, engine, board) triple, so that a crash (an illegal instruction, a
  segmentation fault) is a sentence instead of the application's end; the verdict is stored and not asked for again;
- in this process at every open: that is the warm-up, and it checks the very bytes that will answer. Once all of them
  agreed here, a later open of a slow model replays no more than fit into a few seconds, and one at least.

With the engine and version that made the golden outputs, values must agree within a few quantization steps; with any
other, accuracy is what is comparable: the same best class and a high cosine similarity. A stateful model's examples are
sequences: every frame must agree, in order, from a fresh state; the cosine is of the whole sequence, and no best class is
asked of single frames.

The child reads the file itself; the key of an encrypted bundle comes to it on its standard input.

EDGEKIT_SELFTEST=in-process never starts a child (needed under user-mode emulation).
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.board import fingerprint, state_dir, store_text
from edgekit_runtime.bundle import ArtifactEntry, Bundle, GoldenOutputs
from edgekit_runtime.children import crashed, die_with_parent, environment, interrupted, may_start, python_module
from edgekit_runtime.children import run as run_child
from edgekit_runtime.contract.adapt import Adapter
from edgekit_runtime.contract.finish import Finisher, dequantize
from edgekit_runtime.engines import Engine, EngineInfo, Setup, load_with
from edgekit_runtime.engines.recording import Recording
from edgekit_runtime.errors import (
    BundleError,
    EdgekitError,
    EngineError,
    IntegrityError,
    ModelFileError,
    SelfTestError,
)
from edgekit_runtime.modelfile import check_artifact
from edgekit_runtime.rlimits import limit_this_process
from edgekit_runtime.stepping import Stepper
from edgekit_runtime.tensors import TensorSpec

if TYPE_CHECKING:
    import subprocess

__all__ = [
    "Compared",
    "SelfTest",
    "compared",
    "first_open",
    "passed_before",
    "remember",
    "replay",
    "replay_batch",
    "state_dir",
]

CHILD_TIMEOUT_S = 120.0
"""How long loading, or one run, may take in the child."""
_FLOAT_STEP = 1e-4
_VERDICT, _REFUSAL = "failed: ", "refused: "
_REFUSALS: dict[str, type[EdgekitError]] = {
    kind.code: kind for kind in (BundleError, IntegrityError, EngineError, ModelFileError)
}


@dataclass(frozen=True)
class SelfTest:
    """examples: golden pairs replayed. same_engine: they were made by this engine and version.

    worst_steps: the largest difference, in quantization steps (or 1e-4 of the largest value, for float outputs).
    worst_cosine: the least similarity of an output with its golden one.
    """

    examples: int
    same_engine: bool
    worst_steps: float
    worst_cosine: float


@dataclass(frozen=True)
class Compared:
    """One output of one golden example beside its golden one.

    steps: the largest difference, in quantization steps (or 1e-4 of the largest golden value, for float outputs). cosine:
    of the two. same_best: of a classification, whether the best class is the same. made_by: the engine and version that
    made the golden output; same_engine: they are this one. fits: the verdict. frame: ` at frame N` of a sequence.
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

    enough: asked after each example; True ends it there. exact: see `compared`. Raises SelfTestError at the first that is
    out of tolerance.
    """
    examples: set[int] = set()
    worst_steps, worst_cosine, same = 0.0, 1.0, True
    for one in compared(bundle, entry, engine, enough, exact=exact):
        if not one.fits:
            raise SelfTestError(
                f"golden example {one.golden} of '{one.output}' differs by {one.steps:.0f} steps{one.frame} (cosine "
                f"{one.cosine:.4f}{'' if one.same_best else ', another best class'}); it was made by {one.made_by}, "
                f"this is {engine.info.name} {engine.info.version}",
                where=str(bundle.path),
                do="Do not use this bundle here: build it for this runtime, or install the engine it was made with",
            )
        examples.add(one.golden)
        same = same and one.same_engine
        worst_steps, worst_cosine = max(worst_steps, one.steps), min(worst_cosine, one.cosine)
    return SelfTest(len(examples), same, worst_steps, worst_cosine)


def compared(
    bundle: Bundle,
    entry: ArtifactEntry,
    engine: Engine,
    enough: Callable[[], bool] | None = None,
    *,
    exact: bool = True,
) -> Iterator[Compared]:
    """Every output of every golden example that this artifact answers, as the engine gives it now. enough: see `replay`.

    exact: whether the engine and version that made the golden outputs are held to steps; False where its kernels here are
    others than those that made them.
    """
    contract = bundle.manifest.contract
    stepper = Stepper(contract, entry.inputs, entry.outputs, engine)
    for number, golden in enumerate(bundle.manifest.golden):
        answer = next((a for a in golden.answers if a.recipe == entry.recipe), None)
        if answer is None:
            continue
        got = _answered(stepper, bundle.golden_items(golden), golden.steps)
        same_engine = exact and _made_by(answer, engine.info)
        for tensor in entry.outputs:
            if tensor.name not in answer.outputs:
                continue
            here, wanted = got[tensor.name], _output(bundle, answer, tensor, golden.steps)
            steps, cosine = _difference(here, wanted, tensor)
            classifier = contract.task == "classification" and tensor.name == contract.outputs[0].name
            same_best = golden.steps is not None or not classifier or _best(here) == _best(wanted)
            # Another engine's answer to a silent sequence has no direction to compare; its distance is what counts.
            near = steps <= answer.tolerance.steps
            agrees = near if same_engine else cosine >= answer.tolerance.cosine or (golden.steps is not None and near)
            fits = agrees and same_best and bool(np.isfinite(here).all())
            yield Compared(
                number,
                tensor.name,
                steps,
                cosine,
                same_best,
                same_engine,
                f"{answer.engine} {answer.engine_version}",
                fits,
                frame="" if fits else _first_apart(here, wanted, tensor, golden.steps),
            )
        if enough is not None and enough():
            break
    if contract.state == "internal":  # whoever uses this engine next begins afresh
        engine.reset()


def replay_batch(bundle: Bundle, entry: ArtifactEntry, engine: Engine, batch: int) -> None:
    """Run `batch` golden items at once: each must get the answer that it gets alone. Sequences have no batches.

    Raises SelfTestError at the first that is out of tolerance.
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
            wanted = _output(bundle, answer, tensor, None)
            steps, cosine = _difference(got[tensor.name], wanted, tensor)
            near = steps <= answer.tolerance.steps
            if not (near if _made_by(answer, engine.info) else cosine >= answer.tolerance.cosine):
                raise SelfTestError(
                    f"in a batch of {batch}, '{tensor.name}' of item {row} differs by {steps:.0f} steps (cosine "
                    f"{cosine:.4f}) from what it is alone",
                    where=str(bundle.path),
                    do="Open it with batching=False",
                )


def _made_by(answer: GoldenOutputs, info: EngineInfo) -> bool:
    """Whether the very engine made it. A delegate may round as it likes: it counts as another engine."""
    return (answer.engine, answer.engine_version, None) == (info.name, info.version, info.delegate)


def _answered(stepper: Stepper, items: Mapping[str, NDArray[Any]], frames: int | None) -> dict[str, NDArray[Any]]:
    """One item's outputs by name; of a sequence all frames', [frames, ...]."""
    stepper.reset()
    if frames is None:
        return dict(stepper.step(items))
    answers = [stepper.step({name: array[at] for name, array in items.items()}) for at in range(frames)]
    return {name: np.stack([answer[name] for answer in answers]) for name in answers[0]}


def _best(scores: NDArray[Any]) -> int:
    return int(np.argmax(scores))


def _first_apart(got: NDArray[Any], wanted: NDArray[Any], tensor: TensorSpec, frames: int | None) -> str:
    """Which frame of a sequence is the first that differs most."""
    if frames is None:
        return ""
    apart = [_difference(a, b, tensor)[0] for a, b in zip(got, wanted, strict=True)]
    return f" at frame {int(np.argmax(apart))}"


def first_open(
    bundle: Bundle,
    entry: ArtifactEntry,
    engine: EngineInfo,
    *,
    folder: Path | None = None,
    source: str | None = None,
    run: Callable[..., subprocess.CompletedProcess[str]] = run_child,
) -> bool:
    """Replay in a child once a (bundle, engine, board). Returns True when a child ran now, False when it had before.

    The child walks the model file's structure, then loads it within limits of memory and time (`rlimits`). source: what the
    child opens instead of the bundle's path, a descriptor for one; it must find the very bundle there.
    Raises SelfTestError when the child failed or crashed, and what it refused: ModelFileError, EngineError, BundleError. A folder that cannot be written only means asking again.
    """
    if not may_start():
        return False
    if passed_before(bundle, entry, engine, folder=folder):
        return False
    job = {
        "path": str(source or bundle.path.absolute()),
        "digest": bundle.digest,
        "recipe": entry.recipe,
        "blob": entry.blob,
        "engine": engine.name,
        "setup": {"threads": engine.threads, "kernels": engine.kernels, "delegate": engine.delegate},
        "key": bundle.secret.handed() if bundle.secret is not None else None,
    }
    from subprocess import TimeoutExpired

    try:
        done = run(
            python_module("edgekit_runtime.selftest"),
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=CHILD_TIMEOUT_S,
            env=environment(),
        )
    except TimeoutExpired as error:
        raise _failed(bundle, engine, f"did not come back within {CHILD_TIMEOUT_S:.0f} s") from error
    except OSError:  # no child can be started here: the replay in this process is what there is
        return False
    if interrupted(done.returncode):  # whoever ended it knows nothing of the bundle; this process tests itself
        return False
    said = done.stderr.splitlines()
    if refusal := next((line for line in said if line.startswith(_REFUSAL)), None):
        raise _told(json.loads(refusal.removeprefix(_REFUSAL)))
    if crashed(done.returncode) or any(line.startswith(_VERDICT) for line in said):
        raise _failed(bundle, engine, _reason(done))
    if done.returncode != 0:  # it never came to the test: another interpreter, other paths; this process tests itself
        return False
    store_text(_verdict(bundle, entry, engine, folder), done.stdout.splitlines()[-1])
    return True


def passed_before(bundle: Bundle, entry: ArtifactEntry, engine: EngineInfo, *, folder: Path | None = None) -> bool:
    """Whether every example agreed before, of this very (bundle, engine, board)."""
    return _verdict(bundle, entry, engine, folder).is_file()


def remember(
    bundle: Bundle, entry: ArtifactEntry, engine: EngineInfo, tested: SelfTest, *, folder: Path | None = None
) -> None:
    """Every example agreed. A folder that cannot be written only means that all are replayed again."""
    store_text(_verdict(bundle, entry, engine, folder), json.dumps(asdict(tested)))


def _verdict(bundle: Bundle, entry: ArtifactEntry, engine: EngineInfo, folder: Path | None) -> Path:
    return (folder or state_dir()) / "selftest" / f"{_triple(bundle, entry, engine)}.json"


def _output(bundle: Bundle, answer: GoldenOutputs, tensor: TensorSpec, frames: int | None) -> NDArray[Any]:
    shape = tensor.shape[1:] if frames is None else (frames, *tensor.shape[1:])
    raw = np.frombuffer(bundle.blob(answer.outputs[tensor.name]), tensor.dtype).reshape(shape)
    return dequantize(raw, tensor, np.dtype(np.float32))


def _difference(got: NDArray[Any], wanted: NDArray[Any], tensor: TensorSpec) -> tuple[float, float]:
    a, b = np.asarray(got, np.float64).ravel(), np.asarray(wanted, np.float64).ravel()
    step = (
        tensor.quantization.scale if tensor.quantization else max(_FLOAT_STEP * float(np.abs(b).max(initial=0)), 1e-12)
    )
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(a @ b) / norms if norms > 0 else float(np.array_equal(a, b))
    return float(np.abs(a - b).max(initial=0)) / step, cosine


def _triple(bundle: Bundle, entry: ArtifactEntry, engine: EngineInfo) -> str:
    setup = (str(engine.threads), engine.kernels, engine.delegate or "")
    parts = (bundle.digest, entry.blob, engine.name, engine.version, *setup, fingerprint())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    if name := crashed(done.returncode):
        return f"crashed with {name}"
    return next(line for line in done.stderr.splitlines() if line.startswith(_VERDICT))


def _told(error: dict[str, str]) -> EdgekitError:
    """What the child refused, as the error that it was there."""
    kind = _REFUSALS.get(error["code"], SelfTestError)
    return kind(error["what"], where=error["where"], do=error["do"])


def _failed(bundle: Bundle, engine: EngineInfo, why: str) -> SelfTestError:
    return SelfTestError(
        f"the self-test with {engine.name} {engine.version} {why}",
        where=str(bundle.path),
        do="Do not use this bundle here: another engine or version may run it",
    )


class _Telling(Recording):
    """Says after every run that there was one: a slow engine is not a hung one."""

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        outputs = super().run(inputs)
        print("ran", flush=True)
        return outputs


def main() -> int:
    """The child: the job on stdin, the verdict as the last line of stdout."""
    from edgekit_runtime.bundle import read_bundle
    from edgekit_runtime.bundle.secret_key import Secret
    from edgekit_runtime.readiness import check_fits

    die_with_parent()
    job = json.load(sys.stdin)
    try:
        bundle = read_bundle(job["path"], secret=Secret.received(job["key"]))
        if bundle.digest != job["digest"]:
            raise BundleError("the file was replaced while it was opened", where=job["path"], do="Open it again")
        entry = next(one for one in bundle.manifest.artifacts if (one.recipe, one.blob) == (job["recipe"], job["blob"]))
        check_artifact(bundle, entry)
        setup = Setup(**job["setup"])
        limit_this_process(entry.bytes, setup.threads)
        with load_with(job["engine"], entry.format, bundle.blob(entry.blob), setup) as engine:
            check_fits(bundle, entry, engine)
            print(json.dumps(asdict(replay(bundle, entry, _Telling(engine)))))
    except SelfTestError as error:
        print(f"{_VERDICT}{error}", file=sys.stderr)
        return 1
    except EdgekitError as error:
        print(f"{_REFUSAL}{json.dumps(error.as_json())}", file=sys.stderr)
        return 1
    except MemoryError:
        print(f"{_VERDICT}it takes more memory than a model of its size may", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
