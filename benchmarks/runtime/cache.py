"""The cache's tiers beside the one that tutorials show and beside cachetools.

What a cache that never hits costs; its memory.

    .venv/bin/python benchmarks/runtime/cache.py --cache FOLDER [--only lookup,throughput,memory,disk,likeness]

The tutorial's: key = md5(str(array)), a dict, and the oldest entry found by `min` when it is full. It is slower, and it
is wrong: NumPy shortens a large array's text, so two pictures that differ in one pixel share a key. cachetools.TTLCache
gets the same key as edgekit's, and a lock, without which it may not be used from two threads.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np
from networks import bundle

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from side_by_side import Figures, compare

from edgekit.bench.conditions import conditions
from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.cache.disk import DiskCache
from edgekit_runtime.cache.identity import identify
from edgekit_runtime.cache.memory_tier import MISS, MemoryCache
from edgekit_runtime.cache.similar import Semantic, Similar
from edgekit_runtime.cache.stored_answers import KeptForm
from edgekit_runtime.cache.tiered import Cache
from edgekit_runtime.serving.fast_path import compile_fast_path

try:
    import cachetools
except ImportError:
    cachetools = None

ENTRIES = 1000
REQUESTS = 2_000_000
Report = dict[str, Any]


class TutorialCache:
    """As it is usually written down."""

    def __init__(self, size: int) -> None:
        self.size, self.cache, self.times = size, {}, {}

    def key(self, x: np.ndarray) -> str:
        return hashlib.md5(str(x).encode()).hexdigest()

    def get(self, x: np.ndarray) -> Any:
        return self.cache.get(self.key(x))

    def put(self, x: np.ndarray, value: object) -> None:
        if len(self.cache) >= self.size:
            oldest = min(self.times, key=self.times.get)
            del self.cache[oldest], self.times[oldest]
        key = self.key(x)
        self.cache[key], self.times[key] = value, time.time()


class LockedTTLCache:
    """cachetools' map as its documentation says to share it."""

    def __init__(self, entries: int) -> None:
        self.map = cachetools.TTLCache(entries, ttl=3600)
        self.lock = threading.Lock()

    def get(self, key: bytes) -> Any:
        with self.lock:
            return self.map.get(key)

    def put(self, key: bytes, value: object) -> None:
        with self.lock:
            self.map[key] = value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cache", type=Path, required=True, help="where the networks are made and found again")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts to run: {', '.join(PARTS)}")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/runtime_cache.json"))
    options = parser.parse_args()
    found = json.loads(options.output.read_text()) if options.output.exists() else {}
    found |= {"title": "the cache's tiers", "conditions": conditions()}
    for part in options.only.split(","):
        found[part] = PARTS[part](options.cache)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(found, indent=2) + "\n")
    print(f"\nwritten to {options.output}", file=sys.stderr)


def lookup(networks: Path) -> Report:
    """An exact hit, and what storing costs."""
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (224, 224, 3), np.uint8)
    outputs = {"probs": np.zeros(1000, np.float32)}
    outputs["probs"].flags.writeable = False
    inputs, name = {"image": picture}, b"model-and-contrac"
    key = identify(inputs, name)[0]
    tutorial, memory = TutorialCache(ENTRIES), MemoryCache(64 << 20, ttl_s=3600.0)
    whole = Cache(MemoryCache(64 << 20, ttl_s=3600.0))
    tutorial.put(picture, outputs)
    memory.put(key, outputs)
    whole.store(key, outputs, 5.0)
    hits: dict[str, Callable[[int], Any]] = {"tutorial: md5(str(array)), dict": lambda _: tutorial.get(picture)}
    gets: dict[str, Callable[[int], Any]] = {}
    puts: dict[str, Callable[[int], Any]] = {"tutorial: min over all entries": lambda n: tutorial_put(tutorial, n)}
    if cachetools is not None:
        theirs = LockedTTLCache(ENTRIES)
        theirs.put(key, outputs)
        hits["the same key, cachetools.TTLCache, lock"] = lambda _: theirs.get(identify(inputs, name)[0])
        gets["cachetools.TTLCache, lock"] = lambda _: theirs.get(key)
        puts["cachetools.TTLCache, lock"] = lambda n: theirs.put(b"%032d" % n, outputs)
    hits["edgekit: MemoryCache"] = lambda _: memory.get(identify(inputs, name)[0])
    hits["edgekit: Cache, all its tiers' bookkeeping"] = lambda _: whole.lookup(identify(inputs, name)[0])
    gets["edgekit: MemoryCache"] = lambda _: memory.get(key)
    gets["edgekit: Cache"] = lambda _: whole.lookup(key)
    bounded = MemoryCache(ENTRIES * 4736, ttl_s=3600.0)
    for number in range(ENTRIES):
        tutorial.cache[f"k{number}"], tutorial.times[f"k{number}"] = outputs, float(number)
        bounded.put(b"%032d" % -number, outputs)
    puts["edgekit: bounded in bytes"] = lambda n: bounded.put(b"%032d" % n, outputs)
    tables = {
        "look up a 224 x 224 x 3 uint8 picture that is there": compare(hits, rounds=31, block=100),
        "the same, the key known": compare(gets, rounds=31, block=500),
        f"put into a full cache of {ENTRIES} entries": compare(puts, rounds=15, block=100),
    }
    with open_bundle(bundle("mobilenet", networks), threads=1, settled=True) as model:
        ready = picture.view(np.int8)  # as the artifact takes it
        model.predict(ready)
        assert model.predict(ready).source == "cache"
        rows = compare({"predict(), answered from the cache": lambda _: model.predict(ready)}, rounds=31, block=200)
        tables["a whole request, MobileNetV2, 224 x 224 x 3 int8"] = rows
    show(tables)
    wrong = false_hits(picture, rng)
    print(f"\nfalse hits of {ENTRIES} pictures that differ from a cached one in one pixel: {wrong}")
    return {"tables": as_json(tables), "false_hits": wrong}


def tutorial_put(tutorial: TutorialCache, number: int) -> None:
    oldest = min(tutorial.times, key=tutorial.times.get)
    del tutorial.cache[oldest], tutorial.times[oldest]
    tutorial.cache[f"n{number}"], tutorial.times[f"n{number}"] = None, float(ENTRIES + number)


def false_hits(picture: np.ndarray, rng: np.random.Generator) -> dict[str, int]:
    tutorial, ours = TutorialCache(10), MemoryCache(1 << 20)
    tutorial.put(picture, 1)
    ours.put(identify({"image": picture}, b"m")[0], {})
    wrong = {"tutorial": 0, "edgekit": 0}
    for position in rng.integers(0, picture.size, ENTRIES):
        other = picture.copy()
        other.reshape(-1)[position] ^= 1
        wrong["tutorial"] += tutorial.get(other) is not None
        wrong["edgekit"] += ours.get(identify({"image": other}, b"m")[0]) is not MISS
    return wrong


def throughput(networks: Path) -> Report:
    """Requests that never repeat: the cache on against the cache off, and against caches that go on looking."""
    return {net: never_hits(bundle(net, networks), block, rounds) for net, block, rounds in NEVER}


NEVER = (("tiny", 2000, 41), ("mobilenet", 30, 41))


def never_hits(path: Path, block: int, rounds: int) -> Report:
    """One model for all ways, because two interpreters of the same file differ by some per cent; its cache is
    exchanged.
    """
    contract = read_bundle(path).manifest.contract.inputs[0]
    item = np.zeros(contract.shape, np.uint8 if contract.image else contract.dtype)
    counter = item.reshape(-1).view(np.uint8)[:4].view(np.uint32)
    number = 0
    tutorial, theirs = TutorialCache(ENTRIES), LockedTTLCache(ENTRIES) if cachetools is not None else None
    with tempfile.TemporaryDirectory() as folder, open_bundle(path, threads=1, settled=True) as model:
        journey = model._journey
        on = journey.cache
        on_disk = Cache(MemoryCache(64 << 20), disk=DiskCache(Path(folder) / "answers.db", KeptForm(b"m")))

        def by_tutorial(x: np.ndarray) -> Any:
            found = tutorial.get(x)
            if found is None:
                found = model.predict(x)
                tutorial.put(x, found)
            return found

        def by_cachetools(x: np.ndarray) -> Any:
            key = identify({"x": x}, b"m")[0]
            found = theirs.get(key)
            if found is None:
                found = model.predict(x)
                theirs.put(key, found)
            return found

        ways: dict[str, tuple[Cache | None, Callable[[np.ndarray], Any]]] = {
            "cache off": (None, model.predict),
            "cache off, once more": (None, model.predict),
            "cache on": (on, model.predict),
            "cache on, disk tier on": (on_disk, model.predict),
            "tutorial cache before it": (None, by_tutorial),
        }
        if theirs is not None:
            ways["cachetools.TTLCache before it, the same key"] = (None, by_cachetools)
        rates: dict[str, list[float]] = {way: [] for way in ways}
        order = np.random.default_rng(0)
        for _ in range(rounds + 2):
            for way in order.permutation(list(ways)).tolist():
                journey.cache, ask = ways[way]
                journey.predict = compile_fast_path(journey)
                start = perf_counter()
                for _ in range(block):
                    number += 1
                    counter[0] = number & 0x3FFFFFFF  # of a float, finite
                    ask(item)
                rates[way].append(block / (perf_counter() - start))
        journey.cache = on
        on_disk.close()
        stats = on.stats()
    measured = {way: taken[2:] for way, taken in rates.items()}
    print(f"\n{path.stem}: requests that never repeat, {rounds} rounds of {block}")
    rows = {}
    for way, taken in measured.items():
        ratio = statistics.median(rate / base for rate, base in zip(taken, measured["cache off"], strict=True))
        rows[way] = {"per_s": statistics.median(taken), "of_cache_off": ratio}
        print(f"  {way:<52} {rows[way]['per_s']:>10,.0f}/s {ratio:>7.3f}")
    print(f"  looked up {stats.hits + stats.misses:,}, skipped {stats.skipped:,}")
    return {"rows": rows, "looked_up": stats.hits + stats.misses, "skipped": stats.skipped}


def memory(networks: Path) -> Report:
    """2 million distinct requests through a bounded cache, in a process of its own."""
    found = {}
    print(f"\nresident memory over {REQUESTS:,} distinct requests through a cache of 32 MiB")
    for kind in ("answers of 1000 floats", "answers of 1 to 4000 floats"):
        done = subprocess.run([sys.executable, __file__, "--child", kind], capture_output=True, text=True, check=True)
        row = found[kind] = json.loads(done.stdout)
        print(
            f"  {kind:<30} {row['mb'][0]:.1f} MB when it was full, then {min(row['mb']):.1f} to {max(row['mb']):.1f}: "
            f"{row['spread']:.1%}; counted {row['counted_mb']:.1f} MB, grown by {row['grown_mb']:.1f} MB; "
            f"{row['seconds']:.0f} s"
        )
    return found


def memory_child(kind: str) -> None:
    """Prints resident memory at 40 points after the cache was full, and what it grew by since there was none."""
    rng = np.random.default_rng(0)
    sizes = np.full(4096, 1000) if "1000" in kind else rng.integers(1, 4001, 4096)
    sizes = sizes.tolist()
    cache = MemoryCache(32 << 20, ttl_s=3600.0)
    request = np.zeros(64, np.uint64)
    identify({"x": request}, b"m")
    empty, taken, start = resident_mb(), [], perf_counter()
    for number in range(REQUESTS):
        request[0] = number
        key, _ = identify({"x": request}, b"m")
        assert key is not None
        if cache.get(key) is MISS:
            cache.put(key, {"probs": np.full(sizes[number & 4095], 1.0, np.float32)})
        if number % (REQUESTS // 50) == 0 and number >= REQUESTS // 5:
            taken.append(resident_mb())
    stats = cache.stats()
    row = {
        "mb": [round(mb, 2) for mb in taken],
        "spread": max(taken) / min(taken) - 1,
        "counted_mb": stats.bytes / 1e6,
        "grown_mb": taken[-1] - empty,
        "entries": stats.entries,
        "seconds": perf_counter() - start,
    }
    print(json.dumps(row))


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def disk(networks: Path) -> Report:
    """Reading, missing, storing, opening; and what is written to the card for an answer."""
    outputs = {"probs": np.random.default_rng(0).random(1000, np.float32)}
    outputs["probs"].flags.writeable = False
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answers.db"
        tier = DiskCache(path, KeptForm(b"model"), max_bytes=64 << 20)
        n, before = 10_000, written_bytes()
        for number in range(n):
            tier.put(key_of(number), outputs)
            if number % 128 == 127:
                tier.sync()
        tier.sync()
        one_each = (written_bytes() - before) / n
        before = written_bytes()
        for number in range(n, 2 * n):  # full by now: every answer pushes another out
            tier.put(key_of(number), outputs)
            if number % 128 == 127:
                tier.sync()
        tier.sync()
        replacing = (written_bytes() - before) / n
        before = written_bytes()
        for number in range(2 * n - 1000, 2 * n):
            assert tier.get(key_of(number)) is not MISS
        reading = written_bytes() - before
        stats = tier.stats()
        rng = np.random.default_rng(1)
        order = rng.integers(2 * n - 5000, 2 * n, 100_000).tolist()
        hit = compare({"hit, 1000 floats": lambda i: tier.get(key_of(order[i]))}, rounds=15, block=100)
        miss = compare({"miss": lambda i: tier.get(key_of(-i))}, rounds=15, block=100)
        memory_tier = MemoryCache(64 << 20)
        put = compare(
            {"put (what a request pays; written behind)": lambda i: tier.put(key_of(i), outputs)}, rounds=5, block=30
        )
        memory_put = compare({"put into memory": lambda i: memory_tier.put(key_of(i), outputs)})
        tier.close()
        start = perf_counter_ns()
        reopened = DiskCache(path, KeptForm(b"model"), max_bytes=64 << 20)
        opening_ms = (perf_counter_ns() - start) / 1e6
        reopened.close()
    tables = {f"the disk tier, {stats.entries:,} answers, {stats.bytes / 1e6:.0f} MB": [*hit, *miss, *put, *memory_put]}
    show(tables)
    row = {
        "entries": stats.entries,
        "file_mb": stats.bytes / 1e6,
        "answer_bytes": 4000,
        "written_bytes_an_answer": one_each,
        "written_bytes_an_answer_when_full": replacing,
        "written_bytes_by_1000_reads": reading,
        "opening_ms": opening_ms,
    }
    for name, value in row.items():
        print(f"  {name:<52} {value:>12,.1f}")
    return {"tables": as_json(tables), **row}


def written_bytes() -> int:
    """By this process, by its system calls."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def key_of(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def likeness(networks: Path) -> Report:
    """What comparing costs, beside the networks that it spares."""
    rng = np.random.default_rng(0)
    tables = {}
    rows = []
    for shape in ((224, 224, 3), (320, 320, 3), (640, 640, 3), (96, 96, 1)):
        similar = Similar(4.0)
        pictures = [rng.integers(0, 256, shape, np.uint8) for _ in range(5)]
        for one in pictures[:4]:
            similar.remember(similar.mark({"image": one}), {})
        asked = {"image": pictures[4]}
        rows += compare({f"similar: {' x '.join(map(str, shape))} uint8, 4 kept": similar_ask(similar, asked)})
    tables["is this picture like one of the last?"] = rows
    rows = []
    for dim in (128, 512, 1280):
        semantic = Semantic(lambda item: item, 0.05, max_entries=10_000)
        for vector in rng.normal(size=(10_000, dim)).astype(np.float32):
            semantic.remember(semantic.mark({"x": vector}), {})
        asked = {"x": rng.normal(size=dim).astype(np.float32)}
        rows += compare({f"semantic: nearest of 10,000 vectors of {dim}": similar_ask(semantic, asked)}, block=10)
    tables["is this vector near one of those that are kept?"] = rows
    show(tables)
    return {"tables": as_json(tables)}


def similar_ask(tier: Any, items: dict[str, np.ndarray]) -> Callable[[int], Any]:
    return lambda _: tier.find(tier.mark(items))


def show(tables: dict[str, list[Figures]]) -> None:
    for caption, rows in tables.items():
        print(f"\n{caption}\n  {'':<52} {'p50 us':>10} {'min us':>10} {'p99 us':>10} {'ratio':>7}")
        for row in rows:
            print(f"  {row.name:<52} {row.p50_us:>10.2f} {row.min_us:>10.2f} {row.p99_us:>10.2f} {row.ratio:>7.3f}")


def as_json(tables: dict[str, list[Figures]]) -> Report:
    return {caption: [asdict(row) for row in rows] for caption, rows in tables.items()}


PARTS: dict[str, Callable[[Path], Report]] = {
    "lookup": lookup,
    "throughput": throughput,
    "memory": memory,
    "disk": disk,
    "likeness": likeness,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        memory_child(sys.argv[2])
    else:
        main()
