"""SavedModel folders: one signature is the model."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.sources import float_onnx
from edgekit_converters.sources.load import load
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.targets.tflite_float import float_model
from edgekit_runtime.engines.registry import load_engine

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
    source = load(folder)
    assert source.format == "saved-model"
    assert {spec.name: spec.shape for spec in source.inputs} == {"apple": (-1, 3), "zebra": (-1, 4)}
    assert {spec.name: spec.shape for spec in source.outputs} == {"ant": (-1, 1), "yak": (-1, 3)}
    inputs = float_onnx.random_inputs(source.inputs, 3)
    expected = source.predict(inputs)
    np.testing.assert_allclose(expected[1].sum(1), 1, atol=1e-5)
    with load_engine("onnx", source.onnx()) as engine:
        assert [spec.name for spec in engine.inputs] == ["apple", "zebra"]
        for got, want in zip(engine.run(inputs), expected, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5)


def test_two_models_may_have_functions_of_one_name(tmp_path: Path) -> None:
    import tensorflow as tf

    inner = tf.function(lambda x: x * 1.5, autograph=False)
    outer = tf.function(
        lambda x: {"y": inner(x)}, input_signature=[tf.TensorSpec((None, 3), name="x")], autograph=False
    )
    module = tf.Module()
    module.serve = outer
    tf.saved_model.save(module, str(tmp_path / "one"), signatures={"serving_default": outer})
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    file = tmp_path / "two" / "saved_model.pb"
    data = file.read_bytes()
    assert struct.pack("<f", 1.5) in data
    file.write_bytes(data.replace(struct.pack("<f", 1.5), struct.pack("<f", 2.5)))
    (tmp_path / "two" / "fingerprint.pb").unlink(missing_ok=True)
    x = np.ones((1, 3), np.float32)
    for name, factor in (("one", 1.5), ("two", 2.5)):
        np.testing.assert_allclose(load(tmp_path / name).predict([x])[0], x * factor)


def test_an_activation_with_a_gradient_of_its_own_keeps_its_names_in_tflite(tmp_path: Path) -> None:
    """`tf.nn.silu`, as in any EfficientNet that Keras 3 exports."""
    import tensorflow as tf

    net = tf.Module()
    net.serve = tf.function(
        lambda x: {"y": tf.nn.silu(x)}, input_signature=[tf.TensorSpec((None, 3), name="x")], autograph=False
    )
    tf.saved_model.save(net, str(tmp_path / "net"), signatures={"serving_default": net.serve})
    found = float_model(load(tmp_path / "net"))
    assert (found.inputs, found.outputs) == (("x",), ("y",))
    x = np.array([[-2, 0, 3]], np.float32)
    with load_engine("tflite", found.data) as engine:
        np.testing.assert_allclose(engine.run([x])[0], x / (1 + np.exp(-x)), atol=1e-5)


def test_another_signature_is_another_model_and_its_free_axes_are_pinned(folder: Path) -> None:
    with pytest.raises(SourceError, match=r"--shape image=1,HEIGHT,WIDTH,3, such as --shape image=1,224,224,3"):
        load(folder, LoadOptions(signature="free"))
    source = load(folder, LoadOptions(signature="free", shapes={"image": (1, 6, 5, 3)}))
    assert source.inputs[0].shape == (-1, 6, 5, 3)
    assert source.sha256 != load(folder).sha256
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
        load(folder, options)
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
        load(path)


def test_operators_that_touch_files_are_refused_unless_the_model_is_trusted(tmp_path: Path) -> None:
    import tensorflow as tf

    written = tmp_path / "written"

    def leak(module, x):
        with tf.control_dependencies([tf.io.write_file(str(written), "x")]):
            return {"y": tf.identity(x)}

    path = save(tmp_path / "net", leak, tf.TensorSpec([None, 3], name="x"))
    with pytest.raises(SourceError, match=r"that do more than arithmetic on numbers: WriteFile.*--trust-model"):
        load(path)
    assert not written.exists()
    [note] = load(path, LoadOptions(trust_model=True)).notes
    assert note.code == "trusted-code"
    assert written.exists()


def _prints(x, written: Path):
    import tensorflow as tf

    return [tf.raw_ops.PrintV2(input="x", output_stream=f"file://{written}")]


def _summary(x, written: Path):
    import tensorflow as tf

    writer = tf.raw_ops.SummaryWriter()
    return [
        tf.raw_ops.CreateSummaryFileWriter(
            writer=writer, logdir=str(written), max_queue=1, flush_millis=1, filename_suffix=""
        )
    ]


def _dataset(x, written: Path):
    import tensorflow as tf

    lines = tf.raw_ops.TextLineDataset(filenames="/etc/passwd", compression_type="", buffer_size=0)
    return [tf.raw_ops.DatasetToGraphV2(input_dataset=lines)]


def _debugged(x, written: Path):
    import tensorflow as tf

    return [tf.raw_ops.DebugIdentityV3(input=x, tensor_name="x:0", debug_urls=[f"file://{written}"])]


@pytest.mark.parametrize(
    ("effect", "named"),
    [
        (_prints, "PrintV2"),
        (_summary, "CreateSummaryFileWriter"),
        (_dataset, "TextLineDataset"),
        (_debugged, "DebugIdentityV3"),
    ],
)
@pytest.mark.parametrize("deep", [False, True], ids=["in the signature", "in a branch of a function of it"])
def test_an_operator_that_is_no_arithmetic_is_refused_wherever_the_signature_reaches_it(
    tmp_path: Path, effect, named: str, deep: bool
) -> None:
    """S24: by an allow list, in the signature and in every function behind it."""
    import tensorflow as tf

    written = tmp_path / "written"

    def run(x):
        with tf.control_dependencies(effect(x, written)):
            return tf.identity(x)

    def reach(module, x):
        return {"y": tf.cond(tf.reduce_sum(x) > 0, lambda: tf.function(run)(x), lambda: x) if deep else run(x)}

    path = save(tmp_path / "net", reach, tf.TensorSpec([None, 3], name="x"))
    with pytest.raises(SourceError, match=named):
        load(path)
    assert not written.exists()


def test_what_the_signature_never_reaches_is_neither_judged_nor_imported(tmp_path: Path) -> None:
    """A function for training, and one that writes a file, beside the signature."""
    import tensorflow as tf

    class Net(tf.Module):
        def __init__(self):
            super().__init__()
            self.seen = tf.Variable(2.0, name="seen")

        @tf.function(input_signature=[tf.TensorSpec([None, 3], name="x")])
        def answer(self, x):
            return {"y": x * self.seen}

        @tf.function(input_signature=[tf.TensorSpec([None, 3], name="x")])
        def train(self, x):
            self.seen.assign_add(1.0)
            tf.io.write_file("/nowhere/written", "x")
            return {"y": x}

    net = Net()
    tf.saved_model.save(net, str(tmp_path / "net"), {"serving_default": net.answer, "train": net.train})
    source = load(tmp_path / "net")
    assert source.predict([np.ones((2, 3), np.float32)])[0].tolist() == [[2, 2, 2]] * 2
    with pytest.raises(SourceError, match="keeps a state inside"):
        load(tmp_path / "net", LoadOptions(signature="train"))


def test_the_graph_and_the_checkpoint_are_the_model_and_python_objects_are_not_rebuilt(folder: Path, tmp_path) -> None:
    """As where the class that was saved is gone: its object graph names classes that TensorFlow cannot make."""
    import shutil

    from tensorflow.core.protobuf import saved_model_pb2

    whole = load(folder)
    shutil.copytree(folder, tmp_path / "net")
    model = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    objects = model.meta_graphs[0].object_graph_def
    for node in objects.nodes:
        if node.HasField("variable"):
            node.user_object.identifier = "a class that is gone"
    (tmp_path / "net" / "saved_model.pb").write_bytes(model.SerializeToString())
    inputs = float_onnx.random_inputs(whole.inputs, 2)
    for got, want in zip(load(tmp_path / "net").predict(inputs), whole.predict(inputs), strict=True):
        np.testing.assert_array_equal(got, want)


def test_every_operator_of_the_list_is_one_that_tensorflow_has_and_none_reaches_files_or_python() -> None:
    import tensorflow as tf

    from edgekit_converters.sources.tensorflow_source import ARITHMETIC

    listed = {name for name in ARITHMETIC if hasattr(tf.raw_ops, name)}
    assert ARITHMETIC - listed <= {"If", "StatelessIf", "StatelessWhile", "While", "PartitionedCall"}
    suspicious = ("File", "Py", "Print", "Dataset", "Summary", "Debug", "Decode", "Encode", "Queue", "Reader", "Save")
    assert not [name for name in ARITHMETIC if any(part in name for part in suspicious)]


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    import tensorflow as tf

    kernel = np.array([1, np.inf, 3], np.float32)
    path = save(tmp_path / "net", lambda m, x: {"y": x * m.kernel}, tf.TensorSpec([None, 3], name="x"), kernel=kernel)
    with pytest.raises(SourceError, match=r"the weights 'kernel' are damaged: 1 of 3 values are infinite"):
        load(path)


def test_half_a_saved_model_is_refused(folder: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(folder, tmp_path / "net")
    data = tmp_path / "net" / "variables" / "variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:10])
    with pytest.raises(SourceError, match="TensorFlow cannot load it"):
        load(tmp_path / "net")
    shutil.rmtree(tmp_path / "net" / "variables")
    with pytest.raises(SourceError, match="TensorFlow cannot load it"):
        load(tmp_path / "net")


def test_a_constant_that_stands_for_gigabytes_is_refused(folder: Path, tmp_path: Path) -> None:
    import shutil

    from tensorflow.core.protobuf import saved_model_pb2

    shutil.copytree(folder, tmp_path / "net")
    model = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    for function in model.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            if node.op == "Const":
                del node.attr["value"].tensor.tensor_shape.dim[:]
                node.attr["value"].tensor.tensor_shape.dim.add(size=4_000_000_000)
    (tmp_path / "net" / "saved_model.pb").write_bytes(model.SerializeToString())
    with pytest.raises(SourceError, match=r"saved_model\.pb unpacks to 16\.0 GB"):
        load(tmp_path / "net")
