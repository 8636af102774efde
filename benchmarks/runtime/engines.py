"""What stands between a caller and the raw interpreter.

The engine, the object that joins batches, a process of its own; and what a batch size costs in memory when it has an
interpreter to itself.

    .venv/bin/python benchmarks/runtime/engines.py --cache FOLDER

Raw is what a person writes by hand: set_tensor, invoke, get_tensor on an interpreter of the same file, one thread.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from networks import tflite

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from side_by_side import Figures, compare, report

from edgekit.bench.conditions import conditions
from edgekit_runtime.engines.isolated import IsolatedHost
from edgekit_runtime.engines.registry import Engine, EngineSetup, load_with
from edgekit_runtime.engines.variants import BatchEngine

ENGINE = "litert"
SIZES = (1, 2, 4, 8, 16, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cache", type=Path, required=True, help="where the networks are made and found again")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--resident", help=argparse.SUPPRESS)  # what the child is asked to measure
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/runtime_engines.json"))
    options = parser.parse_args()
    if options.resident is not None:
        print(json.dumps(resident_of(options.cache, [int(n) for n in options.resident.split(",")])))
        return
    tables = {
        "tiny dense net, one item": one_item(options.cache, "tiny", options.rounds, 1000),
        "MobileNetV2 224, one item (147 KiB in)": one_item(options.cache, "mobilenet", options.rounds, 20),
        "dense 1024-4096-4096-1000: batches of 1 and 8 in turn": in_turn(options.cache, options.rounds),
    }
    memory = {sizes: memory_of(options.cache, sizes) for sizes in ("1", "1,8", ",".join(map(str, SIZES)))}
    report("the engine against the raw interpreter", tables, conditions() | {"engine": ENGINE}, options.output)
    print("\ndense: resident for an interpreter for each of these batch sizes, MB")
    for sizes, megabytes in memory.items():
        print(f"  {sizes:<52} {megabytes:>10.1f}")
    value = json.loads(options.output.read_text())
    value["resident_mb"] = memory
    options.output.write_text(json.dumps(value, indent=2) + "\n")


def one_item(cache: Path, name: str, rounds: int, block: int) -> list[Figures]:
    data = tflite(name, cache).read_bytes()
    host = IsolatedHost()
    with load_with(ENGINE, "tflite", data, EngineSetup()) as engine:
        isolated = host.load(ENGINE, "tflite", data, EngineSetup())
        item = [np.ones([1, *engine.inputs[0].shape[1:]], np.int8)]
        joining = BatchEngine({1: load_with(ENGINE, "tflite", data, EngineSetup())})
        figures = compare(
            {
                "raw interpreter: set, invoke, get": by_hand(engine, item[0]),
                "engine.run": lambda _: engine.run(item),
                "BatchEngine.run_batch of one": lambda _: joining.run_batch([item]),
                "engine.run in a process of its own": lambda _: isolated.run(item),
            },
            rounds=rounds,
            block=block,
        )
        joining.close()
        isolated.close()
    return figures


def in_turn(cache: Path, rounds: int) -> list[Figures]:
    """Sizes change from batch to batch, as they do under load."""
    data = tflite("dense", cache).read_bytes()
    single, eight = (load_with(ENGINE, "tflite", data, EngineSetup(batch=n)) for n in (1, 8))
    resized = load_with(ENGINE, "tflite", data, EngineSetup())
    joining = BatchEngine({1: single, 8: eight}, seconds={1: 1.0, 8: 2.0})
    items = [[np.ones((1, 1024), np.int8)] for _ in range(8)]
    joined = [np.concatenate([item[0] for item in items])]

    def of_its_own(_: int) -> None:
        joining.run_batch(items[:1])
        joining.run_batch(items)

    def resizing(_: int) -> None:
        resized.run(items[0])
        resized.run(joined)

    def one_by_one(_: int) -> None:
        for item in (items[0], *items):
            single.run(item)

    ways = {
        "an interpreter for each size": of_its_own,
        "one interpreter, resized in between": resizing,
        "nine single runs": one_by_one,
    }
    figures = compare(ways, rounds=rounds, block=2, warm_up=3)
    for engine in (joining, resized):
        engine.close()
    return figures


def by_hand(engine: Engine, tensor: np.ndarray[Any, Any]) -> Callable[[int], Any]:
    interpreter = engine._interpreter  # type: ignore[attr-defined]
    (given,), (wanted,) = interpreter.get_input_details(), interpreter.get_output_details()

    def raw(_: int) -> Any:
        interpreter.set_tensor(given["index"], tensor)
        interpreter.invoke()
        return interpreter.get_tensor(wanted["index"])

    return raw


def memory_of(cache: Path, sizes: str) -> float:
    """In a process of its own: what was freed there before would be found again here."""
    command = [sys.executable, __file__, "--cache", str(cache), "--resident", sizes]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def resident_of(cache: Path, sizes: Sequence[int]) -> float:
    from edgekit_runtime.system.board import resident_mb

    load_with(ENGINE, "tflite", tflite("tiny", cache).read_bytes(), EngineSetup()).close()  # the import is not counted
    data = tflite("dense", cache).read_bytes()
    before = resident_mb() or 0.0
    engines = [load_with(ENGINE, "tflite", data, EngineSetup(batch=n)) for n in sizes]
    for engine, n in zip(engines, sizes, strict=True):
        engine.run([np.ones((n, 1024), np.int8)])
    return (resident_mb() or 0.0) - before


if __name__ == "__main__":
    main()
