"""Make the tiny models of this folder, of a few kilobytes each.

An 8x8 RGB classifier of 4 classes with seeded weights; a leaky memory of 4 numbers, whose state goes in and comes out,
or stays inside; a detector of bright spots; and for batches of a file for one item a network that works row by row, and
one that multiplies its rows with each other.

    python tests/models/make.py

The weights are chosen so that the classes follow the picture: class c answers to the mean of channel c, class 3 to
dark. They travel in the tree because the environment that has tflite-runtime cannot hold TensorFlow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

FOLDER = Path(__file__).parent
CLASSES = 4
OPSET = 17


def weights() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A 3x3 convolution that averages each channel, and the dense layer over the channel means (and its bias)."""
    kernel = np.zeros((3, 3, 3, 3), np.float32)
    for channel in range(3):
        kernel[:, :, channel, channel] = 1 / 9
    dense = np.array([[6, -3, -3, -2], [-3, 6, -3, -2], [-3, -3, 6, -2]], np.float32)
    return kernel, dense, np.array([0, 0, 0, 1.5], np.float32)


def examples(count: int) -> np.ndarray:
    """float32 [count, 8, 8, 3] in 0..1, one colour a picture and noise over it."""
    rng = np.random.default_rng(7)
    colours = rng.uniform(0, 1, (count, 1, 1, 3))
    return np.clip(colours + rng.normal(0, 0.1, (count, 8, 8, 3)), 0, 1).astype(np.float32)


def tiny_converter(batch: int | None) -> tf.lite.TFLiteConverter:
    """batch: None leaves the axis free."""
    kernel, dense, bias = weights()

    @tf.function(input_signature=[tf.TensorSpec((batch, 8, 8, 3), tf.float32, "image")])
    def network(image):
        features = tf.nn.relu(tf.nn.conv2d(image, kernel, 1, "SAME"))
        return {"probs": tf.nn.softmax(tf.reduce_mean(features, (1, 2)) @ dense + bias)}

    return tf.lite.TFLiteConverter.from_concrete_functions([network.get_concrete_function()])


def tiny_int8(batch: int) -> bytes:
    """The same examples for any batch, so the same scales."""

    def representative() -> Iterator[list[np.ndarray]]:
        for several in examples(64).reshape(-1, batch, 8, 8, 3):
            yield [several]

    quantized = tiny_converter(batch)
    quantized.optimizations = [tf.lite.Optimize.DEFAULT]
    quantized.representative_dataset = representative
    quantized.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    quantized.inference_input_type = quantized.inference_output_type = tf.int8
    return quantized.convert()


def tflite() -> None:
    (FOLDER / "tiny_f32.tflite").write_bytes(tiny_converter(1).convert())
    (FOLDER / "tiny_free_f32.tflite").write_bytes(tiny_converter(None).convert())
    (FOLDER / "tiny_int8.tflite").write_bytes(tiny_int8(1))
    (FOLDER / "tiny_int8_b4.tflite").write_bytes(tiny_int8(4))


def cnn_converter() -> tf.lite.TFLiteConverter:
    """32x32 RGB, seeded weights, 25,000 of them, 2.3 million multiplications: what instructions are counted on."""
    rng = np.random.default_rng(11)

    def weight(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)

    first, depthwise, pointwise = weight(3, 3, 3, 16), weight(3, 3, 16, 1), weight(1, 1, 16, 32)
    third, fourth, dense = weight(3, 3, 32, 32), weight(3, 3, 32, 48), weight(48, 10)

    @tf.function(input_signature=[tf.TensorSpec((1, 32, 32, 3), tf.float32, "image")])
    def network(image):
        t = tf.nn.relu(tf.nn.conv2d(image, first, 1, "SAME"))
        t = tf.nn.relu(tf.nn.depthwise_conv2d(t, depthwise, (1, 1, 1, 1), "SAME"))
        t = tf.nn.relu(tf.nn.conv2d(t, pointwise, 1, "SAME"))
        t = tf.nn.relu(tf.nn.conv2d(t, third, 2, "SAME"))
        t = tf.nn.relu(tf.nn.conv2d(t, fourth, 2, "SAME"))
        return {"scores": tf.reduce_mean(t, (1, 2)) @ dense}

    return tf.lite.TFLiteConverter.from_concrete_functions([network.get_concrete_function()])


def cnn() -> None:
    rng = np.random.default_rng(12)
    pictures = rng.uniform(0, 1, (16, 1, 32, 32, 3)).astype(np.float32)
    quantized = cnn_converter()
    quantized.optimizations = [tf.lite.Optimize.DEFAULT]
    quantized.representative_dataset = lambda: ([picture] for picture in pictures)
    quantized.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    quantized.inference_input_type = quantized.inference_output_type = tf.int8
    (FOLDER / "cnn_int8.tflite").write_bytes(quantized.convert())
    (FOLDER / "cnn_f32.tflite").write_bytes(cnn_converter().convert())


def onnx_model() -> None:
    from onnx import TensorProto, checker, helper, numpy_helper

    kernel, dense, bias = weights()
    nodes = [
        helper.make_node("Conv", ["image", "kernel"], ["conv"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["features"]),
        helper.make_node("ReduceMean", ["features"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("Gemm", ["means", "dense", "bias"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probs"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("probs", TensorProto.FLOAT, ["batch", CLASSES])],
        [
            numpy_helper.from_array(kernel.transpose(3, 2, 0, 1).copy(), "kernel"),
            numpy_helper.from_array(dense, "dense"),
            numpy_helper.from_array(bias, "bias"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    checker.check_model(model)
    (FOLDER / "tiny_f32.onnx").write_bytes(model.SerializeToString())


def memory_weights() -> tuple[np.ndarray, np.ndarray]:
    """[3, 4] in, [4, 2] out. The memory keeps 0.9 of what it held."""
    rng = np.random.default_rng(3)
    return rng.normal(0, 0.5, (3, 4)).astype(np.float32), rng.normal(0, 0.5, (4, 2)).astype(np.float32)


LEAK = np.float32(0.9)


def memory_inside() -> None:
    """The state is a variable of the file's own (VAR_HANDLE), which begins at a quarter throughout."""
    into, out = memory_weights()
    module = tf.Module()
    module.memory = tf.Variable(tf.fill([1, 4], 0.25), name="memory")

    @tf.function(input_signature=[tf.TensorSpec((1, 3), tf.float32, "x")])
    def network(x):
        new = tf.tanh(LEAK * module.memory.read_value() + x @ into)
        module.memory.assign(new)
        return {"y": new @ out}

    module.network = network
    converter = tf.lite.TFLiteConverter.from_concrete_functions([network.get_concrete_function()], module)
    converter.experimental_enable_resource_variables = True
    (FOLDER / "memory_inside_f32.tflite").write_bytes(converter.convert())


def memory_carried_int8() -> None:
    """The state goes in and comes out, in 8 bits whose scale is not the same at both ends."""
    into, out = memory_weights()

    @tf.function(input_signature=[tf.TensorSpec((1, 3), tf.float32, "x"), tf.TensorSpec((1, 4), tf.float32, "h_in")])
    def network(x, h):
        new = tf.tanh(LEAK * h + x @ into)
        return {"y": new @ out, "h_out": new}

    def representative() -> Iterator[dict[str, np.ndarray]]:
        rng, state = np.random.default_rng(5), np.zeros((1, 4), np.float32)
        for _ in range(64):
            x = rng.normal(0, 1, (1, 3)).astype(np.float32)
            yield {"x": x, "h_in": state}
            state = np.tanh(LEAK * state + x @ into).astype(np.float32)

    holder = tf.Module()  # with one, the file has a signature, and its outputs keep their names
    converter = tf.lite.TFLiteConverter.from_concrete_functions([network.get_concrete_function()], holder)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = representative
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    (FOLDER / "memory_carried_int8.tflite").write_bytes(converter.convert())


def memory_carried_onnx() -> None:
    from onnx import TensorProto, checker, helper, numpy_helper

    into, out = memory_weights()
    nodes = [
        helper.make_node("MatMul", ["x", "into"], ["added"]),
        helper.make_node("Mul", ["h_in", "leak"], ["kept"]),
        helper.make_node("Add", ["added", "kept"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["h_out"]),
        helper.make_node("MatMul", ["h_out", "out"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "memory",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3]),
            helper.make_tensor_value_info("h_in", TensorProto.FLOAT, [1, 4]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2]),
            helper.make_tensor_value_info("h_out", TensorProto.FLOAT, [1, 4]),
        ],
        [
            numpy_helper.from_array(into, "into"),
            numpy_helper.from_array(out, "out"),
            numpy_helper.from_array(np.array(LEAK), "leak"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    checker.check_model(model)
    (FOLDER / "memory_carried_f32.onnx").write_bytes(model.SerializeToString())


def spots() -> None:
    """A detector: each of 4 x 4 cells of a grey picture is a box around it.

    The box is two by two cells, and the cell's brightness is the score.
    """
    x, y = np.meshgrid((np.arange(4) + 0.5) / 4, (np.arange(4) + 0.5) / 4)
    boxes = np.stack([x, y, np.full_like(x, 0.5), np.full_like(x, 0.5)], axis=-1).reshape(1, 16, 4).astype(np.float32)

    @tf.function(input_signature=[tf.TensorSpec((1, 16, 16, 1), tf.float32, "image")])
    def network(image):
        return {"found": tf.concat([boxes, tf.reshape(tf.nn.avg_pool2d(image, 4, 4, "VALID"), (1, 16, 1))], axis=-1)}

    def representative() -> Iterator[list[np.ndarray]]:
        rng = np.random.default_rng(11)
        for _ in range(32):
            yield [np.kron(rng.integers(0, 2, (4, 4)), np.ones((4, 4))).astype(np.float32)[None, :, :, None]]

    holder = tf.Module()  # with one, the file has a signature, and its outputs keep their names
    converter = tf.lite.TFLiteConverter.from_concrete_functions([network.get_concrete_function()], holder)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = representative
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    (FOLDER / "spots_int8.tflite").write_bytes(converter.convert())


def rows() -> None:
    rng = np.random.default_rng(13)
    first, second = (rng.normal(0, 0.5, shape).astype(np.float32) for shape in ((12, 16), (16, 4)))

    @tf.function(input_signature=[tf.TensorSpec((1, 12), tf.float32, "x")])
    def network(x):
        return {"y": tf.nn.softmax(tf.nn.relu(x @ first) @ second)}

    @tf.function(input_signature=[tf.TensorSpec((1, 12), tf.float32, "x")])
    def mixing(x):
        return {"y": tf.matmul(x, x, transpose_b=True)}

    converter = tf.lite.TFLiteConverter.from_concrete_functions([network.get_concrete_function()])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([rng.normal(0, 1, (1, 12)).astype(np.float32)] for _ in range(64))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    (FOLDER / "rows_int8.tflite").write_bytes(converter.convert())
    converter = tf.lite.TFLiteConverter.from_concrete_functions([mixing.get_concrete_function()])
    (FOLDER / "mixing_f32.tflite").write_bytes(converter.convert())


def ssd() -> None:
    """A detector with TensorFlow's four outputs: each of 2 x 2 cells is a box of class 0 or 1, its red the score."""
    corners = [[y / 2, x / 2, y / 2 + 0.5, x / 2 + 0.5] for y in range(2) for x in range(2)]

    @tf.function(input_signature=[tf.TensorSpec((1, 16, 16, 3), tf.float32, "image")])
    def network(image):
        scores = tf.reshape(tf.nn.avg_pool2d(image[..., :1], 8, 8, "VALID"), (1, 4))
        zeros = scores * 0.0
        boxes = np.float32([corners]) + zeros[..., None]
        classes = zeros + np.float32([[0, 1, 0, 1]])
        return {"a": boxes, "b": classes, "c": scores, "d": tf.reduce_sum(zeros + 1.0, 1)}

    converter = tf.lite.TFLiteConverter.from_concrete_functions([network.get_concrete_function()], tf.Module())
    (FOLDER / "ssd_f32.tflite").write_bytes(converter.convert())


if __name__ == "__main__":
    tflite()
    cnn()
    onnx_model()
    memory_inside()
    memory_carried_int8()
    memory_carried_onnx()
    spots()
    rows()
    ssd()
    for path in sorted(p for p in FOLDER.iterdir() if p.suffix in (".tflite", ".onnx")):
        print(f"{path.name}: {path.stat().st_size:,} bytes")
