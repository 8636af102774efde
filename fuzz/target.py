"""One reader that is fuzzed, and the oracle that every execution is judged by.

    outcome = judge(target, data)           # "accepted", or the code of the refusal

Rules, each an assertion in `judge`:
- nothing but the errors that the reader documents comes out;
- a refusal says what is wrong, in one printable line;
- an execution takes at most MOST_SECONDS of this thread's processor time, the least of three where the first took more:
  what other processes do does not count, nor does a collection of this process's garbage;
- what is accepted keeps the promises that the target's `read` asserts of it.
Memory is watched by who runs many executions, because a peak belongs to a process: see `atheris_run`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from edgekit_runtime.system.errors import EdgekitError
from fuzz.octets import altered

MOST_SECONDS = 1.0
MOST_EXTRA_MB = 256
_TIMES = 3


class OracleError(AssertionError):
    """The reader did what it promises never to do."""


@dataclass(frozen=True)
class Target:
    """read: the reader, and what must hold of what it accepts. refusals: all that it may raise.

    seeds: good inputs, small. mutate: a changed input that still looks like one; it fixes lengths and digests as an
    attacker would. most_bytes: of one input.
    """

    name: str
    read: Callable[[bytes], None]
    refusals: tuple[type[EdgekitError], ...]
    seeds: Callable[[], Sequence[bytes]]
    mutate: Callable[[bytes, Random], bytes]
    most_bytes: int = 1 << 16


def judge(target: Target, data: bytes) -> str:
    """What became of one input. Raises OracleError, or whatever the reader let through."""
    taken = math.inf
    for _ in range(_TIMES):
        start = time.thread_time()
        try:
            target.read(data)
            outcome = "accepted"
        except target.refusals as error:
            outcome = getattr(error, "word", error.code)
            told = str(error)
            if not error.what or not told.isprintable():
                raise OracleError(f"a refusal is not one line: {told!r}") from error
        taken = min(taken, time.thread_time() - start)
        if taken <= MOST_SECONDS:
            return outcome
    raise OracleError(f"{len(data)} bytes took {taken:.2f} s of processor time")


def mutated(target: Target, data: bytes, random: Random) -> bytes:
    """A changed input of at most the target's size: now and then of a seed, so that the search never strays for good.

    It is changed byte by byte where its tree is too deep for the mutator itself.
    """
    if random.random() < 0.15:
        data = random.choice(target.seeds())
    try:
        made = target.mutate(data, random)
    except RecursionError:
        made = altered(data, random)
    return made[: target.most_bytes]
