"""Groups 9, 19 and 20: few bytes that ask for many, and files that would run code if they were loaded carelessly."""

from __future__ import annotations

import gzip
import io
import pickle
import resource
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hostile import forge
from hostile.cases import Unpickled, signed, zstd_bomb

from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.contract.array_file import read_arrays
from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.contract.spec import ImageSpec, InputContract
from edgekit_runtime.system.errors import BundleError, EdgekitError, InputError

MB = 1 << 20


class Bounded:
    """Asserts, at the end of the block, how much of this process's memory and processor time it took."""

    def __init__(self, mb: float, seconds: float = 1.0) -> None:
        self._mb, self._seconds = mb, seconds

    def __enter__(self):
        self._began, self._peak = time.thread_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def __exit__(self, kind, *_):
        if kind is None:
            assert time.thread_time() - self._began < self._seconds
            assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self._peak) / 1024 < self._mb


def npz(header: bytes, values: int, packing: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An archive of one array: a header, then so many MB of zeros."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", packing, compresslevel=1) as archive, archive.open("x.npy", "w") as member:
        member.write(header)
        for _ in range(values):
            member.write(bytes(MB))
    return file.getvalue()


def npy_header(descr: str, shape: str) -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


ARRAYS = {
    "a header that says it has 300 MB": lambda: npz(b"\x93NUMPY\x02\x00" + struct.pack("<I", 300 * MB), 300),
    "300 MB of zeros": lambda: npz(npy_header("<f4", f"({75 * MB},)"), 300),
    "300 MB of zeros in a byte each": lambda: npz(npy_header("|V1000000", "(300,)"), 300),
    "less than it says": lambda: npz(npy_header("<f4", "(99999999999,)"), 1),
    "a size that overflows": lambda: npz(npy_header("<f4", "(4611686018427387904, 8)"), 1),
    "5,000 arrays": lambda: many(5000),
}


def many(count: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(count):
            archive.writestr(f"{number}.npy", npy_header("|u1", "(0,)"))
    return file.getvalue()


@pytest.mark.parametrize("case", ARRAYS)
def test_group_09_an_array_file_is_not_unpacked_to_find_out_how_large_it_is(case, tmp_path):
    path = tmp_path / "x.npz"
    path.write_bytes(ARRAYS[case]())
    with Bounded(mb=64), pytest.raises(InputError) as caught:
        read_arrays(path, 4 * MB)
    assert str(caught.value).isprintable()


def png(width: int, height: int) -> bytes:
    """All of one colour: a thousandth of its pixels' bytes."""
    packed = zlib.compressobj(1)
    rows = b"".join(packed.compress(bytes(1 + width * 3)) for _ in range(height)) + packed.flush()
    made = b"\x89PNG\r\n\x1a\n"
    for kind, body in (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", rows),
        (b"IEND", b""),
    ):
        made += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return made


def test_group_09_a_picture_of_far_too_many_pixels_is_refused_by_its_header():
    pytest.importorskip("PIL")
    decoder = Decoder(InputContract("image", (8, 8, 3), "float32", ImageSpec(8, 8, (0.0,) * 3, (1.0,) * 3)))
    data = png(8192, 4097)
    with Bounded(mb=32), pytest.raises(InputError, match=r"8192 x 4097 pixels is more than"):
        decoder(data)


@pytest.mark.parametrize("make", [zstd_bomb, lambda: gzip.compress(bytes(64 * MB), 9)], ids=["zstd", "gzip"])
def test_group_09_nothing_is_unpacked_that_only_looks_like_a_bundle(make, tmp_path):
    path = tmp_path / "x.ekb"
    path.write_bytes(make())
    with Bounded(mb=16), pytest.raises(BundleError, match="not an edgekit bundle"):
        read_bundle(path)


def nested(opening: bytes, closing: bytes, times: int) -> bytes:
    return b"[" + b",".join([opening + closing] * times) + b"]"


MANIFESTS = {
    "a million empty lists": lambda: nested(b"[", b"]", 1_000_000),
    "a million empty objects": lambda: nested(b"{", b"}", 1_000_000),
    "four million brackets": lambda: b"[" * 2_000_000 + b"]" * 2_000_000,
    "400,000 names, the last one twice": lambda: (
        b"{" + b"".join(b'"%06d":0,' % n for n in range(300_000)) + b'"299999":0}'
    ),
    "a number of four million digits": lambda: b'{"format":' + b"1" * 4_000_000 + b"}",
    "a text of four million escapes": lambda: b'{"name":"' + b"\\\\" * 2_000_000 + b'"}',
    "a text that never ends": lambda: b'{"name":"' + b"a" * 4_000_000,
    "quotes alone": lambda: b'"' * 4_000_000,
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_group_05_a_manifest_as_large_as_is_allowed_costs_a_bounded_time_and_memory(case, tmp_path):
    path = tmp_path / "x.ekb"
    path.write_bytes(signed(MANIFESTS[case]()))
    with Bounded(mb=256, seconds=2.5), pytest.raises(BundleError) as caught:
        read_bundle(path)
    assert caught.value.code == "bundle-format"
    assert len(str(caught.value)) < 1000


def test_group_19_a_model_that_declares_4_gib_takes_none_of_them():
    from hostile.bad_models import MODELS

    from edgekit_runtime.modelfile.check import check_model

    for one in (one for one in MODELS if one.group == 19):
        data = one.make()
        assert len(data) < 4096
        with Bounded(mb=8), pytest.raises(BundleError):
            check_model(one.format, data, where=one.name)


_OPENS = """
import sys
from pathlib import Path
from edgekit_runtime.system.errors import EdgekitError
name, path = sys.argv[1:]
if name == "array":
    from edgekit_runtime.contract.array_file import read_arrays as read
    arguments = (Path(path), 1 << 20)
elif name == "bundle":
    from edgekit_runtime.bundle.reader import read_bundle as read
    arguments = (path,)
else:
    from edgekit_runtime.modelfile.check import check_model as read
    arguments = (name, Path(path).read_bytes())
try:
    read(*arguments)
except EdgekitError as error:
    print("refused", error.code)
"""


def _objects(file: io.BytesIO) -> None:
    np.save(file, np.array([Unpickled()], object), allow_pickle=True)


def _zipped(file: io.BytesIO) -> None:
    np.savez(file, x=np.array([Unpickled()], object))


def _pickled(file: io.BytesIO) -> None:
    pickle.dump(Unpickled(), file)


def _torch(file: io.BytesIO) -> None:
    """As torch.save lays it out: an archive with a pickle in it."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Unpickled()))


@pytest.mark.parametrize("make", [_objects, _zipped, _pickled, _torch])
def test_group_20_a_pickle_is_never_loaded_whatever_it_is_offered_as(make, tmp_path):
    """It would end the process with a sentence of its own."""
    file = io.BytesIO()
    make(file)
    path = tmp_path / "x.npz"
    path.write_bytes(file.getvalue())
    for name in ("array", "bundle", "tflite", "onnx") if make is _objects else ("array", "onnx"):
        done = subprocess.run(
            [sys.executable, "-c", _OPENS, name, str(path)], capture_output=True, text=True, timeout=60
        )
        assert done.stdout.startswith("refused"), (name, done.stdout, done.stderr)
        assert done.returncode == 0


def test_the_pickle_of_these_tests_would_run():
    with pytest.raises(SystemExit, match="a pickle was loaded"):
        pickle.loads(pickle.dumps(Unpickled()))


def test_group_08_a_bundle_larger_than_the_disk_is_refused_before_it_is_fetched(root, tmp_path):
    """Its head is honest about 1.9 GB, of which nothing is there: the disk has less, or the file ends."""
    from hostile.board import asked, refuses

    value = forge.manifest(rollout_seq=6)
    value["blobs"].append({"sha256": "0" * 64, "offset": value["blobs"][-1]["offset"] + 64, "size": 1_900_000_000})
    path = tmp_path / "large.ekb"
    path.write_bytes(signed(value))
    error: EdgekitError = refuses(root, Path(path), asked(), "disk-full|download-size")
    assert "1,90" in str(error)
