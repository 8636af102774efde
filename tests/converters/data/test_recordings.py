"""Recordings as examples."""

from __future__ import annotations

import contextlib
import struct
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linting import lint

from edgekit_converters.data.open import open_dataset
from edgekit_converters.data.recordings import loudest, read_wav
from edgekit_converters.recipe.conversion_errors import CalibrationError
from edgekit_runtime.contract.spec import Contract, InputContract, OutputContract


def contract(*shape: int, dtype: str = "float32", task: Any = "raw") -> Contract:
    return Contract(task, (InputContract("x", shape, dtype),), (OutputContract("p", (2,), "float32"),))


def write(path: Path, samples: Any, width: int = 2, rate: int = 16000, channels: int = 1) -> None:
    """PCM through Python's own `wave`; samples in -1..1."""
    most = 2 ** (8 * width - 1)
    integers = np.clip(np.rint(np.asarray(samples) * most), -most, most - 1).astype(np.int64)
    raw = (integers + (128 if width == 1 else 0)).astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(raw)


def floats(samples: Any, rate: int = 16000, size: int = 4) -> bytes:
    body = np.asarray(samples, f"<f{size}").tobytes()
    head = struct.pack("<HHIIHH", 3, 1, rate, rate * size, size, 8 * size)
    chunks = b"fmt " + struct.pack("<I", len(head)) + head + b"LIST\x03\0\0\0abc\0" + b"data"
    chunks += struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WAVE" + chunks


TONE = 0.5 * np.sin(np.arange(400) / 7)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_pcm_of_every_width_reads_the_same(width: int, tmp_path: Path) -> None:
    write(tmp_path / "a.wav", TONE, width)
    samples, rate = read_wav(tmp_path / "a.wav")
    assert rate == 16000
    np.testing.assert_allclose(samples, TONE, atol=2.0 ** (1 - 8 * width) + 1e-6)


def test_floats_other_chunks_and_two_channels_are_read(tmp_path: Path) -> None:
    (tmp_path / "f.wav").write_bytes(floats(TONE))
    np.testing.assert_allclose(read_wav(tmp_path / "f.wav")[0], TONE, atol=1e-7)
    write(tmp_path / "s.wav", np.stack([TONE, np.zeros(400)], 1).ravel(), channels=2)
    np.testing.assert_allclose(read_wav(tmp_path / "s.wav")[0], TONE / 2, atol=1e-4)


def test_the_loudest_part_is_taken_and_a_short_recording_is_padded() -> None:
    samples = np.zeros(1000, np.float32)
    samples[700:760] = 1
    assert loudest(samples, 100).sum() >= 40
    assert loudest(samples[:30], 100).shape == (100,)


DAMAGED = {
    "no wave": b"hello, this is no recording",
    "empty": b"",
    "cut in the head": floats(TONE)[:20],
    "no samples": floats([]),
    "NaN": floats([float("nan")] * 8),
    "doubles beyond float32": floats([1e300], size=8),
    "samples of no bits": floats([]).replace(struct.pack("<HH", 4, 32), bytes(4)),
    "a codec": floats(TONE).replace(struct.pack("<HH", 3, 1), struct.pack("<HH", 85, 1)),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_recording_is_an_error_that_names_it(case: str, tmp_path: Path) -> None:
    (tmp_path / "bad.wav").write_bytes(DAMAGED[case])
    with pytest.raises(CalibrationError, match=r"bad\.wav"):
        read_wav(tmp_path / "bad.wav")


def test_no_byte_of_a_head_ends_in_another_error(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", TONE[:40])
    whole, file = (tmp_path / "a.wav").read_bytes(), tmp_path / "b.wav"
    for at in range(44):
        for value in (0, 1, 2, 3, 7, 8, 12, 24, 32, 64, 127, 128, 254, 255):
            file.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
            with contextlib.suppress(CalibrationError):
                samples, rate = read_wav(file)
                assert np.isfinite(samples).all()
                assert rate > 0


def test_a_folder_of_recordings_is_a_set_and_a_damaged_one_is_left_out(tmp_path: Path) -> None:
    for i in range(19):
        write(tmp_path / f"{i:02}.wav", TONE * (i + 1) / 19)
    (tmp_path / "broken.wav").write_bytes(b"RIFF")
    dataset = open_dataset(tmp_path, contract(1, 256))
    assert len(dataset) == 20
    first = next(iter(dataset))
    assert (first.inputs["x"].shape, first.inputs["x"].dtype) == ((1, 256), np.float32)
    assert dataset.fingerprint == open_dataset(tmp_path, contract(1, 256)).fingerprint
    found = {finding.code: finding for finding in lint(dataset, None, contract(1, 256))}
    assert found["unreadable"].level == "warning"
    assert "broken.wav" in found["unreadable"].what


def test_recordings_of_two_rates_are_refused_where_they_differ(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", TONE)
    write(tmp_path / "b.wav", TONE, rate=8000)
    with pytest.raises(CalibrationError, match=r"b\.wav.*8000.*16000"):
        list(open_dataset(tmp_path, contract(256)))


def test_sub_folders_are_labels(tmp_path: Path) -> None:
    for i, word in enumerate(("0", "1")):
        (tmp_path / word).mkdir()
        write(tmp_path / word / "a.wav", TONE * (i + 1) / 2)
    dataset = open_dataset(tmp_path, contract(256, task="classification"))
    assert [example.label for example in dataset] == [0, 1]


def test_models_that_take_no_row_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", TONE)
    with pytest.raises(CalibrationError, match="recordings do not fit"):
        open_dataset(tmp_path, contract(8, dtype="int32"))
