"""Folders on the command line stand for the files in them."""

from __future__ import annotations

import pytest

from edgekit.inputs import InputsError, expanded


def test_a_folder_is_its_pictures_and_arrays_in_order_and_a_file_is_itself(tmp_path):
    for name in ("b.png", "a.JPG", "sub/c.npy", "notes.txt", ".hidden.png", ".git/d.png", "sub/deep/e.webp"):
        file = tmp_path / "photos" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
    found = list(expanded(["notes.txt", str(tmp_path / "photos"), "absent.png"]))
    inside = [one.removeprefix(str(tmp_path / "photos") + "/") for one in found[1:-1]]
    assert (found[0], inside, found[-1]) == (
        "notes.txt",
        ["a.JPG", "b.png", "sub/c.npy", "sub/deep/e.webp"],
        "absent.png",
    )


def test_a_folder_with_nothing_in_it_is_a_clear_error(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputsError, match="holds no pictures and no arrays"):
        list(expanded([str(tmp_path)]))
