"""What every engine promises. Runs for each engine that is installed: .venv holds two, .venv-tflite and .venv-openvino
one more; those of a GPU where there is one.

Each runs as it is, in a process of its own, and behind the object that joins batches: the promises are the same.
"""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest
import tiny
import vulkan

from edgekit_runtime.contract.adapt import Adapter, Finisher
from edgekit_runtime.engines.cuda import absent
from edgekit_runtime.engines.isolated import IsolatedHost
from edgekit_runtime.engines.registry import (
    ENGINES,
    EngineSetup,
    available,
    load_engine,
    load_with,
    on_gpu,
    pick,
    with_vulkan,
)
from edgekit_runtime.engines.variants import BatchEngine
from edgekit_runtime.system.errors import EngineError, MissingExtraError, install_command

INSTALLED = sorted(name for name in available() if not on_gpu(name) or not absent())
FORMATS = [(name, form) for name in INSTALLED for form in ENGINES[name].formats]
HOW = ["in process", "isolated", "batch"]
VULKAN = [f"{name}, {form}, on a GPU" for name, form in FORMATS if name in with_vulkan()]


@pytest.fixture(scope="module")
def host():
    made = IsolatedHost()
    yield made
    made.close()


@pytest.fixture(scope="module")
def on_a_gpu(tmp_path_factory):
    """Loads an artifact on a GPU in a process of its own, again only once a test has closed it."""
    hosts, engines = [], {}

    def load(name, artifact):
        if name not in engines or engines[name]._closed:
            hosts.append(IsolatedHost())
            engines[name] = hosts[-1].load(name, artifact.recipe.format, artifact.data, EngineSetup(kernels="vulkan"))
        return engines[name]

    with pytest.MonkeyPatch.context() as patch:
        vulkan.use_drivers(patch, tmp_path_factory.mktemp("vulkan"), vulkan.swiftshader())
        yield load
    for made in hosts:
        made.close()


@pytest.fixture(params=[*(f"{name}, {form}, {how}" for name, form in FORMATS for how in HOW), *VULKAN])
def loaded(request, host):
    name, form, how = request.param.split(", ")
    artifact = tiny.artifact(tiny.RECIPE_OF_FORMAT[form], name)
    if how == "isolated":
        yield host.load(name, artifact.recipe.format, artifact.data, EngineSetup()), artifact
        return
    if how == "on a GPU":
        yield request.getfixturevalue("on_a_gpu")(name, artifact), artifact
        return
    engine = load_engine(artifact.recipe.format, artifact.data, engine=name)
    with BatchEngine({1: engine}) if how == "batch" else engine as opened:
        yield opened, artifact


def tensor_of(artifact, picture):
    return Adapter(tiny.CONTRACT.inputs[0], artifact.inputs[0])(picture)


def ask(engine, artifact, picture):
    return engine.run([tensor_of(artifact, picture)])


def answer(engine, artifact, picture):
    return Finisher(tiny.CONTRACT, artifact.outputs)(ask(engine, artifact, picture))["probs"]


@pytest.mark.parametrize(("picture", "best"), [(tiny.RED, 0), (tiny.GREEN, 1), (tiny.BLUE, 2), (tiny.DARK, 3)])
def test_gives_the_right_class(loaded, picture, best):
    assert answer(*loaded, picture).argmax() == best


def test_names_itself_and_its_version(loaded):
    engine, _ = loaded
    assert engine.info.name in ENGINES
    assert engine.info.version == available()[engine.info.name]
    assert (engine.info.threads, engine.info.delegate) == (1, None)


def test_declares_dtypes_and_shapes_with_the_batch_first(loaded):
    engine, _ = loaded
    assert engine.inputs[0].dtype in ("int8", "float32")
    assert engine.inputs[0].shape[0] in (1, -1)
    assert engine.outputs[0].shape[1:] == (4,)


def test_outputs_never_alias_the_engine(loaded):
    engine, artifact = loaded
    first = ask(engine, artifact, tiny.RED)[0]
    kept = first.copy()
    second = ask(engine, artifact, tiny.BLUE)[0]
    np.testing.assert_array_equal(first, kept)
    assert not np.shares_memory(first, second)


def test_an_output_may_be_written_to_and_the_next_answer_is_as_right(loaded):
    engine, artifact = loaded
    first = ask(engine, artifact, tiny.RED)[0]
    kept = first.copy()
    first[...] = 0
    np.testing.assert_array_equal(ask(engine, artifact, tiny.RED)[0], kept)


def test_an_output_outlives_its_engine(loaded):
    engine, artifact = loaded
    output = ask(engine, artifact, tiny.GREEN)[0]
    kept = output.copy()
    engine.close()
    np.testing.assert_array_equal(output, kept)


def test_an_input_may_be_overwritten_as_soon_as_run_returns(loaded):
    engine, artifact = loaded
    frame = tensor_of(artifact, tiny.RED).copy()
    wanted = ask(engine, artifact, tiny.RED)[0]
    got = engine.run([frame])[0]
    frame[...] = tensor_of(artifact, tiny.BLUE)
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(engine.run([frame])[0], ask(engine, artifact, tiny.BLUE)[0])


def test_an_input_is_only_read(loaded):
    engine, artifact = loaded
    frame = tensor_of(artifact, tiny.RED).copy()
    kept = frame.copy()
    frame.setflags(write=False)
    engine.run([frame])
    np.testing.assert_array_equal(frame, kept)


def test_an_input_need_not_lie_in_one_piece(loaded):
    engine, artifact = loaded
    whole = tensor_of(artifact, tiny.BLUE)
    strided = np.repeat(whole, 2, axis=-1)[..., ::2]
    assert not strided.flags.c_contiguous
    np.testing.assert_array_equal(engine.run([strided])[0], engine.run([whole])[0])


def test_threads_that_take_turns_get_their_own_answers(loaded):
    engine, artifact = loaded
    turn, wrong = threading.Lock(), []

    def asks(picture, best):
        for _ in range(50):
            with turn:
                got = answer(engine, artifact, picture)
            if got.argmax() != best:
                wrong.append(best)

    pictures = (tiny.RED, tiny.GREEN, tiny.BLUE, tiny.DARK)
    threads = [threading.Thread(target=asks, args=(picture, best)) for best, picture in enumerate(pictures)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_same_input_gives_the_same_bits(loaded):
    first, second = ask(*loaded, tiny.GREEN)[0], ask(*loaded, tiny.GREEN)[0]
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    "inputs",
    [
        lambda dtype: [np.zeros((1, 5, 5, 3), dtype)],
        lambda dtype: [np.zeros((8, 8, 3), dtype)],
        lambda dtype: [np.zeros((1, 8, 8, 3), np.float64)],
        lambda dtype: [],
        lambda dtype: [np.zeros((1, 8, 8, 3), dtype)] * 2,
    ],
    ids=["shape", "rank", "dtype", "none", "two"],
)
def test_an_input_that_does_not_fit_is_an_engine_error_and_the_next_run_works(loaded, inputs):
    engine, artifact = loaded
    with pytest.raises(EngineError):
        engine.run(inputs(artifact.inputs[0].dtype))
    assert answer(engine, artifact, tiny.RED).argmax() == 0


def test_a_closed_engine_says_so_and_may_be_closed_again(loaded):
    engine, artifact = loaded
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        ask(engine, artifact, tiny.RED)


def test_forgetting_what_was_changes_nothing_in_a_model_without_memory(loaded):
    engine, artifact = loaded
    before = ask(engine, artifact, tiny.GREEN)[0]
    engine.reset()
    np.testing.assert_array_equal(ask(engine, artifact, tiny.GREEN)[0], before)


@pytest.mark.parametrize(("name", "form"), FORMATS)
@pytest.mark.parametrize("data", [b"", b"not a model", b"\0" * 4096], ids=["empty", "text", "zeros"])
def test_bytes_that_are_no_model_are_an_engine_error(name, form, data):
    with pytest.raises(EngineError):
        load_engine(form, data, engine=name)


@pytest.mark.parametrize(("name", "form"), FORMATS)
def test_bytes_of_another_format_are_an_engine_error(name, form):
    other = tiny.model_bytes(tiny.RECIPE_OF_FORMAT["onnx" if form == "tflite" else "tflite"])
    with pytest.raises(EngineError):
        load_engine(form, other, engine=name)


@pytest.mark.parametrize("data", [b"", b"\0" * 4096], ids=["empty", "zeros"])
def test_bytes_that_are_no_model_are_an_engine_error_in_a_process_of_its_own(host, data):
    name = INSTALLED[0]
    with pytest.raises(EngineError):
        host.load(name, ENGINES[name].formats[0], data, EngineSetup())


@pytest.mark.parametrize("name", [name for name in INSTALLED if "tflite" in ENGINES[name].formats])
@pytest.mark.parametrize("count", [1, 4, 2, 7])
def test_a_tflite_file_with_a_free_batch_axis_takes_any_number(name, count):
    artifact = tiny.artifact("tflite-f32, any number", name)
    pictures = [(tiny.RED, tiny.GREEN, tiny.BLUE, tiny.DARK)[row % 4] for row in range(count)]
    joined = np.concatenate([tensor_of(artifact, picture) for picture in pictures])
    with load_with(name, "tflite", artifact.data, EngineSetup(batch=4)) as engine:
        (probs,) = engine.run([joined])
        alone = [ask(engine, artifact, picture)[0] for picture in pictures]
    np.testing.assert_allclose(probs, np.concatenate(alone), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "form", "kernels"),
    [(name, form, kernels) for name, form in FORMATS for kernels in ENGINES[name].kernels if kernels != "vulkan"],
)
def test_every_set_of_kernels_gives_the_same_class(name, form, kernels):
    artifact = tiny.artifact(tiny.RECIPE_OF_FORMAT[form], name)
    with load_engine(form, artifact.data, engine=name, kernels=kernels) as engine:
        assert engine.info.kernels == kernels
        assert answer(engine, artifact, tiny.GREEN).argmax() == 1


def test_pick_prefers_litert_and_falls_back_to_tflite_runtime():
    assert pick("tflite", {"litert": "2", "tflite-runtime": "2"}) == "litert"
    assert pick("tflite", {"tflite-runtime": "2"}) == "tflite-runtime"
    assert pick("onnx", {"onnxruntime": "1"}) == "onnxruntime"


def test_pick_never_takes_an_engine_of_a_gpu():
    assert pick("onnx", {"tensorrt": "10", "torch-cuda": "2", "onnxruntime": "1"}) == "onnxruntime"
    with pytest.raises(MissingExtraError, match=re.escape(install_command("onnx"))):
        pick("onnx", {"tensorrt": "10"})


def test_a_missing_engine_names_the_command_that_adds_it():
    with pytest.raises(MissingExtraError, match=re.escape(install_command("litert"))):
        pick("tflite", {})


@pytest.mark.parametrize("name", sorted(set(ENGINES) - set(available())))
def test_loading_an_engine_that_is_not_installed_is_a_typed_error(name):
    with pytest.raises(MissingExtraError, match="pip install"):
        load_engine(ENGINES[name].formats[0], b"", engine=name)


def test_an_unknown_engine_or_format_is_a_typed_error():
    with pytest.raises(EngineError, match="no engine 'tpu'"):
        load_engine("tflite", b"", engine="tpu")
    with pytest.raises(EngineError, match="no engine runs the format 'pickle'"):
        pick("pickle")
