"""An answer as bytes, stored where others may write: in a file, on a server.

    form = KeptForm(namespace, contract.outputs, secret)
    data = form.pack(key, outputs, moment())
    kept = form.unpack(key, data)               # raises PackError

Rules:
- the bytes are sealed under namespace and key (`sealed`), which stand for model, artifact and request;
- an unpacked answer is checked as a host's is, and has exactly the contract's outputs; a packed one as well;
- no pickle: nothing is executed.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from edgekit_runtime.cache.memory_tier import Moment
from edgekit_runtime.contract.adapt import taken
from edgekit_runtime.contract.spec import OutputContract
from edgekit_runtime.system.sealed import SEAL_BYTES, Buffer, is_sealed, seal

_HEAD = struct.Struct("<ddQH")
_ALIGNED = 16
_DTYPE = re.compile(r"[<>|][biufc][0-9]{1,2}")


class PackError(ValueError):
    """Bytes that `pack` did not write under this key, or outputs that do not fit the contract."""


class KeptAnswer(NamedTuple):
    """born: when it was made."""

    outputs: Mapping[str, np.ndarray[Any, Any]]
    born: Moment


@dataclass(frozen=True)
class KeptForm:
    """How one model's answers are kept.

    namespace: of the model.
    outputs: the contract's; None for arrays of any names and shapes.
    secret: see `sealed`.
    """

    namespace: bytes
    outputs: Sequence[OutputContract] | None = None
    secret: bytes | None = None

    def pack(self, key: bytes, outputs: Any, born: Moment) -> bytes:
        """Raises PackError for anything but an answer of this model.

        Layout, little-endian: wall and up (f64), boot (u64), u16 header length, header (JSON: [[name, dtype, shape],
        ...]), padding, the arrays' bytes, each from a multiple of 16, and the seal of all before it.
        """
        if not isinstance(outputs, Mapping):
            raise PackError(f"a {type(outputs).__name__} is no answer")
        parts, table = [], []
        for name, array in self._checked(outputs).items():
            table.append([name, array.dtype.str, array.shape])
            parts.append(array.tobytes())
        header = json.dumps(table, separators=(",", ":")).encode()
        if len(header) >= 2**16:
            raise PackError("the names and shapes take more than 64 KiB")
        data = bytearray(_HEAD.pack(born.wall_s, born.up_s, born.boot, len(header)) + header)
        for part in parts:
            data += bytes(-len(data) % _ALIGNED)
            data += part
        return bytes(data + seal(self.namespace + key, data, self.secret))

    def unpack(self, key: bytes, stored: object) -> KeptAnswer:
        """What was packed under this key; its arrays are read-only. Raises PackError."""
        if not isinstance(stored, bytes) or len(stored) < _HEAD.size + SEAL_BYTES:
            raise PackError("no answer was written there")
        data = memoryview(stored)[:-SEAL_BYTES]
        if not is_sealed(stored[-SEAL_BYTES:], self.namespace + key, data, self.secret):
            raise PackError("it is damaged, or of another request or model, or another secret sealed it")
        try:
            wall_s, up_s, boot, length = _HEAD.unpack_from(data)
            if not math.isfinite(wall_s) or not math.isfinite(up_s):
                raise PackError("it is of no date")
            arrays = _arrays(data, json.loads(stored[_HEAD.size : _HEAD.size + length]), _HEAD.size + length)
            return KeptAnswer(MappingProxyType(self._checked(arrays)), Moment(wall_s, up_s, boot))
        except PackError:
            raise
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise PackError(f"its header makes no sense: {error}") from error

    def _checked(self, found: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        outputs = self.outputs
        if outputs is None:
            outputs = [OutputContract(name, np.shape(one), str(np.asarray(one).dtype)) for name, one in found.items()]
        elif unknown := found.keys() - {output.name for output in outputs}:
            raise PackError(f"the contract has no output '{min(unknown):.40}'")
        try:
            return {output.name: taken(output, found.get(output.name)) for output in outputs}
        except ValueError as error:
            raise PackError(str(error)) from error


def _arrays(data: Buffer, table: Any, at: int) -> dict[str, np.ndarray[Any, Any]]:
    arrays = {}
    for name, dtype, shape in table:
        if not (isinstance(dtype, str) and _DTYPE.fullmatch(dtype)):  # NumPy evaluates parts of other texts
            raise PackError("no array of numbers")
        at += -at % _ALIGNED
        array = np.ndarray(tuple(shape), np.dtype(dtype), data, at)
        arrays[str(name)] = array
        at += array.nbytes
    return arrays
