"""How often a damaged model file ends the process of the engine that loads and runs it.

With and without a look at it first.

    # prints, and writes benchmarks/results/damage.json
    .venv/bin/python benchmarks/bundles/damage.py [--cases 400] [--seed 1]

Each case is a small model with one to three bytes, or one 32-bit word, changed. It is given to the engine in a process
of its own (forked, with the limits of `children`): loaded, and run once on zeros. A crash is a signal of the process's
own (SIGSEGV, SIGFPE, SIGABRT, ...); a hang is more than five seconds. Both are counted for all cases and for those that
`check_model` passes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks" / "results" / "damage.json"
MODELS = ("cnn_int8.tflite", "tiny_f32.tflite", "memory_inside_f32.tflite", "tiny_f32.onnx", "memory_carried_f32.onnx")
WORDS = (0, 1, 2, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)
HANG_S = 5.0


def damaged(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    if dice.random() < 0.5:
        for _ in range(dice.randint(1, 3)):
            changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    else:
        at = dice.randrange(len(changed) // 4) * 4
        changed[at : at + 4] = dice.choice((*WORDS, dice.randrange(64), dice.randrange(64))).to_bytes(4, "little")
    return bytes(changed)


def attempted(kind: str, data: bytes) -> str:
    """`answers`, `refuses`, `hangs`, or the signal that ended the process."""
    child = os.fork()
    if child == 0:
        _load_and_run(kind, data)
    end = time.monotonic() + HANG_S
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if os.WIFSIGNALED(status):
                return signal.Signals(os.WTERMSIG(status)).name
            return "answers" if os.WEXITSTATUS(status) == 0 else "refuses"
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


def _load_and_run(kind: str, data: bytes) -> None:
    import numpy as np

    from edgekit_runtime.engines.registry import load_engine
    from edgekit_runtime.system.children import limit_this_process

    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        limit_this_process(len(data))
        with load_engine(kind, data) as engine:
            engine.run([np.zeros([max(side, 1) for side in one.shape], one.dtype) for one in engine.inputs])
    except BaseException:  # noqa: BLE001 - whatever it is, it is no crash
        os._exit(1)
    os._exit(0)


def measured(name: str, cases: int, seed: int) -> dict[str, object]:
    from edgekit_runtime.modelfile.check import check_model
    from edgekit_runtime.system.errors import ModelFileError

    data, kind = (ROOT / "tests" / "models" / name).read_bytes(), name.rpartition(".")[2]
    dice = random.Random(f"{seed} {name}")
    everything: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    left: list[dict[str, object]] = []
    for _ in range(cases):
        changed = damaged(data, dice)
        outcome = attempted(kind, changed)
        everything[outcome] += 1
        try:
            check_model(kind, changed)
        except ModelFileError:
            continue
        passed[outcome] += 1
        if outcome not in ("answers", "refuses"):
            places = [place for place, (one, other) in enumerate(zip(data, changed, strict=True)) if one != other]
            left.append({"ended": outcome, "places": places, "bytes": [changed[place] for place in places]})
    return {"model": name, "cases": cases, "all": dict(everything), "passed": dict(passed), "left": left}


def bad(outcomes: dict[str, int]) -> int:
    return sum(count for outcome, count in outcomes.items() if outcome not in ("answers", "refuses"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    import importlib

    for module in ("ai_edge_litert.interpreter", "onnxruntime", "edgekit_runtime.engines.litert"):
        importlib.import_module(module)  # once, not in every child
    rows = [measured(name, asked.cases, asked.seed) for name in MODELS]
    for row in rows:
        every, good = row["all"], row["passed"]
        print(
            f"{row['model']:<26} {bad(every):>4} of {asked.cases} end the process; of {sum(good.values()):>4} passed "
            f"{bad(good)}"
        )
    from edgekit_runtime.engines.registry import available

    told = {"engines": available(), "seed": asked.seed, "hang_s": HANG_S, "models": rows}
    RESULT.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
