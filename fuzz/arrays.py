"""NumPy files: an input is a .npy or a .npz. Headers and members are changed with their lengths and checksums made to
fit.
"""

from __future__ import annotations

import io
import os
import struct
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

from edgekit_runtime.contract.array_file import read_arrays
from edgekit_runtime.system.errors import InputError
from fuzz.octets import altered, scratch
from fuzz.target import Target

_MOST_BYTES = 1 << 20


@cache
def _place() -> Path:
    return Path(tempfile.mkdtemp(prefix="edgekit-fuzz-", dir=scratch()))


def _read(data: bytes) -> None:
    path = _place() / f"{os.getpid()}.npz"
    path.write_bytes(data)
    found = read_arrays(path, _MOST_BYTES)
    for name, value in found.items():
        assert isinstance(name, str)
        assert isinstance(value, np.ndarray)
        assert not value.dtype.hasobject
        assert value.nbytes <= _MOST_BYTES


@cache
def _seeds() -> tuple[bytes, ...]:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    arrays = (
        values, np.asfortranarray(values.astype(np.int8)), np.array(3.5), np.zeros((0, 4), np.uint16),
        values.astype("c8"),
        np.zeros(3, [("a", "<i4"), ("b", "<f8", (2,))]), np.array(["a", "bc"]), np.array(["2027-01-31"], "M8[D]"),
    )  # fmt: skip
    made = []
    for one in arrays:
        file = io.BytesIO()
        np.save(file, one, allow_pickle=False)
        made.append(file.getvalue())
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, x=values, y=np.arange(5))
        made.append(file.getvalue())
    file = io.BytesIO()
    np.lib.format.write_array(file, values, (2, 0))
    return (*made, file.getvalue())


_DTYPES = (
    "|u1",
    "<f4",
    ">f8",
    "|O",
    "|S5",
    "|V8",
    "|V2000000000",
    "<U9",
    "<c16",
    "<M8[ns]",
    "|b1",
    "<f2",
    "<i99",
    "<m8",
    "|S0",
    "|V0",
)
_SHAPES = (
    "()", "(0,)", "(1,)", "(24,)", "(-1,)", "(2**9,)", "(4611686018427387904, 4)", "(99999999999999999999999,)",
    "(1,)*40", "(True,)",
    "(0, 9223372036854775807)", "(65536, 65536)", "None", "[3]", "(3, (4,))", "(1.5,)",
)  # fmt: skip


def _npy(data: bytes, random: Random) -> bytes:
    """Another header in front of the same values."""
    if data[:6] != b"\x93NUMPY" or random.random() < 0.3:
        return altered(data, random)
    old = 10 + struct.unpack_from("<H", data, 8)[0] if len(data) > 10 and data[6] == 1 else 80
    text = (
        f"{{'descr': {_descr(random)}, 'fortran_order': {random.choice(('True', 'False', '0', 'None'))}, 'shape': "
        f"{random.choice(_SHAPES)}, }}"
    )
    act = random.randrange(8)
    if act == 0:
        text = text.replace("'shape'", random.choice(("'Shape'", "'shape', 'shape'", "'x': 1, 'shape'")))
    elif act == 1:
        text = "(" * random.choice((10, 300, 5000)) + text
    elif act == 2:
        text += " " * random.choice((1, 9990, 20000))
    elif act == 3:
        text = altered(text.encode(), random).decode("latin-1")
    header = text.encode("utf-8") + b"\n"
    version = random.choice((1, 1, 1, 2, 3, 0, 255))
    size = random.choice((len(header),) * 6 + (0, 65535))
    lengths = (
        struct.pack("<H", min(size, 65535))
        if version == 1
        else struct.pack("<I", random.choice((size, size, 2**31, 2**32 - 1)))
    )
    return b"\x93NUMPY" + bytes((version, random.choice((0, 0, 0, 1)))) + lengths + header + data[old:]


def _descr(random: Random) -> str:
    one = repr(random.choice(_DTYPES))
    act = random.randrange(8)
    if act == 0:
        return f"[('a', {one}), ('b', {random.choice(_DTYPES)!r}, {random.choice(_SHAPES)})]"
    if act == 1:
        return random.choice(("'float32'", "None", "[]", "3", "'i4,f8'", "('<f4', (3,))", "{}", "'O'", "b'<f4'"))
    return one


def _npz(data: bytes, random: Random) -> bytes:
    if random.random() < 0.4:
        return altered(data, random)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(info.filename, archive.read(info)) for info in archive.infolist() if info.file_size < 1 << 20]
    except Exception:  # noqa: BLE001 - it was changed before, and is no archive any more
        return altered(data, random)
    made = io.BytesIO()
    packing = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(made, "w", packing) as archive:
        for name, body in members:
            if random.random() < 0.6:
                body = _npy(body, random)
            if random.random() < 0.1:
                body += bytes(1 << random.choice((10, 16, 20)))  # packs to almost nothing
            if random.random() < 0.2:
                name = random.choice(("x.npy", "../x.npy", "/etc/x.npy", "x", ".npy", "a\\b.npy", "x.npy/", "é.npy"))
            archive.writestr(name, body)
    return made.getvalue()


def _mutate(data: bytes, random: Random) -> bytes:
    return _npz(data, random) if data[:2] == b"PK" else _npy(data, random)


def array() -> Target:
    return Target("array", _read, (InputError,), _seeds, _mutate)
