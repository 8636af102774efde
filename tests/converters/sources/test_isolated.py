"""An untrusted model in its own process: the same answers and errors, in a sandbox even where it is trusted."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgekit_converters.recipe.artifact import FloatModel, from_stored
from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.recipe.store import NO_STORE, DiskStore
from edgekit_converters.sources import isolated
from edgekit_converters.sources.isolated import open_isolated
from edgekit_converters.sources.load import load, open_source
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.sources.sandbox import missing_parts
from edgekit_converters.targets.workspace import Workspace
from edgekit_runtime.system.children import environment, python_module

pytestmark = pytest.mark.convert


def test_an_isolated_model_is_described_answers_and_converts_as_one_that_was_opened_here(digits_model) -> None:
    here, there = load(digits_model.model), open_isolated(digits_model.model, LoadOptions())
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
    assert from_stored(FloatModel, there.float_model("tflite", 2)).data[4:8] == b"TFL3"
    assert [note.code for note in there.notes] == ["not-isolated"] * len(missing_parts())
    with pytest.raises(SourceError, match="ValueError: 32 bytes for 8") as unforeseen:
        there.child.ask({"do": "predict", "arrays": [["<f4", [2]]]}, x[0, 0])
    assert "EDGEKIT_CONVERTER_LOG" in unforeseen.value.do
    assert there.predict([x])[0].shape == (3, 10)  # an error that nothing foresaw does not end the process
    there.child._process.kill()  # as a crash inside TensorFlow would
    with pytest.raises(SourceError, match="the process that opened it ended"):
        there.predict([x])


@pytest.mark.skipif(bool(missing_parts()), reason=f"this system has no sandbox: {missing_parts()}")
def test_a_trusted_model_that_writes_a_file_outside_of_its_folder_fails(tmp_path: Path, monkeypatch) -> None:
    """S25: a SavedModel with WriteFile, opened as a build opens it; in this process it writes (`test_saved_model`)."""
    import tensorflow as tf

    monkeypatch.delenv("EDGEKIT_ISOLATE", raising=False)
    written = tmp_path / "written"

    class Net(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 3], name="x")])
        def answer(self, x):
            with tf.control_dependencies([tf.io.write_file(str(written), "x")]):
                return {"y": tf.identity(x)}

    net = Net()
    tf.saved_model.save(net, str(tmp_path / "net"), {"serving_default": net.answer})
    with pytest.raises(SourceError, match=f"tried to reach files outside its folder.*{written}") as refused:
        open_source(tmp_path / "net", LoadOptions(trust_model=True), NO_STORE)
    assert "Save it again" not in refused.value.do
    assert not written.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts mappings on Linux alone")
def test_a_model_that_takes_more_memory_than_is_allowed_is_refused_as_that(tmp_path: Path, monkeypatch) -> None:
    """64 numbers that are padded to 4 GiB."""
    import keras

    monkeypatch.delenv("EDGEKIT_ISOLATE", raising=False)
    monkeypatch.setattr(isolated, "_MEMORY_BYTES", 3 << 30)
    x = keras.Input((8, 8, 1))
    keras.Model(x, keras.layers.GlobalMaxPooling2D()(keras.layers.ZeroPadding2D(16380)(x))).save(tmp_path / "net.keras")
    with pytest.raises(SourceError, match=r"more than the 3\.2 GB of memory") as refused:
        open_isolated(tmp_path / "net.keras", LoadOptions())
    assert "--shape" in refused.value.do


LIAR = """
import json, os, pathlib, sys
here = pathlib.Path(__file__)
here.with_name("variables").write_text("\\n".join(os.environ))
for answer in json.loads(here.with_name("answers.json").read_text()):
    data = (answer if isinstance(answer, str) else json.dumps({"bytes": 0, **answer})).encode()
    sys.stdout.buffer.write(len(data).to_bytes(8, "little") + data)
    sys.stdout.buffer.flush()
sys.stdin.buffer.read()
"""


@pytest.fixture
def liar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file that is a model by name, and a process that gives these answers in place of opening it."""
    (tmp_path / "lying_child.py").write_text(LIAR)
    (tmp_path / "net.keras").write_bytes(b"no model")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(isolated, "_MODULE", "lying_child")
    monkeypatch.delenv("EDGEKIT_ISOLATE", raising=False)

    def lying(*answers: object) -> Path:
        (tmp_path / "answers.json").write_text(json.dumps(answers))
        return tmp_path / "net.keras"

    return lying


def test_an_answer_that_does_not_come_is_given_up(liar, monkeypatch) -> None:
    """A model may wait for what never happens, or compute for ever."""
    monkeypatch.setattr(isolated, "_ANSWER_S", 2.0)
    with pytest.raises(SourceError, match="took longer than 2 s"):
        open_isolated(liar(), LoadOptions())


FILLER = """
import pathlib, sys
for number in range(200):
    pathlib.Path(sys.argv[1], str(number)).write_bytes(bytes(1 << 20))
sys.stdin.buffer.read()
"""


def test_a_model_that_fills_its_folder_is_given_up(liar, tmp_path: Path, monkeypatch) -> None:
    """Where temporary files lie in memory, they take memory."""
    monkeypatch.setattr(isolated, "_LOOK_S", 0.05)
    monkeypatch.setattr(isolated, "_MEMORY_BYTES", 100 << 20)
    path = liar()
    (tmp_path / "lying_child.py").write_text(FILLER)
    with pytest.raises(SourceError, match=r"it wrote more than the 0\.1 GB"):
        open_isolated(path, LoadOptions())


def description(sha256: str) -> dict[str, object]:
    return {"path": "", "format": "keras", "sha256": sha256, "inputs": [], "outputs": [], "notes": []}


def test_a_process_that_claims_another_models_digest_is_refused_and_nothing_is_stored(liar, tmp_path: Path) -> None:
    """What is made of a model is stored under its digest: a claimed one would replace the other model's files."""
    other = hashlib.sha256(b"another model").hexdigest()
    path = liar({"source": description(other), "missing": []})
    store = DiskStore(tmp_path / "store")
    with pytest.raises(SourceError, match="describes another file"):
        open_source(path, LoadOptions(), store)
    assert not [file for file in (tmp_path / "store").rglob("*") if file.is_file()]
    honest = hashlib.sha256(b"no model").hexdigest()
    assert open_source(liar({"source": description(honest), "missing": []}), LoadOptions(), store).sha256 == honest


def test_the_process_gets_no_variable_that_may_hold_a_secret(liar, tmp_path: Path, monkeypatch) -> None:
    secrets = (
        "EDGEKIT_PASSPHRASE",
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "TF_VAR_password",
        "SSH_AUTH_SOCK",
        "https_proxy",
    )
    for name in secrets:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    path = liar({"source": description(hashlib.sha256(b"no model").hexdigest()), "missing": []})
    source = open_isolated(path, LoadOptions())
    names = (tmp_path / "variables").read_text().split()
    assert {"PATH", "PYTHONPATH", "OMP_NUM_THREADS", "TF_ENABLE_ONEDNN_OPTS"} <= set(names)
    assert not set(secrets) & set(names)
    source.child.close()


@pytest.mark.parametrize(
    "answer",
    [
        "[" * 100_000,
        '{"bytes": NaN}',
        "[" + "[]," * 1_000_000 + "[]]",
        {"bytes": True},
        {"bytes": -1},
        {},
        {"source": 3, "missing": []},
        {"source": {"format": "keras"}, "missing": []},
        {"source": {}, "missing": 5},
        {"error": {"type": "SourceError"}},
        {"error": {"type": 5, "what": "", "where": "", "do": ""}},
        {"error": "text"},
    ],
    ids=lambda answer: str(answer)[:24],
)
def test_an_answer_that_makes_no_sense_is_one_error_of_the_model(liar, answer: object) -> None:
    with pytest.raises(SourceError, match="returned a damaged answer"):
        open_isolated(liar(answer), LoadOptions())


@pytest.mark.parametrize("arrays", [5, [["O", [1]]], [["f4", [-1]]], [["f4", [1 << 70]]], [["no", []]], [[]]], ids=str)
def test_arrays_that_make_no_sense_are_one_error_of_the_model(liar, arrays: object) -> None:
    opened = {"source": description(hashlib.sha256(b"no model").hexdigest()), "missing": []}
    source = open_isolated(liar(opened, {"arrays": arrays}, {}), LoadOptions())
    with pytest.raises(SourceError, match=r"damaged answer|other types or axes than it described"):
        source.predict([])
    with pytest.raises(SourceError, match="damaged answer"):
        source.float_model("onnx", 1)


def test_an_error_of_the_process_is_raised_here_with_the_path_that_was_given(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.keras").write_bytes(b"this is a shopping list")
    with pytest.raises(SourceError, match=r"^net\.keras: this is not a \.keras file"):
        open_isolated(Path("net.keras"), LoadOptions())


def test_what_the_process_wrote_is_removed_also_where_the_build_was_killed(tmp_path: Path) -> None:
    """A killed process removes nothing: the other one does when their pipe closes."""
    left = tmp_path / "left"
    left.write_text("x")
    own = str(tmp_path)
    command = python_module("edgekit_converters.isolated_source_child", own, own, own, str(1 << 30))
    subprocess.run(command, stdin=subprocess.DEVNULL, env={**environment(), "TMPDIR": own}, check=True, timeout=60)
    assert not left.exists()
