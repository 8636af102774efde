"""32 tasks of an event loop ask one model: `apredict()` beside a queue with an executor, as written by hand.

    python benchmarks/runtime/on_a_loop.py --cache FOLDER

Both run the artifact of one bundle that `edgekit build` made (LiteRT, one thread, cache off). By hand, a task takes all
that is queued, up to 32, and runs it in the loop's executor, one item after the other. They run in turns, a short block
each; the median of the rounds' ratios counts. Answers are counted by second and by second of processor time: on a
machine that others share the latter says what a quiet one would do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from networks import bundle
from peers import LIMIT, Variants

from edgekit.bench.conditions import conditions
from edgekit_runtime import open_bundle

TASKS = 32
NETS = ("tiny", "dense")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cache", type=Path, required=True, help="where the networks are kept")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a block")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/runtime_on_a_loop.json"))
    options = parser.parse_args()
    value: dict[str, Any] = {"title": "an event loop, one engine", "conditions": conditions(), "rows": {}}
    for net in NETS:
        value["rows"][net] = row = measure(bundle(net, options.cache), options.rounds, options.seconds)
        print(net, {name: round(figure, 3) for name, figure in row.items()})
    options.output.write_text(json.dumps(value, indent=2) + "\n")
    print(f"\nwritten to {options.output}", file=sys.stderr)


def measure(path: Path, rounds: int, seconds: float) -> dict[str, float]:
    engine = Variants(path)
    ready = np.ascontiguousarray(engine.item[0])
    with open_bundle(path, threads=1, cache=False, settled=True) as model:

        async def turns() -> list[tuple[tuple[float, float], tuple[float, float]]]:
            found = []
            for _ in range(rounds):
                ask, worker = by_hand(engine)
                theirs = await crowd(ask, seconds)
                worker.cancel()
                found.append((theirs, await crowd(lambda: model.apredict(ready), seconds)))
            return found

        found = asyncio.run(turns())
    return {
        "by_hand_per_s": statistics.median(theirs[0] for theirs, _ in found),
        "apredict_per_s": statistics.median(ours[0] for _, ours in found),
        "ratio": statistics.median(ours[0] / theirs[0] for theirs, ours in found),
        "ratio_of_processor_time": statistics.median(ours[1] / theirs[1] for theirs, ours in found),
    }


def by_hand(engine: Variants) -> tuple[Callable[[], Awaitable[Any]], asyncio.Task[None]]:
    waiting: asyncio.Queue[tuple[Any, asyncio.Future[Any]]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    async def work() -> None:
        while True:
            batch = [await waiting.get()]
            while len(batch) < LIMIT and not waiting.empty():
                batch.append(waiting.get_nowait())
            answers = await loop.run_in_executor(None, lambda batch=batch: [engine.one(item) for item, _ in batch])
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    def ask() -> Awaitable[Any]:
        future = loop.create_future()
        waiting.put_nowait((engine.item, future))
        return future

    return ask, loop.create_task(work())


async def crowd(ask: Callable[[], Awaitable[Any]], seconds: float) -> tuple[float, float]:
    """Answers a second, and a second of processor time."""
    answered, began, cpu = 0, perf_counter(), process_time()

    async def caller() -> None:
        nonlocal answered
        while perf_counter() - began < seconds:
            await ask()
            answered += 1

    await asyncio.gather(*(caller() for _ in range(TASKS)))
    return answered / (perf_counter() - began), answered / (process_time() - cpu)


if __name__ == "__main__":
    main()
