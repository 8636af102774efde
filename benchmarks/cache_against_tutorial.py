"""edgekit's exact cache against the one that tutorials show.

    .venv/bin/python benchmarks/cache_against_tutorial.py

The tutorial's: key = md5(str(array)), a dict, and the oldest entry found by `min` when it is full. It is slower, and it is
wrong: NumPy shortens a large array's text, so two pictures that differ in one pixel share a key. The last line counts it.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

import numpy as np
from side_by_side import compare, report

from edgekit.bench import conditions
from edgekit_runtime import open_bundle
from edgekit_runtime.cache import MISS, MemoryCache, identify

ENTRIES = 1000


class TutorialCache:
    """As it is usually written down."""

    def __init__(self, size: int) -> None:
        self.size, self.cache, self.times = size, {}, {}

    def key(self, x: np.ndarray) -> str:
        return hashlib.md5(str(x).encode()).hexdigest()

    def get(self, x: np.ndarray):
        return self.cache.get(self.key(x))

    def put(self, x: np.ndarray, value: object) -> None:
        if len(self.cache) >= self.size:
            oldest = min(self.times, key=self.times.get)
            del self.cache[oldest], self.times[oldest]
        key = self.key(x)
        self.cache[key], self.times[key] = value, time.time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bundle", type=Path, default=Path("demo/bundles/efficientnet_lite0-raspberry-pi-4.ekb"))
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/cache_against_tutorial.json"))
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (224, 224, 3), np.uint8)
    outputs = {"probs": np.zeros(1000, np.float32)}
    tutorial, ours = TutorialCache(ENTRIES), MemoryCache(ENTRIES * (4000 + 512))
    tutorial.put(picture, outputs)
    ours.put(identify({"image": picture}, b"m")[0], outputs)
    tables = {
        "look up a 224 x 224 x 3 uint8 picture that is there": compare(
            {
                "tutorial: md5(str(array)), dict": lambda _: tutorial.get(picture),
                "edgekit: xxh3-128 of every byte, LRU": lambda _: ours.get(identify({"image": picture}, b"m")[0]),
            }
        )
    }
    keys = [(f"k{i}",) for i in range(ENTRIES)]
    for i, key in enumerate(keys):
        tutorial.cache[f"k{i}"], tutorial.times[f"k{i}"] = outputs, float(i)
        ours.put(key, outputs)

    def tutorial_put(number: int) -> None:
        oldest = min(tutorial.times, key=tutorial.times.get)
        del tutorial.cache[oldest], tutorial.times[oldest]
        tutorial.cache[f"n{number}"], tutorial.times[f"n{number}"] = outputs, float(ENTRIES + number)

    tables[f"put into a full cache of {ENTRIES} entries (key known)"] = compare(
        {"tutorial: min over all entries": tutorial_put, "edgekit: O(1)": lambda n: ours.put((f"n{n}",), outputs)}
    )
    if options.bundle.exists():
        with open_bundle(options.bundle, threads=1) as model:
            model.predict(picture)
            rows = compare({"predict(), answered from the cache": lambda _: model.predict(picture)}, block=400)
            assert model.predict(picture).source == "cache"
        tables["a whole request, 224 x 224 x 3 uint8"] = rows
    report("exact cache against the tutorial's", tables, conditions(), options.output)
    print(f"\nfalse hits of {ENTRIES} pictures that differ from a cached one in a single pixel")
    print("  tutorial {}   edgekit {}".format(*false_hits(picture, rng)))


def false_hits(picture: np.ndarray, rng: np.random.Generator) -> tuple[int, int]:
    tutorial, ours = TutorialCache(10), MemoryCache(1 << 20)
    tutorial.put(picture, 1)
    ours.put(identify({"image": picture}, b"m")[0], {})
    wrong = [0, 0]
    for position in rng.integers(0, picture.size, ENTRIES):
        other = picture.copy()
        other.reshape(-1)[position] ^= 1
        wrong[0] += tutorial.get(other) is not None
        wrong[1] += ours.get(identify({"image": other}, b"m")[0]) is not MISS
    return wrong[0], wrong[1]


if __name__ == "__main__":
    main()
