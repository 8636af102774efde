"""Answers that a cache kept where others may write: an input is what lies under the key of one request.

The seal is made to fit three times of four, as who knows the format can where there is no secret.
"""

from __future__ import annotations

import json
import struct
from functools import cache
from random import Random

import numpy as np

from edgekit_runtime.cache.memory_tier import Moment
from edgekit_runtime.cache.stored_answers import KeptForm, PackError
from edgekit_runtime.contract.spec import OutputContract
from edgekit_runtime.system.errors import InputError
from edgekit_runtime.system.sealed import SEAL_BYTES, seal
from fuzz.octets import altered
from fuzz.target import Target

_OUTPUTS = (OutputContract("probs", (4,), "float32"), OutputContract("boxes", (2, 3), "int64"))
_FORM, _KEY = KeptForm(b"model", _OUTPUTS), bytes(range(32))
_HEAD = struct.Struct("<ddQH")
_DTYPES = (
    "<f4",
    ">f4",
    "<f2",
    "<f8",
    "<i8",
    "|b1",
    "|O",
    "<U2",
    "|S4",
    "<M8[s]",
    "|V4",
    "<c8",
    "<i99",
    None,
    [["a", "|O"]],
)
_SHAPES = ([4], [2, 3], [], [0], [-1], [2, 2], [1, 4], [1 << 40], [1 << 62, 1 << 62], [True], [1.5], "4", None, [[4]])
_NAMES = ("probs", "boxes", "other", "", None, 7)
_DATES = (0.0, 1.8e9, -1.0, 1e308, float("nan"), float("inf"), float("-inf"))


def _read(data: bytes) -> None:
    try:
        outputs, born = _FORM.unpack(_KEY, data)
    except PackError as error:
        raise InputError(str(error)) from error
    assert list(outputs) == [output.name for output in _OUTPUTS]
    for output in _OUTPUTS:
        array = outputs[output.name]
        assert (array.shape, array.dtype) == (output.shape, np.dtype(output.dtype))
        assert np.isfinite(array).all()
        assert not array.flags.writeable
    assert _FORM.unpack(_KEY, _FORM.pack(_KEY, outputs, born))[1] == born


@cache
def _seeds() -> tuple[bytes, ...]:
    boxes = np.arange(6, dtype=np.int64).reshape(2, 3)
    return tuple(
        _FORM.pack(_KEY, {"probs": np.array(probs, np.float32), "boxes": boxes}, Moment(1.8e9, 5.5, 7))
        for probs in ([0, 1, 2, 3], [0.25] * 4)
    )


def _mutate(data: bytes, random: Random) -> bytes:
    body = data[:-SEAL_BYTES]
    act = random.randrange(4)
    if act == 0 or len(body) < _HEAD.size:
        body = altered(body, random)
    else:
        wall_s, up_s, boot, length = _HEAD.unpack_from(body)
        arrays = body[_HEAD.size + length :]
        table = [
            [random.choice(_NAMES), random.choice(_DTYPES), random.choice(_SHAPES)] if random.random() < 0.5 else row
            for row in (["probs", "<f4", [4]], ["boxes", "<i8", [2, 3]])
        ]
        if act == 1:
            wall_s, up_s = random.choice(_DATES), random.choice(_DATES)
        elif act == 2:
            table = random.choice(
                (table, table[::-1], table[:1], [*table, *table], None, 7, {"probs": 1}, [[]], [None])
            )  # type: ignore[assignment]
            arrays = altered(arrays, random) if random.random() < 0.5 else arrays
        header = json.dumps(table).encode()
        header = altered(header, random) if random.random() < 0.2 else header
        header += b" " * (-(_HEAD.size + len(header)) % 16)
        length = len(header) if random.random() < 0.9 else random.randrange(1 << 16)
        body = _HEAD.pack(wall_s, up_s, boot, min(length, 65535)) + header + arrays
    made = seal(_FORM.namespace + _KEY, body) if random.random() < 0.75 else data[-SEAL_BYTES:]
    return body + made


def answer() -> Target:
    return Target("answer", _read, (InputError,), _seeds, _mutate)
