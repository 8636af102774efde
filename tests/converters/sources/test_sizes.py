"""A small file that declares gigabytes, or reads others, is refused before anything is unpacked."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.sources.load import load

h5py = pytest.importorskip("h5py")
pytestmark = pytest.mark.convert

CONFIG = json.dumps({"class_name": "Sequential", "config": {"name": "net", "layers": []}})


def keras_file(path: Path, weights: bytes, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("config.json", CONFIG)
        archive.writestr("model.weights.h5", weights)
    return path


def hdf5(path: Path, fill) -> Path:
    with h5py.File(path, "w") as file:
        file.attrs["model_config"] = CONFIG
        fill(file)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(SourceError) as caught:
        load(path)
    return caught.value.what


def test_an_archive_that_declares_more_than_2_gb_is_refused(tmp_path: Path) -> None:
    path = keras_file(tmp_path / "net.keras", b"x" * 1000)
    data = path.read_bytes()
    record = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1)  # of the weights, in the archive's directory
    path.write_bytes(data[: record + 24] + (3_000_000_000).to_bytes(4, "little") + data[record + 28 :])
    assert "unpacks to 3.0 GB" in refusal(path)


def test_an_archive_that_shrinks_as_no_weights_do_is_refused(tmp_path: Path) -> None:
    assert "times its size" in refusal(keras_file(tmp_path / "net.keras", bytes(300 << 20)))


def test_two_members_of_one_name_are_refused_whatever_their_case(tmp_path: Path) -> None:
    path = keras_file(tmp_path / "net.keras", b"x")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("CONFIG.json", "{}")
    assert "two of its members have the same name" in refusal(path)


def a_huge_shape(file) -> None:
    file.create_dataset("kernel", (40_000, 40_000), np.float32, chunks=(1000, 1000))


def chunks_that_shrink(file) -> None:
    file.create_dataset("kernel", data=np.zeros((80 << 20,), np.float32), compression="gzip", chunks=(1 << 20,))


def another_files_link(file) -> None:
    file["kernel"] = h5py.ExternalLink("/etc/passwd", "/")


def a_soft_link(file) -> None:
    file["kernel"] = h5py.SoftLink("/elsewhere")


def another_files_bytes(file) -> None:
    file.create_dataset("kernel", (4,), np.uint8, external=[("/etc/passwd", 0, 4)])


def a_virtual_dataset(file) -> None:
    layout = h5py.VirtualLayout((4,), np.uint8)
    layout[:] = h5py.VirtualSource("/etc/other.h5", "data", (4,))
    file.create_virtual_dataset("kernel", layout)


@pytest.mark.parametrize(
    ("fill", "says"),
    [
        (a_huge_shape, "unpacks to 6.4 GB"),
        (chunks_that_shrink, "times its size"),
        (another_files_link, "'/kernel' is a link"),
        (a_soft_link, "'/kernel' is a link"),
        (another_files_bytes, "'/kernel' is stored in another file"),
        (a_virtual_dataset, "'/kernel' is stored in another file"),
    ],
)
@pytest.mark.parametrize("inside", [False, True], ids=["h5", "keras"])
def test_hdf5_that_unpacks_to_gigabytes_or_reads_other_files_is_refused(
    tmp_path, fill, says: str, inside: bool
) -> None:
    """S24: by what it declares, before it is read."""
    path = hdf5(tmp_path / "net.h5", fill)
    assert says in refusal(
        keras_file(tmp_path / "net.keras", path.read_bytes(), zipfile.ZIP_STORED) if inside else path
    )


def test_a_program_beside_the_weights_is_refused(tmp_path: Path) -> None:
    path = keras_file(tmp_path / "net.keras", hdf5(tmp_path / "w.h5", lambda file: None).read_bytes())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("assets/layers/tfsm/saved_model.pb", b"x")
    assert "it holds 'assets/layers/tfsm/saved_model.pb'" in refusal(path)
