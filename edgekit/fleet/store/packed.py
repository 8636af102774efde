"""Histograms of a roll-up as a few hundred bytes, and merged without building objects.

    bins = unpack(blob)                     # {"device": [5, 0, {136: 7, 137: 410}]}: scale, zeros, buckets
    add(bins, "device", 5, 0, window.latency["device"].buckets)
    blob = pack(bins)
    quantiles([bins], (0.5, 0.99))          # milliseconds, over all names

A blob is JSON behind zlib: name -> [scale, zeros, index of the first bucket, counts...], where -n skips n buckets.

A blob of a store of version 2 is read, too: a byte for the number of histograms, then for each its name, scale, zeros
and runs of buckets. A run is the index of its first bucket, its length and its counts in planes: the low bytes of all
of them, then the next bytes of those from the first to the last that have one, and so on. A name is its place in
_NAMES, or its length and itself. Numbers are 7 bits a byte, the lowest first.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain

import msgspec

from edgekit_runtime.telemetry.histogram import SCALE, Histogram

MOST = (1 << 53) - 1
"""Counts stop here: what JSON, SQLite and PostgreSQL all keep exactly, and no sum of a few overflows."""
Bins = dict[str, tuple[int, int, dict[int, int]]]
_decode = msgspec.json.Decoder(dict[str, list[int]]).decode


def add(bins: Bins, name: str, scale: int, zeros: int, buckets: Mapping[int, int]) -> None:
    """Add one histogram. Two scales meet at the smaller."""
    found = bins.get(name)
    if found is None:
        bins[name] = (scale, zeros, dict(buckets))
        return
    have, known, into = found
    if scale < have:
        into, have = _coarser(into, have - scale), scale
    elif scale > have:
        buckets = _coarser(buckets, scale - have)
    get = into.get
    for index, n in buckets.items():
        into[index] = get(index, 0) + n
    bins[name] = (have, known + zeros, into)


def merge(bins: Bins, other: Bins) -> None:
    for name, (scale, zeros, buckets) in other.items():
        add(bins, name, scale, zeros, buckets)


def _coarser(buckets: Mapping[int, int], shift: int) -> dict[int, int]:
    joined: dict[int, int] = {}
    for index, n in buckets.items():
        joined[index >> shift] = joined.get(index >> shift, 0) + n
    return joined


def pack(bins: Bins) -> bytes:
    parts: dict[str, list[int]] = {}
    for name, (scale, zeros, buckets) in bins.items():
        indexes = sorted(buckets)
        first = at = indexes[0] if indexes else 0
        counts = [scale, zeros, first]
        if indexes and indexes[-1] - first < len(indexes):
            counts += map(buckets.__getitem__, indexes)
        else:
            for index in indexes:
                if index != at:
                    counts.append(at - index)
                counts.append(buckets[index])
                at = index + 1
        if max(counts) > MOST:
            counts = [min(n, MOST) for n in counts]
        parts[name] = counts
    squeeze = zlib.compressobj(1, zlib.DEFLATED, 12, 4)  # 40 KB to prepare, not 256
    return _HEAD + (squeeze.compress(msgspec.json.encode(parts)) + squeeze.flush())[2:]


def unpack(blob: bytes | None) -> Bins:
    """None: nothing."""
    if blob and blob[0] != _ZLIB:
        return _unpack_planes(blob)
    bins: Bins = {}
    for name, (scale, zeros, at, *counts) in (_decode(zlib.decompress(blob)) if blob else {}).items():
        if not counts or min(counts) > 0:
            buckets = dict(zip(range(at, at + len(counts)), counts, strict=True))
        else:
            buckets = {}
            for n in counts:
                if n > 0:
                    buckets[at] = n
                at += 1 if n > 0 else -n
        bins[name] = (scale, zeros, buckets)
    return bins


_ZLIB = 0x78
"""The first byte of a stream of zlib; as a number of histograms it would be 120."""
_HEAD = bytes([_ZLIB, 1])
"""Of a stream whose window is 32 KB at most."""
_NAMES = (
    "device", "cache", "host", "similar", "stale", "smaller", "input", "queue", "transfer", "inference", "output",
)  # fmt: skip
_FIRST = 1 << 13
"""Added to the index of a run, which may be below 0."""


def _unpack_planes(blob: bytes) -> Bins:
    bins: Bins = {}
    number = _read_numbers(blob)
    for _ in range(number(raw=True)):
        code = number(raw=True)
        name = _NAMES[code - 128] if code > 127 else bytes(number(raw=True) for _ in range(code)).decode()
        scale, zeros, buckets = number(raw=True), number(), dict[int, int]()
        for _ in range(number()):
            first, length = number() - _FIRST, number()
            planes = number(raw=True)
            counts, base = [number(raw=True) for _ in range(length)], 0
            for plane in range(1, planes + 1):
                base, above = base + number(), number()
                for place in range(base, base + above):
                    counts[place] += number(raw=True) << 8 * plane
            buckets.update((index, n) for index, n in enumerate(counts, first) if n)
        bins[name] = (scale, zeros, buckets)
    return bins


def _read_numbers(blob: bytes) -> Callable[..., int]:
    """One after another; raw: a byte as it is."""
    rest = iter(blob)

    def number(raw: bool = False) -> int:
        n = next(rest)
        shift = 7
        while not raw and n >> shift:
            n = n & ~(1 << shift) | next(rest) << shift
            shift += 7
        return n

    return number


def histograms(bins: Bins) -> dict[str, Histogram]:
    made = {}
    for name, (scale, zeros, buckets) in bins.items():
        histogram = Histogram(buckets, scale)
        histogram.zeros, histogram.count = zeros, histogram.count + zeros
        made[name] = histogram
    return made


class _Middles(dict[int, float]):
    """A bucket's index -> what it answers with, of one scale; worked out once each."""

    def __init__(self, scale: int) -> None:
        self._per_octave = 2.0**scale

    def __missing__(self, index: int) -> float:
        lower, upper = 2.0 ** (index / self._per_octave), 2.0 ** ((index + 1) / self._per_octave)
        middle: float = 2.0 * lower * upper / (lower + upper)
        self[index] = middle
        return middle


_MIDDLES = [_Middles(scale) for scale in range(SCALE + 1)]


def quantiles(several: Sequence[Bins], wanted: Sequence[float]) -> list[float | None]:
    """Milliseconds at each of the ascending ranks, over all names of all of them.

    Buckets of different scales are laid side by side and not joined, so a coarse cache costs a fine device no
    precision.
    """
    zeros = 0
    scales: dict[int, dict[int, int]] = {}
    for bins in several:
        for scale, none, buckets in bins.values():
            zeros += none
            joined = scales.get(scale)
            if joined is None:
                scales[scale] = dict(buckets)
            elif joined.keys().isdisjoint(buckets):
                joined.update(buckets)
            else:
                get = joined.get
                for index, n in buckets.items():
                    joined[index] = get(index, 0) + n
    values: Sequence[float]
    if len(scales) == 1:
        ((scale, joined),) = scales.items()
        indexes = sorted(joined)
        values, counts = indexes, list(map(joined.__getitem__, indexes))
    else:
        scale = -1
        pieces = sorted(
            chain.from_iterable(
                zip(map(_MIDDLES[scale].__getitem__, joined), joined.values(), strict=True)
                for scale, joined in scales.items()
            )
        )
        values, counts = [value for value, _ in pieces], [n for _, n in pieces]
    seen = list(accumulate(counts, initial=zeros))
    total = seen[-1]
    if not total:
        return [None] * len(wanted)
    found: list[float | None] = []
    for q in wanted:
        place = max(bisect_left(seen, q * total), 0 if zeros else 1)
        found.append(0.0 if not place else values[place - 1] if scale < 0 else _MIDDLES[scale][int(values[place - 1])])
    return found
