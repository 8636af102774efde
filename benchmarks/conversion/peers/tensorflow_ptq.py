"""TensorFlow's own post-training quantization, as its guide shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers.feeding import samples


def full_int8(folder: Path, out: Path) -> None:
    import tensorflow as tf

    converter = _converter(folder)
    shape, dtype = _input(folder)
    converter.representative_dataset = lambda: ([x] for x in samples(folder, shape))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    if dtype == tf.float32:
        converter.inference_input_type = tf.int8
    converter.inference_output_type = tf.int8
    out.write_bytes(converter.convert())


def dynamic(folder: Path, out: Path) -> None:
    out.write_bytes(_converter(folder).convert())


def _converter(folder: Path) -> Any:
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder / "saved_model"))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter


def _input(folder: Path) -> tuple[tuple[int, ...], Any]:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(folder / "saved_model"))
    spec = next(iter(loaded.signatures["serving_default"].structured_input_signature[1].values()))
    return tuple(spec.shape), spec.dtype
