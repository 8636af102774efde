"""`edgekit run` on a stateful bundle answers frame by frame, from a fresh state.

The frames are a recording or an array.
"""

from __future__ import annotations

import wave

import memory
import numpy as np
import pytest
import tiny

from edgekit.bench.inputs import several

KIND = memory.HERE[0]


@pytest.fixture
def bundle(tmp_path):
    return memory.bundle(tmp_path, KIND)


def answers(ran):
    return np.array([answer["outputs"]["y"]["values"] for answer in ran.json["answers"]])


def test_an_array_of_frames_is_a_sequence_of_its_own(edgekit, bundle, tmp_path):
    xs = memory.frames(12)
    np.save(tmp_path / "a.npy", xs)
    np.savez(tmp_path / "b.npz", x=xs)
    ran = edgekit("run", bundle, tmp_path / "a.npy", tmp_path / "b.npz", "--json")
    assert ran.code == 0
    wanted = memory.worked_out(xs, memory.begins(KIND))
    np.testing.assert_allclose(answers(ran), np.concatenate([wanted, wanted]), atol=1e-5)
    assert [answer["input"].rpartition("/")[2] for answer in ran.json["answers"]][11:13] == [
        "a.npy, frame 11",
        "b.npz, frame 0",
    ]


def test_single_frames_follow_one_another(edgekit, bundle, tmp_path):
    xs = memory.frames(3)
    for at, x in enumerate(xs):
        np.save(tmp_path / f"{at}.npy", x)
    ran = edgekit("run", bundle, *(tmp_path / f"{at}.npy" for at in range(3)), "--json")
    np.testing.assert_allclose(answers(ran), memory.worked_out(xs, memory.begins(KIND)), atol=1e-5)


@pytest.mark.parametrize("bad", [None, 2], ids=["a whole one", "one that failed half-way"])
def test_a_frame_after_a_sequence_does_not_go_on_from_it(edgekit, bundle, tmp_path, bad):
    sequence, x = memory.frames(4), memory.frames(1)
    if bad is not None:
        sequence[bad, 1] = np.nan
    np.save(tmp_path / "sequence.npy", sequence)
    np.save(tmp_path / "one.npy", x[0])
    told = edgekit("run", bundle, tmp_path / "sequence.npy", tmp_path / "one.npy", "--json").json["answers"]
    wanted = memory.worked_out(x, memory.begins(KIND))
    np.testing.assert_allclose([told[-1]["outputs"]["y"]["values"]], wanted, atol=1e-5)


def test_a_recording_is_cut_into_what_the_model_takes(edgekit, bundle, tmp_path):
    samples = np.round(np.random.default_rng(0).uniform(-0.9, 0.9, 10) * 32768)
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())
    ran = edgekit("run", bundle, tmp_path / "a.wav", "--json")
    xs = (samples[:9] / 32768).astype(np.float32).reshape(3, 3)
    np.testing.assert_allclose(answers(ran), memory.worked_out(xs, memory.begins(KIND)), atol=1e-5)


def test_a_bad_frame_is_named_and_the_next_input_is_answered(edgekit, bundle, tmp_path):
    xs = memory.frames(4)
    xs[2, 1] = np.nan
    np.save(tmp_path / "bad.npy", xs)
    np.save(tmp_path / "good.npy", memory.frames(2))
    ran = edgekit("run", bundle, tmp_path / "bad.npy", tmp_path / "good.npy", "--json")
    assert ran.code == 1
    told = ran.json["answers"]
    assert [("error" in answer) for answer in told] == [False, False, True, False, False]
    assert told[2]["input"].endswith("bad.npy, frame 2")


@pytest.mark.parametrize("name", ["gone.wav", "broken.wav", "gone.npy"], ids=["no recording", "no wave", "no array"])
def test_what_cannot_be_read_is_one_sentence(edgekit, bundle, tmp_path, name):
    (tmp_path / "broken.wav").write_bytes(b"no wave")
    ran = edgekit("run", bundle, tmp_path / name)
    assert (ran.code, ran.err.count("error: ")) == (1, 1)


def test_pictures_and_shapes_that_do_not_fit_are_no_sequences(tmp_path):
    np.save(tmp_path / "one.npy", np.zeros((1, 3), np.float32))
    np.save(tmp_path / "flat.npy", np.zeros(3, np.float32))
    for given in ("cat.jpg", str(tmp_path / "one.npy"), str(tmp_path / "flat.npy")):
        assert several(given, memory.INSIDE) is None


def test_an_array_of_items_is_answered_item_by_item(edgekit, tmp_path):
    """An evaluation file, whose labels are left out; an item that cannot be answered does not stop the rest."""
    xs = np.stack([tiny.RED, tiny.GREEN, tiny.BLUE])
    np.savez(tmp_path / "e.npz", x=xs, y=np.array([0, 1, 2]))
    bundle = tiny.bundle(tmp_path)
    ran = edgekit("run", bundle, tmp_path / "e.npz", "--json")
    assert [answer["top"][0]["label"] for answer in ran.json["answers"]] == ["red", "green", "blue"]
    assert [answer["input"].rpartition(", ")[2] for answer in ran.json["answers"]] == ["item 0", "item 1", "item 2"]
    xs = xs.astype(np.float32)
    xs[1, 0, 0, 0] = np.nan
    np.save(tmp_path / "bad.npy", xs)
    ran = edgekit("run", bundle, tmp_path / "bad.npy", tmp_path / "e.npz", "--top", "1")
    assert (ran.code, ran.err.count("item 1")) == (1, 1), ran.err
    assert "1 of 6 inputs got no answer" in ran.err
