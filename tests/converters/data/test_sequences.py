"""Sets for stateful models: sequences of frames, each frame with the state that the original carries into it."""

from __future__ import annotations

import wave
from dataclasses import replace

import memory
import numpy as np
import pytest

from edgekit_converters.data.dataset import digest
from edgekit_converters.data.describe_contract import describe
from edgekit_converters.data.recordings import pieces
from edgekit_converters.data.sequences import open_sequences, random_sequences, split_sequences
from edgekit_converters.data.statistics import SourceSamples
from edgekit_converters.recipe.conversion_errors import CalibrationError
from edgekit_converters.sources.load import load

pytestmark = pytest.mark.convert


@pytest.fixture(scope="module")
def source():
    return load(memory.MODELS / "memory_carried_f32.onnx")


@pytest.fixture(scope="module")
def contract(source):
    return describe(source, None)


def saved(folder, **arrays):
    if set(arrays) == {"npy"}:
        np.save(folder / "set.npy", arrays["npy"])
        return folder / "set.npy"
    np.savez(folder / "set.npz", **arrays)
    return folder / "set.npz"


def stacked(number, frames, seed=0):
    return memory.frames(number * frames, seed).reshape(number, frames, 3)


@pytest.mark.parametrize(
    ("arrays", "lengths"),
    [
        ({"npy": stacked(3, 5)}, (5, 5, 5)),
        ({"x": stacked(3, 5)}, (5, 5, 5)),
        ({"x": stacked(1, 7)[0]}, (7,)),
        ({"npy": stacked(1, 7)[0]}, (7,)),
    ],
    ids=["npy", "npz", "one sequence", "one sequence, npy"],
)
def test_arrays_are_sequences_of_frames(tmp_path, contract, source, arrays, lengths):
    opened = open_sequences(saved(tmp_path, **arrays), contract, source)
    assert (opened.lengths, len(opened)) == (lengths, sum(lengths))
    assert [example.step for example in opened] == [step for length in lengths for step in range(length)]


def test_each_frame_has_the_state_that_it_occurs_with(tmp_path, contract, source):
    xs = stacked(2, 6)
    examples = list(open_sequences(saved(tmp_path, npy=xs), contract, source))
    into, _ = memory.weights()
    for number in range(2):
        state = np.zeros(4, np.float32)
        for step in range(6):
            np.testing.assert_allclose(examples[number * 6 + step].inputs["h_in"], state, atol=1e-6)
            state = np.tanh(np.float32(0.9) * state + xs[number, step] @ into)


def test_frames_may_be_taken_in_any_order_and_calibrated_with(tmp_path, contract, source):
    opened = open_sequences(saved(tmp_path, npy=stacked(4, 8)), contract, source)
    assert [digest(e) for e in opened.pick([20, 3])] == [digest(list(opened)[at]) for at in (20, 3)]
    samples = SourceSamples(opened, contract, source)
    assert samples.shuffled
    assert [array.shape for array in next(iter(samples))] == [(1, 3), (1, 4)]


def test_labels_are_one_a_frame(tmp_path, contract, source):
    contract = replace(contract, task="raw")
    labels = np.arange(10.0).reshape(2, 5)
    opened = open_sequences(saved(tmp_path, x=stacked(2, 5), y=labels), contract, source)
    assert [example.label for example in opened] == labels.reshape(-1).tolist()


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"x": np.zeros((5, 4), np.float32)}, r"shape \[5, 4\]; a stateful model's is \[sequences, frames, 3\]"),
        ({"x": np.zeros((2, 5, 3), np.float32), "y": np.zeros(2)}, "a label a frame"),
        ({"x": np.zeros((2, 5, 3), np.float32), "h_in": np.zeros((2, 5, 4), np.float32)}, "unused array 'h_in'"),
        ({"x": np.zeros((0, 5, 3), np.float32)}, "no items"),
        ({"x": np.full((1, 5, 3), np.nan, np.float32)}, "NaN"),
    ],
    ids=["frame", "a label a sequence", "states", "nothing", "NaN"],
)
def test_what_is_no_set_of_sequences_is_refused_with_the_reason(tmp_path, contract, source, arrays, why):
    with pytest.raises(CalibrationError, match=why):
        open_sequences(saved(tmp_path, **arrays), contract, source)


def record(path, samples, rate=8000):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.asarray(samples) * 32767).astype("<i2").tobytes())


def test_recordings_are_cut_into_frames_by_the_hop(tmp_path, contract, source):
    (tmp_path / "speech").mkdir()
    record(tmp_path / "speech" / "a.wav", np.linspace(-1, 1, 11))
    record(tmp_path / "speech" / "b.wav", np.linspace(0, 1, 2))
    whole = open_sequences(tmp_path / "speech", contract, source)
    assert whole.lengths == (3, 1)
    overlapping = open_sequences(tmp_path / "speech", replace(contract, hop=2), source)
    assert overlapping.lengths == (5, 1)
    frames = [example.inputs["x"] for example in overlapping]
    np.testing.assert_array_equal(frames[0][2:], frames[1][:1])
    assert frames[-1][-1] == 0  # a recording that is shorter than a frame is filled with zeros
    assert open_sequences(tmp_path / "speech" / "a.wav", contract, source).lengths == (3,)


def test_recordings_of_two_rates_are_refused(tmp_path, contract, source):
    record(tmp_path / "a.wav", np.zeros(9))
    record(tmp_path / "b.wav", np.zeros(9), rate=16000)
    with pytest.raises(CalibrationError, match="16000 samples a second, and the first recording has 8000"):
        open_sequences(tmp_path, contract, source)


@pytest.mark.parametrize(
    ("length", "count", "hop", "frames"), [(10, 4, 2, 4), (4, 4, 4, 1), (3, 4, 4, 1), (9, 4, 4, 2)]
)
def test_pieces_begin_a_hop_apart(length, count, hop, frames):
    got = pieces(np.arange(length, dtype=np.float32), count, hop)
    assert got.shape == (frames, count)
    assert got[:, 0].tolist() == [hop * at for at in range(frames)]


def test_a_function_yields_sequences_of_any_length(tmp_path, contract, source, monkeypatch):
    contract = replace(contract, task="raw")
    (tmp_path / "streams.py").write_text(
        "import numpy as np\n"
        "def frames():\n"
        "    yield np.zeros((3, 3), np.float32)\n"
        "    yield {'x': np.ones((2, 3), np.float32)}\n"
        "    yield np.ones((4, 3), np.float32), np.arange(4.0)\n"
        "def broken():\n"
        "    yield {'x': np.ones((2, 3)), 'label': np.zeros(3)}\n"
    )
    monkeypatch.chdir(tmp_path)
    opened = open_sequences("streams:frames", contract, source)
    assert opened.lengths == (3, 2, 4)
    assert [example.label for example in opened][-4:] == [0, 1, 2, 3]
    assert [example.step for example in opened.pick([2, 3, 8])] == [2, 0, 3]
    assert opened.fingerprint is None
    with pytest.raises(CalibrationError, match=r"arrays of different lengths: x \[2, 3\], label \[3\]"):
        open_sequences("streams:broken", contract, source)


def test_what_is_no_sequence_at_all_says_what_is(tmp_path, contract, source):
    for place in (tmp_path, tmp_path / "gone.npz"):
        with pytest.raises(CalibrationError, match=r"Give \.wav recordings, a \.npy or \.npz of \[sequences, frames"):
            open_sequences(str(place), contract, source)


def test_sets_are_split_between_sequences(tmp_path, contract, source):
    opened = open_sequences(saved(tmp_path, npy=stacked(10, 4)), contract, source)
    calibration, held = split_sequences(opened)
    assert (calibration.lengths, held.lengths) == ((4,) * 8, (4,) * 2)
    both = [digest(e) for e in (*calibration, *held)]
    assert sorted(both) == sorted(digest(e) for e in opened)


def test_few_sequences_are_cut_in_time_and_the_end_begins_afresh(tmp_path, contract, source):
    opened = open_sequences(saved(tmp_path, npy=stacked(1, 50)), contract, source)
    calibration, held = split_sequences(opened)
    assert (calibration.lengths, held.lengths) == ((40,), (10,))
    first = next(iter(held))
    assert (first.step, first.inputs["h_in"].any()) == (0, False)


def test_one_frame_is_no_set(tmp_path, contract, source):
    with pytest.raises(CalibrationError, match="cannot be both calibrated with and evaluated on"):
        split_sequences(open_sequences(saved(tmp_path, npy=stacked(1, 1)), contract, source))


def test_made_up_sequences_are_the_same_each_time(contract, source):
    one, two = (random_sequences(contract, source, 70, seed=1) for _ in range(2))
    assert one.lengths == (32, 32, 32)
    assert [digest(e) for e in one] == [digest(e) for e in two]


def test_the_fingerprint_follows_the_files_and_the_original(tmp_path, contract, source):
    path = saved(tmp_path, npy=stacked(2, 4))
    before = open_sequences(path, contract, source).fingerprint
    assert before == open_sequences(path, contract, source).fingerprint
    saved(tmp_path, npy=stacked(2, 4, seed=1))
    assert before != open_sequences(path, contract, source).fingerprint
