"""Histograms of a roll-up as a few hundred bytes, and merged without building objects.

    bins = unpack(blob)                     # {"device": [5, 0, {136: 7, 137: 410}]}: scale, zeros, buckets
    add(bins, "device", 5, 0, window.latency["device"].buckets)
    blob = pack(bins)
    quantiles([bins], (0.5, 0.99))          # milliseconds, over all names

A blob is a byte for the number of histograms, then for each its name, scale, zeros and runs of buckets. A run is the
index of its first bucket, its length and its counts in planes: the low bytes of all of them, then the next bytes of
those from the first to the last that have one, and so on. A gap of more than 4 empty buckets ends a run. A name is its
place in NAMES, or its length and itself. Numbers are 7 bits a byte, the lowest first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, compress, repeat

from edgekit_runtime.telemetry.histogram import SCALE, Histogram

MOST = (1 << 53) - 1
"""Counts stop here: what JSON, SQLite and PostgreSQL all keep exactly, and no sum of a few overflows."""
Bins = dict[str, tuple[int, int, dict[int, int]]]
NAMES = (
    "device", "cache", "host", "similar", "stale", "smaller", "input", "queue", "transfer", "inference", "output",
)  # fmt: skip
"""Stored as one byte; only ever to be appended to."""
_CODES = {name: bytes((128 + place,)) for place, name in enumerate(NAMES)}
_GAP = 4
_FIRST = 1 << 13
"""Added to the index of a run, which may be below 0."""


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
    parts = [bytes((len(bins),))]
    for name, (scale, zeros, buckets) in bins.items():
        indexes = sorted(buckets)
        runs = _runs(indexes)
        code = _CODES.get(name)
        if code is None:
            text = name.encode()
            code = bytes((len(text),)) + text
        parts += (code, bytes((scale,)), _number(min(zeros, MOST)), _number(len(runs)))
        for first, last in runs:
            counts = list(map(buckets.get, range(first, last + 1), repeat(0)))
            parts += (_number(first + _FIRST), _number(len(counts)), _planes(counts))
    return b"".join(parts)


def _number(n: int) -> bytes:
    if n < 128:
        return bytes((n,))
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def _runs(indexes: Sequence[int]) -> list[tuple[int, int]]:
    if not indexes:
        return []
    if indexes[-1] - indexes[0] - len(indexes) < _GAP:
        return [(indexes[0], indexes[-1])]
    runs = []
    first = last = indexes[0]
    for index in indexes:
        if index - last > _GAP + 1:
            runs.append((first, last))
            first = index
        last = index
    runs.append((first, last))
    return runs


def _planes(counts: list[int]) -> bytes:
    """Count of planes above the low bytes, then each plane's start, length and bytes."""
    top = max(counts)
    if top < 256:
        return b"\0" + bytes(counts)
    if top > MOST:
        counts, top = [min(n, MOST) for n in counts], MOST
    parts = [bytes(((top.bit_length() - 1) // 8,)), bytes([n & 255 for n in counts])]
    while top > 255:
        top >>= 8
        counts = [n >> 8 for n in counts]
        start, end = 0, len(counts)
        while not counts[start]:
            start += 1
        while not counts[end - 1]:
            end -= 1
        counts = counts[start:end]
        parts += (_number(start), _number(end - start), bytes([n & 255 for n in counts]))
    return b"".join(parts)


def unpack(blob: bytes | None) -> Bins:
    """None: nothing."""
    bins: Bins = {}
    if not blob:
        return bins
    place = 1
    for _ in range(blob[0]):
        code = blob[place]
        place += 1
        if code < 128:
            name, place = blob[place : place + code].decode(), place + code
        else:
            name = NAMES[code - 128]
        scale = blob[place]
        zeros, place = _read(blob, place + 1)
        runs, place = _read(blob, place)
        buckets: dict[int, int] = {}
        for _ in range(runs):
            first, place = _read(blob, place)
            length, place = _read(blob, place)
            first -= _FIRST
            planes = blob[place]
            place += 1
            counts: Sequence[int] = blob[place : place + length]
            place += length
            base = 0
            for plane in range(planes):
                start, place = _read(blob, place)
                above, place = _read(blob, place)
                base += start
                shift = 8 * plane + 8
                counts = list(counts)
                counts[base : base + above] = [
                    low + (n << shift)
                    for low, n in zip(counts[base : base + above], blob[place : place + above], strict=True)
                ]
                place += above
            indexes = range(first, first + length)
            if 0 in counts:
                buckets.update(zip(compress(indexes, counts), filter(None, counts), strict=True))
            else:
                buckets.update(zip(indexes, counts, strict=True))
        bins[name] = (scale, zeros, buckets)
    return bins


def _read(blob: bytes, place: int) -> tuple[int, int]:
    """A number, and where the next thing is."""
    n = blob[place]
    if n < 128:
        return n, place + 1
    n &= 127
    shift = 7
    while True:
        place += 1
        more = blob[place]
        n |= (more & 127) << shift
        if more < 128:
            return n, place + 1
        shift += 7


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
