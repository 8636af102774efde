"""A stranger's model in its own process: the same answers and errors, and behind a wall also where it is trusted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit_converters import sources
from edgekit_converters.errors import SourceError
from edgekit_converters.sources import LoadOptions
from edgekit_converters.sources.deferred import actual, open_source
from edgekit_converters.sources.isolated import IsolatedSource, open_isolated
from edgekit_converters.store import NO_STORE
from edgekit_converters.targets.stored import float_model_from
from edgekit_converters.targets.workspace import Workspace
from edgekit_converters.wall import missing_parts

pytestmark = pytest.mark.convert


def test_an_isolated_model_is_described_answers_and_converts_as_one_that_was_opened_here(digits_model) -> None:
    here, there = sources.load(digits_model.model), open_isolated(digits_model.model, LoadOptions())
    assert (there.inputs, there.outputs, there.sha256, there.format) == (
        here.inputs,
        here.outputs,
        here.sha256,
        here.format,
    )
    x = np.load(digits_model.evaluation)["x"][:3]
    np.testing.assert_array_equal(there.predict([x])[0], here.predict([x])[0])
    assert there.predict([x[:0]])[0].shape == (0, 10)
    workspace = Workspace(there)
    assert workspace.float_model("onnx").data.startswith(b"\x08")
    assert workspace.float_model("tflite").inputs == ("image",)
    assert float_model_from(there.float_model("tflite", 2)).data[4:8] == b"TFL3"
    assert [note.code for note in there.notes] == ["not-isolated"] * len(missing_parts())
    there.child._process.kill()  # as a crash inside TensorFlow would
    with pytest.raises(SourceError, match="the process that opened it ended"):
        there.predict([x])


@pytest.mark.skipif(bool(missing_parts()), reason=f"this system has no wall: {missing_parts()}")
def test_a_trusted_models_code_neither_writes_outside_nor_connects(tmp_path: Path, monkeypatch) -> None:
    """S25: a Lambda that counts what it managed to do; a build opens the model so."""
    import keras

    monkeypatch.delenv("EDGEKIT_ISOLATE", raising=False)
    written = tmp_path / "written"

    def hostile(t, path=str(written)):
        import os
        import socket

        done = 0.0
        try:
            with open(path, "w") as file:  # noqa: PTH123
                file.write("x")
            done += 1
        except OSError:
            pass
        try:
            socket.create_connection(("127.0.0.1", 9), timeout=1)
        except ConnectionRefusedError:
            done += 1  # it reached the network, where nothing listens
        except OSError:
            pass
        done += os.system(f"echo x > {path}") == 0
        return t * 0 + done

    x = keras.Input((2,), name="x")
    keras.Model(x, keras.layers.Lambda(hostile, output_shape=(2,))(x)).save(tmp_path / "net.keras")
    written.unlink(missing_ok=True)  # it ran when the model was made
    source = actual(open_source(tmp_path / "net.keras", LoadOptions(trust_model=True), NO_STORE))
    assert isinstance(source, IsolatedSource)
    assert source.predict([np.ones((1, 2), np.float32)])[0].tolist() == [[0.0, 0.0]]
    assert not written.exists()


def test_an_error_of_the_process_is_raised_here_with_the_path_that_was_given(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.keras").write_bytes(b"this is a shopping list")
    with pytest.raises(SourceError, match=r"^net\.keras: this is not a \.keras file"):
        open_isolated(Path("net.keras"), LoadOptions())
