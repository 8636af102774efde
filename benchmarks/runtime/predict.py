"""What predict() costs over the bare engine, on bundles that `edgekit build` made: four networks in full INT8.

    .venv/bin/python benchmarks/runtime/predict.py --cache FOLDER

The baseline is what a person writes by hand on the same interpreter: set_tensor, invoke, get_tensor (int8 in, int8
copied out), one thread. predict() does that and identifies, looks up, adapts, dequantizes, counts and makes an Answer.

What is outside the engine is each call's own time less its own `answer.timings["engine"]`. On a machine that others
share it varies far less than a difference between two calls.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
from networks import VARIANTS, bundle

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from side_by_side import Figures, compare, report

from edgekit.bench.conditions import conditions
from edgekit.bench.measure import golden_inputs
from edgekit_runtime import Model, open_bundle
from edgekit_runtime.batching.batcher import Batcher
from edgekit_runtime.batching.costs import Costs
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.contract.adapt import Adapter
from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.serving.fast_path import compile_fast_path

NETS = {"mobilenet": 20, "mobilenet-448": 8, "dense": 40, "tiny": 400}
"""Network -> calls a block. MobileNetV2 at 448 pixels takes more than 10 ms, and so runs in the batcher's thread."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cache", type=Path, required=True, help="where the networks are made and found again")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--only", choices=NETS, nargs="*", default=list(NETS), help="networks to measure; default all")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/runtime_predict.json"))
    options = parser.parse_args()
    tables: dict[str, list[Figures]] = {}
    for net in options.only:
        tables |= one(net, bundle(net, options.cache), options.rounds, NETS[net])
    tables |= lone(bundle("dense", options.cache, batch=VARIANTS), options.rounds)
    report("predict() against the raw engine", tables, conditions(), options.output)


def one(net: str, path: Path, rounds: int, block: int) -> dict[str, list[Figures]]:
    """The tables of one network."""
    opened = read_bundle(path)
    entry, contract = opened.artifact(), opened.manifest.contract
    given = next(iter(golden_inputs(opened)[0].values()))
    adapter, decoder = Adapter(contract.inputs[0], entry.inputs[0]), Decoder(contract.inputs[0])
    ready = np.ascontiguousarray(adapter(given)[0])
    with (
        open_bundle(path, threads=1, cache=False, settled=True) as plain,
        open_bundle(path, threads=1, cache=True, settled=True) as caching,
    ):
        off = {
            "raw interpreter: set, invoke, get (int8)": by_hand(plain, ready[None].copy()),
            "predict(int8 ready), cache off": asked(plain, ready.copy()),
            "predict(int8 ready), cache off, budget": asked(plain, ready.copy(), budget_ms=1e3),
            f"predict({given.dtype} {list(given.shape)}), cache off": asked(plain, given.copy()),
        }
        on = {
            "raw interpreter: set, invoke, get (int8)": by_hand(caching, ready[None].copy()),
            "predict(int8 ready), cache on, every input new": asked(caching, ready.copy()),
        }
        outside = {
            "8-bit input": beside_the_engine(plain, ready.copy(), block * rounds),
            "8-bit input, budget": beside_the_engine(plain, ready.copy(), block * rounds, budget_ms=1e3),
            f"{given.dtype} input": beside_the_engine(plain, given.copy(), block * rounds),
        }
        pixels = given.copy()
        apart = {
            f"adapt: {given.dtype} to {ready.dtype}": lambda _: adapter(pixels),
            f"decode: {given.dtype} of the right shape": lambda _: decoder(pixels),
        }
        return {
            f"{net}: one inference, one thread": compare(off, rounds=rounds, block=block),
            f"{net}: the same with the cache on, and never hit": compare(on, rounds=rounds, block=block),
            f"{net}: outside the engine": [figure(name, *taken) for name, taken in outside.items()],
            f"{net}: what decode and adapt cost apart": compare(apart, rounds=rounds, block=block),
        }


def lone(path: Path, rounds: int) -> dict[str, list[Figures]]:
    """What a caller that is alone pays for batches that it does not need."""
    opened = read_bundle(path)
    adapter = Adapter(opened.manifest.contract.inputs[0], opened.artifact().inputs[0])
    ready = np.ascontiguousarray(adapter(next(iter(golden_inputs(opened)[0].values())))[0])
    with open_bundle(path, threads=1, cache=False, settled=True) as model:
        assert model.stats().max_batch > 1, "batches do not pay here: there is nothing to compare"
        device = model._journey.device
        batching = device.batcher
        # On one interpreter: two of the same file differ by more than this does.
        plain = Batcher(device._run, Costs({1: device.costs.seconds(1)}), run_one=device.engine.run)
        ways = {}
        for device.batcher in (plain, batching):
            ways[device.batcher] = compile_fast_path(model._journey)

        def asked(batcher: Batcher) -> Callable[[int], object]:
            def ask(number: int) -> object:
                model._journey.predict = ways[batcher]
                return model.predict(fresh(number, ready))

            return ask

        found = compare({"batching off": asked(plain), "batching on": asked(batching)}, rounds=rounds, block=20)
        plain.close()
        return {"dense: a lone caller of predict()": found}


def beside_the_engine(
    model: Model, item: np.ndarray, calls: int, budget_ms: float | None = None
) -> tuple[list[float], list[float]]:
    """Microseconds of each call outside the engine, ascending, and by how many times it exceeds the engine's time."""
    outside, times = [], []
    for number in range(calls):
        fresh(number, item)
        start = perf_counter()
        answer = model.predict(item, budget_ms=budget_ms)
        took_us, engine_us = (perf_counter() - start) * 1e6, answer.timings["engine"] * 1e3
        outside.append(took_us - engine_us)
        times.append(took_us / engine_us)
    return sorted(outside[calls // 10 :]), times[calls // 10 :]


def figure(name: str, outside: list[float], times: list[float]) -> Figures:
    p50, p99 = outside[len(outside) // 2], outside[int(0.99 * (len(outside) - 1))]
    return Figures(name, p50, outside[0], p99, statistics.median(times))


def asked(model: Model, item: np.ndarray, budget_ms: float | None = None) -> Callable[[int], object]:
    return lambda number: model.predict(fresh(number, item), budget_ms=budget_ms)


def fresh(number: int, item: np.ndarray) -> np.ndarray:
    """The same array with another beginning, so that no two inputs are alike; every way pays for it alike."""
    start = item.reshape(-1).view(np.uint8)
    start[:3] = number & 255, number >> 8 & 255, number >> 16 & 63  # of a float, the lower bits: it stays finite
    return item


def by_hand(model: Model, tensor: np.ndarray) -> Callable[[int], np.ndarray]:
    """What a person writes, on the model's own interpreter.

    Two interpreters of the same file differ by some per cent.
    """
    interpreter = model._journey.device.engine._single._interpreter
    (given,), (wanted,) = interpreter.get_input_details(), interpreter.get_output_details()
    into, out = given["index"], wanted["index"]

    def raw(number: int) -> np.ndarray:
        interpreter.set_tensor(into, fresh(number, tensor))
        interpreter.invoke()
        return interpreter.get_tensor(out)

    return raw


if __name__ == "__main__":
    main()
