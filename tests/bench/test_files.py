"""Folders on the command line stand for the files in them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tiny

from edgekit.bench.inputs import InputsError, expand, list_files, load


def test_a_folder_is_its_pictures_and_arrays_in_order_and_a_file_is_itself(tmp_path):
    for name in ("b.png", "a.JPG", "sub/c.npy", "notes.txt", ".hidden.png", ".git/d.png", "sub/deep/e.webp"):
        file = tmp_path / "photos" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
    found = list(expand(["notes.txt", str(tmp_path / "photos"), "absent.png"]))
    inside = [one.removeprefix(str(tmp_path / "photos") + "/") for one in found[1:-1]]
    assert (found[0], inside, found[-1]) == (
        "notes.txt",
        ["a.JPG", "b.png", "sub/c.npy", "sub/deep/e.webp"],
        "absent.png",
    )


def test_a_folder_with_nothing_in_it_is_a_clear_error(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputsError, match="contains no pictures or arrays"):
        list(expand([str(tmp_path)]))


def test_a_folder_with_nothing_in_it_costs_the_others_nothing(tmp_path):
    (tmp_path / "empty").mkdir()
    first, error, last = list_files(["a.png", str(tmp_path / "empty"), "b.png"])
    assert (first, last) == ("a.png", "b.png")
    assert isinstance(error, InputsError)
    assert error.where == str(tmp_path / "empty")


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_folders_that_cannot_be_read_or_entered_are_named(tmp_path):
    for name in ("a.png", "closed/x.png", "listed/y.png", "zz.png"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x")
    code = """
        import os, sys
        from edgekit.bench.inputs import list_files
        from edgekit_converters.data.folder import EXTENSIONS  # what is imported later may lie \
where nobody can read
        os.chdir(sys.argv[1])
        if os.getuid() == 0:
            os.setuid(65534)
        print([str(one) for one in list_files(["."])])
    """
    tmp_path.chmod(0o755)
    (tmp_path / "closed").chmod(0o000)
    (tmp_path / "listed").chmod(0o444)
    try:
        command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout
    finally:
        (tmp_path / "closed").chmod(0o755)
        (tmp_path / "listed").chmod(0o755)
    assert out.strip() == "['a.png', 'listed/y.png', 'zz.png', './closed: cannot be read: Permission denied']"


def test_an_array_is_one_whatever_the_case_of_its_ending(tmp_path):
    np.save(tmp_path / "x.npy", tiny.RED)
    (tmp_path / "x.npy").rename(tmp_path / "X.NPY")
    np.testing.assert_array_equal(load(str(tmp_path / "X.NPY"), tiny.CONTRACT), tiny.RED)
