"""The conversions of one build, written by hand: python -m peers.bare CASE_FOLDER TARGET, from a Keras model.

Three TFLite files and two of ONNX; nothing is measured, chosen or checked.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from peers.feeding import samples


def main(folder: Path, target: Path) -> None:
    import keras
    import tensorflow as tf
    import tf2onnx

    net = keras.models.load_model(folder / (folder / "model.txt").read_text(), compile=False)
    shape = (1, *net.inputs[0].shape[1:])
    (target / "f32.tflite").write_bytes(_converter(net).convert())
    dynamic = _converter(net)
    dynamic.optimizations = [tf.lite.Optimize.DEFAULT]
    (target / "dynamic.tflite").write_bytes(dynamic.convert())
    static = _converter(net)
    static.optimizations = [tf.lite.Optimize.DEFAULT]
    static.representative_dataset = lambda: ([x] for x in samples(folder, shape))
    static.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    static.inference_input_type = static.inference_output_type = tf.int8
    (target / "int8.tflite").write_bytes(static.convert())
    function = tf.function(
        lambda x: net(x, training=False), input_signature=[tf.TensorSpec(shape, tf.float32, name="x")]
    )
    tf2onnx.convert.from_function(function, function.input_signature, opset=17, output_path=str(target / "f32.onnx"))
    _quantize(folder, target)


def _converter(net: Any) -> Any:
    import tensorflow as tf

    return tf.lite.TFLiteConverter.from_keras_model(net)


def _quantize(folder: Path, target: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._samples = samples(folder, (1, 224, 224, 3))

        def get_next(self) -> Any:
            sample = next(self._samples, None)
            return None if sample is None else {"x": sample}

    quant_pre_process(target / "f32.onnx", target / "ready.onnx")
    quantize_static(target / "ready.onnx", target / "int8.onnx", Reader(), per_channel=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
