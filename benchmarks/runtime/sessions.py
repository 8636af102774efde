"""What a session costs over the bare engine, frame by frame, with real weights: silero-vad and okay_nabu.

    .venv/bin/python benchmarks/runtime/sessions.py --cache FOLDER

silero-vad (PyPI silero-vad 6.2.3, MIT): ONNX, its state goes in and comes out; as float32 and as INT8. okay_nabu (PyPI
pymicro-wakeword 2.5.0, Apache-2.0): INT8 TFLite, its state inside. The baseline is what a person writes by hand on the
same engine: feed the frame and the last state, run, keep the new state. Each way has its own frames, all the same.

Before anything is timed the answers are compared: a session's with those by hand, and those of four sessions that are
asked in turn with each one's alone. They must be equal to the last bit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "conversion")]
from packages import Package, unpacked
from side_by_side import compare, report

from edgekit.bench.conditions import conditions
from edgekit_runtime import Model, open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import load_engine

SILERO = Package("pip", "silero-vad", "6.2.3", "MIT")
NABU = Package("pip", "pymicro-wakeword", "2.5.0", "Apache-2.0")
SHAPES = ["--shape", "input=1,576", "--constant", "sr=16000"]
FRAMES = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cache", type=Path, required=True, help="where packages and bundles are made and found again")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/runtime_sessions.json"))
    options = parser.parse_args()
    silero = next(unpacked(SILERO, options.cache).rglob("silero_vad.onnx"))
    nabu = next(unpacked(NABU, options.cache).rglob("okay_nabu.tflite"))
    rows = {
        "silero-vad float32": (built(silero, "onnx-f32", options.cache, *SHAPES), noise(576, FRAMES)),
        "silero-vad INT8": (built(silero, "onnx-int8-qdq", options.cache, *SHAPES), noise(576, FRAMES)),
        "okay_nabu INT8": (built(nabu, "tflite-as-is", options.cache), features(FRAMES)),
    }
    tables = {}
    for name, (path, frames) in rows.items():
        check_equal(path, frames)
        tables[f"{name}: one frame, one thread"] = timed(path, frames, options.rounds)
    report("a session against the raw engine", tables, conditions(), options.output)


def built(model: Path, recipe: str, cache: Path, *more: str) -> Path:
    """The bundle, made on first use, on made-up sequences."""
    path = cache / "sessions" / recipe / f"{model.stem}-x86-64.ekb"
    if not path.exists():
        command = [
            sys.executable,
            "-c",
            "from edgekit.cli import main; main()",
            "build",
            str(model),
            "--profile",
            "x86-64",
        ]
        command += ["--recipe", recipe, "--allow-random", "-o", str(path.parent), "--json", *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
        if done.returncode:
            raise RuntimeError(json.loads(done.stdout) if done.stdout else done.stderr[-500:])
    return path


def noise(count: int, frames: int) -> np.ndarray:
    """Speech-like loudness: noise whose envelope comes and goes. float32 [frames, count]"""
    rng = np.random.default_rng(0)
    envelope = 0.05 + 0.3 * np.abs(np.sin(np.arange(frames) / 9))[:, None]
    return (envelope * rng.standard_normal((frames, count))).clip(-1, 1).astype(np.float32)


def features(frames: int) -> np.ndarray:
    """Spectrogram rows of okay_nabu's range. float32 [frames, 3, 40]"""
    return np.random.default_rng(0).gamma(2.0, 4.0, (frames, 3, 40)).clip(0, 26).astype(np.float32)


def by_hand(path: Path, frames: np.ndarray) -> Iterator[list[np.ndarray]]:
    """What a person writes for this very file: raw outputs, frame after frame, for ever."""
    bundle = read_bundle(path)
    entry, carried = bundle.artifact(), bundle.manifest.contract.carried
    engine = load_engine(entry.format, bundle.blob(entry.blob), threads=1)
    names, out = [t.name for t in entry.inputs], [t.name for t in entry.outputs]
    (asked,) = [t for t in entry.inputs if t.name not in {pair.input for pair in carried or ()}]
    state = {
        p.input: np.zeros([max(n, 1) for n in entry.inputs[names.index(p.input)].shape], np.float32)
        for p in carried or ()
    }
    ready = [prepared(frame, asked) for frame in frames]
    at = 0
    while True:
        outputs = engine.run([ready[at % len(ready)] if name == asked.name else state[name] for name in names])
        for pair in carried or ():
            state[pair.input] = outputs[out.index(pair.output)]
        yield outputs
        at += 1


def prepared(frame: np.ndarray, tensor) -> np.ndarray:
    q = tensor.quantization
    if q is None:
        return frame[None]
    return np.clip(np.rint(frame[None] / np.float32(q.scale)) + q.zero_point, -128, 127).astype(tensor.dtype)


def check_equal(path: Path, frames: np.ndarray) -> None:
    """A session answers what the hand-written loop does, and four sessions asked in turn what each does alone."""
    bundle = read_bundle(path)
    told = [t.name for t in bundle.artifact().outputs].index(bundle.manifest.contract.caller_outputs[0].name)
    quantization = bundle.artifact().outputs[told].quantization
    loop = by_hand(path, frames)
    raw = np.array([next(loop)[told].reshape(-1) for _ in frames], np.float32)
    if quantization is not None:
        raw = (raw - quantization.zero_point) * np.float32(quantization.scale)
    with open_bundle(path, threads=1, settled=True) as model:
        alone = answers(model, frames)
        np.testing.assert_array_equal(alone, raw)
        sessions = [model.session() for _ in range(4)]
        shifted = [np.roll(frames, 7 * place, axis=0) for place in range(4)]
        mixed = [[one(s.predict(f[at])) for at in range(len(frames))] for s, f in zip(sessions, shifted, strict=True)]
        inturn = [model.session() for _ in range(4)]
        turned = [[one(s.predict(f[at])) for s, f in zip(inturn, shifted, strict=True)] for at in range(len(frames))]
        np.testing.assert_array_equal(np.array(mixed), np.array(turned).swapaxes(0, 1))
    print(f"{path.parent.name}/{path.stem}: {len(frames)} frames equal by hand, alone and among four sessions")


def one(answer) -> np.ndarray:
    return next(iter(answer.outputs.values())).reshape(-1)


def answers(model: Model, frames: np.ndarray) -> np.ndarray:
    with model.session() as session:
        return np.array([one(session.predict(frame)) for frame in frames])


def timed(path: Path, frames: np.ndarray, rounds: int):
    loop = by_hand(path, frames)
    with open_bundle(path, threads=1, settled=True) as model, model.session() as session:
        asked = next(
            t for t in model._journey.opened.prepared.entry.inputs if t.name == session.contract.inputs[0].name
        )
        ready = [prepared(frame, asked)[0] for frame in frames]
        ways: dict[str, Callable[[int], object]] = {
            "by hand: feed, run, keep the state": lambda number: next(loop),
            "session.predict(frame), ready": lambda number: session.predict(ready[number % len(ready)]),
        }
        if asked.quantization is not None:
            ways["session.predict(frame), float32"] = lambda number: session.predict(frames[number % len(frames)])
        return compare(ways, rounds=rounds, block=100)


if __name__ == "__main__":
    main()
