"""edgekit run --fill-cache: what it answered, an application finds on disk; run again, it resumes."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys

import linear
import numpy as np
import pytest
import tiny
from PIL import Image

from edgekit.bench.inputs import load
from edgekit.packaging.assemble import assemble
from edgekit.packaging.writer import write_bundle
from edgekit_runtime import CacheOptions, open_bundle
from edgekit_runtime.contract.spec import Contract, InputContract, OutputContract

COLOURS = [tiny.colour(5 * k, 255 - 5 * k, 20) for k in range(20)]


@pytest.fixture
def bundle(tmp_path):
    (tmp_path / "set").mkdir()
    for number, picture in enumerate(COLOURS):
        Image.fromarray(picture).save(tmp_path / "set" / f"{number}.png")
    return tiny.bundle(tmp_path)


def test_an_application_finds_every_answer_on_disk(edgekit, bundle, tmp_path):
    np.save(tmp_path / "set" / "array.npy", tiny.RED)
    ran = edgekit("run", bundle, "set", "--fill-cache", "answers.db", "--json")
    assert ran.code == 0
    found = ran.json
    assert (found["files"], found["made"], found["there"], found["unreadable"]) == (21, 21, 0, [])
    with (
        open_bundle(bundle, cache=CacheOptions(disk=tmp_path / "answers.db")) as model,
        open_bundle(bundle, cache=False) as fresh,
    ):
        for number in range(20):
            path = tmp_path / "set" / f"{number}.png"
            answer = model.predict(path)
            assert answer.source == "cache"
            np.testing.assert_array_equal(answer.outputs["probs"], fresh.predict(path).outputs["probs"])
        assert model.predict((tmp_path / "set" / "3.png").read_bytes()).source == "cache"
        assert model.predict(tiny.RED).source == "cache"
        assert model.predict(tiny.BLUE).source == "device"


def test_what_is_there_is_not_computed_again(edgekit, bundle, tmp_path):
    edgekit("run", bundle, "set", "--fill-cache", "answers.db")
    Image.fromarray(tiny.BLUE).save(tmp_path / "set" / "new.png")
    found = edgekit("run", bundle, "set", "--fill-cache", "answers.db", "--json").json
    assert (found["made"], found["there"]) == (1, 20)


def test_what_an_interrupted_run_answered_is_kept(edgekit, in_process, bundle, monkeypatch):
    filled = ("run", bundle, "set", "--fill-cache", "answers.db")
    given = iter(range(8))

    def interrupted(file, contract):
        if next(given) == 7:
            raise KeyboardInterrupt
        return load(file, contract)

    with monkeypatch.context() as patched:
        patched.setattr("edgekit.bench.inputs.load", interrupted)
        ran = in_process(*filled)
    assert ran.code == 130
    assert "the answers so far are saved; run the same command again to continue" in ran.err
    found = edgekit(*filled, "--json").json
    assert (found["there"], found["made"]) == (7, 13)


def test_what_cannot_be_read_is_named_and_costs_the_others_nothing(edgekit, bundle, tmp_path):
    (tmp_path / "set" / "broken.png").write_bytes(b"no picture")
    (tmp_path / "set" / "broken.npy").write_bytes(b"no array")
    ran = edgekit("run", bundle, "set", "--fill-cache", "answers.db")
    assert ran.code == 1
    assert "20 answers made" in ran.out
    assert "broken.png" in ran.err
    assert "broken.npy" in ran.err


def test_a_set_that_does_not_fit_is_noticed_and_ends_the_run(edgekit, bundle, tmp_path):
    for number in range(6_000):
        np.save(tmp_path / "set" / f"{number}.npy", np.full((8, 8, 3), number % 256, np.uint8) ^ _noise(number))
    ran = edgekit("run", bundle, "set", "--fill-cache", "answers.db", "--disk-cache-mb", "1", "--json")
    found = ran.json
    assert ran.code == 1
    assert found["full"]
    assert found["left"] > 0
    assert found["bytes"] <= 1 << 20
    assert found["pushed_out"] > 0
    with sqlite3.connect(tmp_path / "answers.db") as file:  # made is what is there, not what was evicted again
        tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {name: file.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}
    assert found["made"] in rows.values()


def test_a_folder_that_does_not_exist_is_refused_and_not_made(edgekit, bundle, tmp_path):
    ran = edgekit("run", bundle, "set", "--fill-cache", "nowhere/answers.db")
    assert ran.code == 1
    assert "nowhere/answers.db: cannot be written: no such directory. Name another file with --fill-cache" in ran.err
    assert not (tmp_path / "nowhere").exists()


def wide(folder):
    """A bundle whose answers take 256 KiB each, which is faster computed than written."""
    pytest.importorskip("onnx")
    source = linear.linear((-1, 16), 65_536)
    contract = Contract(
        "raw", (InputContract("x", (16,), "float32"),), (OutputContract("scores", (65_536,), "float32"),)
    )
    made = tiny.content(
        contract=contract, artifact=linear.onnx_artifact(source), golden=[{"x": np.ones(16, np.float32)}]
    )
    data, manifest = assemble(made)
    write_bundle(folder / "wide.ekb", data, manifest, [])
    return folder / "wide.ekb"


def test_what_is_made_is_on_disk_however_large_answers_are(edgekit, tmp_path):
    path = wide(tmp_path)
    (tmp_path / "set").mkdir()
    for number in range(60):
        np.save(tmp_path / "set" / f"{number}.npy", np.full(16, number, np.float32))
    ran = edgekit("run", path, "set", "--fill-cache", "answers.db", "--json")
    assert (ran.code, ran.json["made"], ran.json["not_kept"]) == (0, 60, 0)
    again = edgekit("run", path, "set", "--fill-cache", "answers.db", "--json").json
    assert (again["made"], again["there"]) == (0, 60)


def test_answers_above_a_sixteenth_of_the_bound_are_counted_and_told_what_to_do(edgekit, tmp_path):
    path = wide(tmp_path)
    (tmp_path / "set").mkdir()
    np.save(tmp_path / "set" / "0.npy", np.zeros(16, np.float32))
    bounded = ("run", path, "set", "--fill-cache", "answers.db")
    ran = edgekit(*bounded, "--disk-cache-mb", "2")
    assert ran.code == 1
    assert "0 answers made" in ran.out
    enough = re.search(r"1 answers are not kept: one may take .* Pass --disk-cache-mb (\d+) or more", ran.err)[1]
    assert edgekit(*bounded, "--disk-cache-mb", enough).code == 0


@pytest.mark.skipif(sys.platform != "linux", reason="a file system of its own")
def test_a_full_disk_is_told_as_one(edgekit, bundle, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("mounting needs root: run as root")
    try:
        for number in range(2_000):
            np.save(tmp_path / "set" / f"{number}.npy", _noise(number))
        ran = edgekit("run", bundle, "set", "--fill-cache", small / "answers.db")
    finally:
        subprocess.run(["umount", small], check=True)
    assert ran.code == 1
    assert ran.err.splitlines()[-1].startswith(f"error: {small / 'answers.db'}: the disk is full")
    assert "--disk-cache-mb" not in ran.err


def _noise(seed):
    return np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)


@pytest.mark.parametrize(
    ("file", "word"), [("folder", "cannot be written"), ("other.db", "not an edgekit answer cache")]
)
def test_a_file_that_cannot_be_used_is_a_clear_error(edgekit, bundle, tmp_path, file, word):
    (tmp_path / "folder").mkdir()
    connection = sqlite3.connect(tmp_path / "other.db")
    connection.execute("CREATE TABLE mine (x)")
    connection.close()
    ran = edgekit("run", bundle, "set", "--fill-cache", file)
    assert ran.code == 1
    assert word in ran.err


def test_an_empty_name_is_a_usage_error_and_not_the_folder_one_is_in(edgekit, bundle):
    said = {
        "is empty": [bundle, "", "--fill-cache", "answers.db"],
        "the name is empty": [bundle, "set", "--fill-cache", ""],
    }
    for words, named in said.items():
        ran = edgekit("run", *named)
        assert ran.code == 2
        assert words in ran.err


@pytest.mark.parametrize("other", [("--watch", "inbox"), ("--top", "3"), ("--use", "video"), ("--device", "porch")])
def test_options_of_printed_answers_are_refused_beside_it(edgekit, bundle, other):
    ran = edgekit("run", bundle, "set", "--fill-cache", "answers.db", *other)
    assert ran.code == 2
    assert f"--fill-cache prints no answers: leave out {other[0]}." in ran.err


def test_its_size_is_refused_without_it(edgekit, bundle):
    ran = edgekit("run", bundle, "set", "--disk-cache-mb", "2")
    assert ran.code == 2
    assert "--disk-cache-mb goes with --fill-cache." in ran.err
