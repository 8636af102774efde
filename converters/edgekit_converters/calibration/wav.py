"""A .wav file -> numbers in -1..1, one channel.

Rules: PCM of 8, 16, 24 or 32 bits and IEEE floats of 32 or 64; several channels are averaged; nothing is resampled, so a set
has one rate, and that must be the rate of the model's training.

    samples, rate = read_wav(Path("yes.wav"))       # float32 [frames], 16000
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import CalibrationError

__all__ = ["loudest", "read_wav"]

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_AGAIN = "Save it again as 16-bit PCM, or remove it"


def read_wav(path: Path) -> tuple[NDArray[np.float32], int]:
    """float32 [frames] in -1..1, and frames a second. Raises CalibrationError for a damaged or unknown file.

    Python's own `wave` refuses floats, so the chunks (Microsoft's RIFF WAVE) are read here.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CalibrationError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    if len(data) < 12 or data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise CalibrationError("is no .wav file", where=str(path), do=_AGAIN)
    chunks = _chunks(data)
    head, body = chunks.get(b"fmt ", b""), chunks.get(b"data", b"")
    if len(head) < 16:
        raise CalibrationError("has no format", where=str(path), do=_AGAIN)
    kind, channels, rate, _, frame, bits = struct.unpack("<HHIIHH", head[:16])
    if kind == _EXTENSIBLE and len(head) >= 26:
        kind = struct.unpack("<H", head[24:26])[0]
    if not channels or frame != channels * bits // 8 or not rate:
        raise CalibrationError(f"has {channels} channels of {bits} bits in {frame} bytes", where=str(path), do=_AGAIN)
    numbers = _numbers(body[: len(body) // frame * frame], kind, bits)
    if numbers is None:
        raise CalibrationError(
            f"has samples of a kind that is not read ({kind}, {bits} bits)", where=str(path), do=_AGAIN
        )
    if not numbers.size:
        raise CalibrationError("has no samples", where=str(path), do="Remove it")
    mono = numbers.reshape(-1, channels).mean(axis=1)
    if not np.isfinite(mono).all():
        raise CalibrationError("has samples that are NaN or infinite", where=str(path), do="Remove it")
    return mono.astype(np.float32), int(rate)


def loudest(samples: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """`count` samples: the part with the most energy, in steps of half its length; zeros behind a shorter recording."""
    if len(samples) <= count:
        return np.pad(samples, (0, count - len(samples)))
    energy = np.concatenate([[0.0], np.cumsum(np.square(samples, dtype=np.float64))])
    starts = np.unique([*range(0, len(samples) - count, max(1, count // 2)), len(samples) - count])
    start = int(starts[np.argmax(energy[starts + count] - energy[starts])])
    return samples[start : start + count]


def _chunks(data: bytes) -> dict[bytes, bytes]:
    """The first chunk of each name; one that ends early (a recorder that was switched off) is what is there."""
    found: dict[bytes, bytes] = {}
    at = 12
    while at + 8 <= len(data):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        found.setdefault(name, data[at + 8 : at + 8 + size])
        at += 8 + size + size % 2
    return found


def _numbers(body: bytes, kind: int, bits: int) -> NDArray[np.float64] | None:
    if kind == _FLOAT and bits in (32, 64):
        return np.frombuffer(body, f"<f{bits // 8}").astype(np.float64)
    if kind != _PCM:
        return None
    if bits == 8:
        return (np.frombuffer(body, np.uint8).astype(np.float64) - 128) / 128
    if bits in (16, 32):
        return np.frombuffer(body, f"<i{bits // 8}").astype(np.float64) / 2.0 ** (bits - 1)
    if bits == 24:
        low, middle, high = np.frombuffer(body, np.uint8).reshape(-1, 3).T.astype(np.int64)
        unsigned = low | middle << 8 | high << 16
        return np.where(unsigned >= 1 << 23, unsigned - (1 << 24), unsigned) / float(1 << 23)
    return None
