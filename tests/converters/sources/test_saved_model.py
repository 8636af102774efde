"""SavedModel folders: one signature is the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit_converters import sources
from edgekit_converters.errors import SourceError
from edgekit_converters.sources import LoadOptions, onnx_graph
from edgekit_runtime.engines import load_engine

pytestmark = pytest.mark.convert


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two signatures: `serving_default` (two inputs, two outputs) and `free` (a picture of any size)."""
    tf = pytest.importorskip("tensorflow")

    class Net(tf.Module):
        def __init__(self):
            super().__init__()
            self.kernel = tf.Variable(
                np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32), name="kernel"
            )

        @tf.function(input_signature=[tf.TensorSpec([None, 4], name="zebra"), tf.TensorSpec([None, 3], name="apple")])
        def both(self, zebra, apple):
            y = zebra @ self.kernel + apple
            return {"yak": tf.nn.softmax(y), "ant": tf.reduce_sum(y, 1, keepdims=True)}

        @tf.function(input_signature=[tf.TensorSpec([None, None, None, 3], name="image")])
        def free(self, image):
            return {"mean": tf.reduce_mean(image, [1, 2])}

    path = tmp_path_factory.mktemp("saved") / "net"
    net = Net()
    tf.saved_model.save(net, str(path), {"serving_default": net.both, "free": net.free})
    return path


def test_serving_default_is_preferred_and_its_names_are_the_contracts(folder: Path) -> None:
    source = sources.load(folder)
    assert source.format == "saved-model"
    assert {spec.name: spec.shape for spec in source.inputs} == {"apple": (-1, 3), "zebra": (-1, 4)}
    assert {spec.name: spec.shape for spec in source.outputs} == {"ant": (-1, 1), "yak": (-1, 3)}
    inputs = onnx_graph.random_inputs(source.inputs, 3)
    expected = source.predict(inputs)
    np.testing.assert_allclose(expected[1].sum(1), 1, atol=1e-5)
    with load_engine("onnx", source.onnx()) as engine:
        assert [spec.name for spec in engine.inputs] == ["apple", "zebra"]
        for got, want in zip(engine.run(inputs), expected, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5)


def test_another_signature_is_another_model_and_its_free_axes_are_pinned(folder: Path) -> None:
    with pytest.raises(SourceError, match=r"--shape image=1,HEIGHT,WIDTH,3, such as --shape image=1,224,224,3"):
        sources.load(folder, LoadOptions(signature="free"))
    source = sources.load(folder, LoadOptions(signature="free", shapes={"image": (1, 6, 5, 3)}))
    assert source.inputs[0].shape == (-1, 6, 5, 3)
    assert source.sha256 != sources.load(folder).sha256
    x = np.random.default_rng(0).standard_normal((2, 6, 5, 3)).astype(np.float32)
    np.testing.assert_allclose(source.predict([x])[0], x.mean((1, 2)), atol=1e-6)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (LoadOptions(signature="serving"), "no signature 'serving'. It has: free, serving_default"),
        (LoadOptions(shapes={"pear": (1, 3)}), "'pear', which the model does not have. Its inputs: apple, zebra"),
        (LoadOptions(shapes={"apple": (1, 3, 3)}), "3 axes; the model has 2: [?, 3]"),
        (
            LoadOptions(shapes={"apple": (1, 4)}),
            "axis 1 of the input 'apple' the size 4; in the model it is fixed at 3",
        ),
        (LoadOptions(constants={"apple": 1}), "--constant is for ONNX files"),
    ],
)
def test_options_that_do_not_fit_say_what_would(folder: Path, options: LoadOptions, says: str) -> None:
    with pytest.raises(SourceError) as caught:
        sources.load(folder, options)
    assert says in str(caught.value)


def save(path: Path, function, signature, **variables) -> Path:
    import tensorflow as tf

    module = tf.Module()
    for name, value in variables.items():
        setattr(module, name, tf.Variable(value, name=name))
    traced = tf.function(lambda x: function(module, x), input_signature=[signature])
    tf.saved_model.save(module, str(path), traced.get_concrete_function() if signature is not None else None)
    return path


def test_a_state_kept_inside_is_refused(tmp_path: Path) -> None:
    import tensorflow as tf

    def count(module, x):
        module.seen.assign_add(1.0)
        return {"y": x + module.seen}

    path = save(tmp_path / "net", count, tf.TensorSpec([None, 3], name="x"), seen=0.0)
    with pytest.raises(SourceError, match=r"keeps a state inside: answering writes to a variable \(of seen\)"):
        sources.load(path)


def test_operators_that_touch_files_are_refused_unless_the_model_is_trusted(tmp_path: Path) -> None:
    import tensorflow as tf

    written = tmp_path / "written"

    def leak(module, x):
        with tf.control_dependencies([tf.io.write_file(str(written), "x")]):
            return {"y": tf.identity(x)}

    path = save(tmp_path / "net", leak, tf.TensorSpec([None, 3], name="x"))
    with pytest.raises(SourceError, match=r"reach beyond the network: WriteFile.*--trust-model"):
        sources.load(path)
    assert not written.exists()
    [note] = sources.load(path, LoadOptions(trust_model=True)).notes
    assert note.code == "trusted-code"


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    import tensorflow as tf

    kernel = np.array([1, np.inf, 3], np.float32)
    path = save(tmp_path / "net", lambda m, x: {"y": x * m.kernel}, tf.TensorSpec([None, 3], name="x"), kernel=kernel)
    with pytest.raises(SourceError, match=r"the weights 'kernel' are damaged: 1 of 3 values are infinite"):
        sources.load(path)


def test_half_a_saved_model_is_refused(folder: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(folder, tmp_path / "net")
    data = tmp_path / "net" / "variables" / "variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:10])
    with pytest.raises(SourceError, match="TensorFlow cannot load it"):
        sources.load(tmp_path / "net")
    shutil.rmtree(tmp_path / "net" / "variables")
    with pytest.raises(SourceError, match="TensorFlow cannot load it"):
        sources.load(tmp_path / "net")
