"""The checkpoint reader trusts nothing: legacy files are written here by hand, right and wrong."""

from __future__ import annotations

import io
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.zoo.efficientnet_lite0 import read_state_dict

MAGIC = 0x1950A86A20F9469CFC6C


class Name:
    """A global by name: pickled as `module name`, without the module being there."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class Call:
    """`function(*arguments)`, pickled as REDUCE."""

    def __init__(self, function: Name, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments


class Storage:
    def __init__(self, key: str, count: int, kind: str = "FloatStorage") -> None:
        self.pid = ("storage", Name("torch", kind), key, "cpu", count, None)


REBUILD = Name("torch._utils", "_rebuild_tensor_v2")


class Pickler(pickle._Pickler):  # the pure-Python one: its dispatch can be extended
    dispatch = dict(pickle._Pickler.dispatch)

    def persistent_id(self, value: Any) -> Any:
        return value.pid if isinstance(value, Storage) else None

    def save(self, value: Any, save_persistent_id: bool = True) -> None:
        if isinstance(value, Name):
            self.write(f"c{value.module}\n{value.name}\n".encode())
        elif isinstance(value, Call):
            self.save(value.function)
            self.save(value.arguments)
            self.write(b"R")
        else:
            super().save(value, save_persistent_id)


def tensor(storage: Storage, size=(2, 3), stride=(3, 1), offset=0) -> Call:
    return Call(REBUILD, storage, offset, size, stride, False, OrderedDict())


def write(path: Path, entries: Any, magic: int = MAGIC) -> Path:
    storages = [("a", np.arange(6, dtype="<f4"))]
    file = io.BytesIO()
    for value in (magic, 1001, {"little_endian": True}, entries, [key for key, _ in storages]):
        Pickler(file, protocol=2).dump(value)
    for _, array in storages:
        file.write(struct.pack("<q", array.size) + array.tobytes())
    path.write_bytes(file.getvalue())
    return path


def test_tensors_come_back_with_their_strides(tmp_path: Path) -> None:
    a = Storage("a", 6)
    entries = OrderedDict(
        plain=tensor(a), turned=tensor(a, (3, 2), (1, 3)), tail=tensor(a, (2,), (1,), 4), one=tensor(a, (), (), 5)
    )
    read = read_state_dict(write(tmp_path / "net.pth", entries))
    assert read["plain"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert read["tail"].tolist() == [4, 5]
    assert read["one"] == 5
    assert read["plain"].dtype == np.float32


EVIL = {
    "a command": {"w": Call(Name("os", "system"), "touch owned")},
    "an eval": {"w": Call(Name("builtins", "eval"), "1")},
    "a storage type that is none": {"w": Name("torch", "load")},
    "a shape larger than its storage": {"w": tensor(Storage("a", 6), (3, 3), (3, 1))},
    "a stride out of its storage": {"w": tensor(Storage("a", 6), (2, 2), (100, 1))},
    "an offset out of its storage": {"w": tensor(Storage("a", 6), (2,), (1,), 5)},
    "a negative stride": {"w": tensor(Storage("a", 6), (2,), (-1,), 3)},
    "a stride of zero that multiplies": {"w": tensor(Storage("a", 6), (1 << 20, 1 << 20), (0, 0))},
    "a float for a size": {"w": tensor(Storage("a", 6), (2.0,), (1,))},
    "a storage that is not there": {"w": tensor(Storage("b", 6))},
    "a number for a tensor": {"w": 3},
    "a list of tensors": [tensor(Storage("a", 6))],
    "a key that is no name": {7: tensor(Storage("a", 6))},
}


@pytest.mark.parametrize("what", EVIL)
def test_more_than_plain_tensors_is_refused(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError) as caught:
        read_state_dict(write(tmp_path / "net.pth", EVIL[what]))
    assert str(tmp_path) in caught.value.where
    assert [path.name for path in tmp_path.iterdir()] == ["net.pth"]


def test_a_storage_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "net.pth", {"w": tensor(Storage("a", 6))})
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(SourceError, match="beyond the end"):
        read_state_dict(path)


def test_a_memo_bomb_is_refused_before_it_is_unpickled(tmp_path: Path) -> None:
    (tmp_path / "net.pth").write_bytes(b"\x80\x02Nr\xff\xff\xff\x7f.")
    with pytest.raises(SourceError, match="memo"):
        read_state_dict(tmp_path / "net.pth")


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 zip", b"hello\n", b"\x80\x02K\x05.", b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f."]
)
def test_what_is_no_legacy_checkpoint_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "net.pth").write_bytes(content)
    with pytest.raises(SourceError):
        read_state_dict(tmp_path / "net.pth")


def test_every_cut_of_a_file_is_refused_without_a_crash(tmp_path: Path) -> None:
    whole = write(tmp_path / "net.pth", {"w": tensor(Storage("a", 6))}).read_bytes()
    for end in range(len(whole)):
        (tmp_path / "cut.pth").write_bytes(whole[:end])
        with pytest.raises(SourceError):
            read_state_dict(tmp_path / "cut.pth")


def test_a_missing_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"none\.pth"):
        read_state_dict(tmp_path / "none.pth")
