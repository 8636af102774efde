"""INT8 as TensorFlow's guide to post-training quantization shows it.
Nothing of edgekit's own is in it.

    plain_int8(Path("net.keras"), samples)      # bytes of a .tflite file: what the demo's result is compared with

https://ai.google.dev/edge/litert/conversion/tensorflow/quantization/post_training_quantization, "full integer".
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.sources.quiet import import_tensorflow, quiet


def plain_int8(model: Path, samples: Iterable[NDArray[np.float32]]) -> bytes:
    """model: a .keras file with one float32 input.
    samples: inputs with a batch of 1, for the ranges."""
    tf = import_tensorflow()
    with quiet(), contextlib.redirect_stdout(io.StringIO()):  # Keras prints what it exports
        network = tf.keras.models.load_model(model)
        converter: Any = tf.lite.TFLiteConverter.from_keras_model(network)
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([sample] for sample in samples)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
        return bytes(converter.convert())
