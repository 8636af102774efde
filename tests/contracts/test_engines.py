"""What every engine promises. Runs for each engine that is installed: .venv holds two, .venv-tflite the third."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from edgekit_runtime.contract import Adapter, Finisher
from edgekit_runtime.engines import ENGINES, available, load_engine, pick
from edgekit_runtime.errors import EngineError, MissingExtraError

INSTALLED = sorted(available())


@pytest.fixture(params=INSTALLED)
def loaded(request):
    recipe = tiny.RECIPE_OF_ENGINE[request.param]
    artifact = tiny.artifact(recipe, request.param)
    with load_engine(artifact.recipe.format, artifact.data, engine=request.param) as engine:
        yield engine, artifact


def ask(engine, artifact, picture):
    tensor = Adapter(tiny.CONTRACT.inputs[0], artifact.inputs[0])(picture)
    return engine.run([tensor])


def answer(engine, artifact, picture):
    return Finisher(tiny.CONTRACT, artifact.outputs)(ask(engine, artifact, picture))["probs"]


@pytest.mark.parametrize(("picture", "best"), [(tiny.RED, 0), (tiny.GREEN, 1), (tiny.BLUE, 2), (tiny.DARK, 3)])
def test_gives_the_right_class(loaded, picture, best):
    assert answer(*loaded, picture).argmax() == best


def test_names_itself_and_its_version(loaded):
    engine, _ = loaded
    assert engine.info.name in ENGINES
    assert engine.info.version == available()[engine.info.name]


def test_declares_dtypes_and_shapes_with_the_batch_first(loaded):
    engine, _ = loaded
    assert engine.inputs[0].dtype in ("int8", "float32")
    assert engine.inputs[0].shape[0] in (1, -1)
    assert engine.outputs[0].shape[1:] == (4,)


def test_outputs_never_alias_the_engine(loaded):
    engine, artifact = loaded
    first = ask(engine, artifact, tiny.RED)[0]
    kept = first.copy()
    ask(engine, artifact, tiny.BLUE)
    np.testing.assert_array_equal(first, kept)
    assert first.base is None or first.flags.owndata or not np.shares_memory(first, ask(engine, artifact, tiny.RED)[0])


def test_the_same_input_gives_the_same_bits(loaded):
    first, second = ask(*loaded, tiny.GREEN)[0], ask(*loaded, tiny.GREEN)[0]
    np.testing.assert_array_equal(first, second)


def test_a_wrong_shape_is_an_engine_error_and_the_next_run_works(loaded):
    engine, artifact = loaded
    with pytest.raises(EngineError):
        engine.run([np.zeros((1, 5, 5, 3), artifact.inputs[0].dtype)])
    assert answer(engine, artifact, tiny.RED).argmax() == 0


@pytest.mark.parametrize("name", INSTALLED)
@pytest.mark.parametrize("data", [b"", b"not a model", b"\0" * 4096], ids=["empty", "text", "zeros"])
def test_bytes_that_are_no_model_are_an_engine_error(name, data):
    with pytest.raises(EngineError):
        load_engine(ENGINES[name].format, data, engine=name)


def test_pick_prefers_litert_and_falls_back_to_tflite_runtime():
    assert pick("tflite", {"litert": "2", "tflite-runtime": "2"}) == "litert"
    assert pick("tflite", {"tflite-runtime": "2"}) == "tflite-runtime"
    assert pick("onnx", {"onnxruntime": "1"}) == "onnxruntime"


def test_a_missing_engine_names_the_command_that_adds_it():
    with pytest.raises(MissingExtraError, match=r"pip install 'edgekit-deploy\[litert\]'"):
        pick("tflite", {})


@pytest.mark.parametrize("absent", sorted(set(ENGINES) - set(INSTALLED)))
def test_loading_an_engine_that_is_not_installed_is_a_typed_error(absent):
    with pytest.raises(MissingExtraError, match="pip install"):
        load_engine(ENGINES[absent].format, b"", engine=absent)


def test_an_unknown_engine_or_format_is_a_typed_error():
    with pytest.raises(EngineError, match="no engine 'tpu'"):
        load_engine("tflite", b"", engine="tpu")
    with pytest.raises(EngineError, match="no engine runs the format 'gguf'"):
        pick("gguf")
