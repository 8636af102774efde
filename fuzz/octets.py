"""Changes to plain bytes, for what has no structure worth keeping."""

from __future__ import annotations

from random import Random

_ROOM = 256 << 20
"""Containers often have 64 MB there, which other programs share."""
_WORDS = tuple(
    n.to_bytes(size, "little") for size in (1, 2, 4) for n in (0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1))
)


def altered(data: bytes, random: Random, changes: int = 4) -> bytes:
    """One to `changes` of: a bit turned, a byte set, a length-like word written, a piece cut, doubled or moved."""
    made = bytearray(data)
    for _ in range(random.randint(1, changes)):
        at = random.randrange(len(made) + 1)
        act = random.randrange(7)
        if act == 0 and at < len(made):
            made[at] ^= 1 << random.randrange(8)
        elif act == 1 and at < len(made):
            made[at] = random.randrange(256)
        elif act == 2:
            word = random.choice(_WORDS)
            made[at : at + len(word)] = word
        elif act == 3:
            del made[at : at + random.choice((1, 4, 64, 1000))]
        elif act == 4:
            piece = made[at : at + random.choice((1, 4, 64))]
            made[at:at] = piece
        elif act == 5:
            made[at:at] = random.choice(_WORDS)
        else:
            start = random.randrange(len(made) + 1)
            made[at:at] = made[start : start + random.choice((4, 32))]
    return bytes(made)


def scratch() -> str:
    """A folder in memory, where there is one with room: an execution that waits for a disk is a wasted one."""
    import os
    import shutil
    import tempfile

    roomy = os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > _ROOM
    return "/dev/shm" if roomy else tempfile.gettempdir()
