"""The process in which onnx2tf makes a SavedModel of `graph.onnx` in the working directory.

python -m edgekit_converters.targets.onnx_to_tf_worker 1      # a batch of 1; by `onnx_to_tf`, in its own folder
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from edgekit_converters.formats.onnx_file import parse

GRAPH, KEPT, RESULT = "graph.onnx", "kept.txt", "network"
"""The float graph (inputs and outputs named as below); inputs that keep their axes, one a line; the SavedModel."""

_SAMPLE = "calibration_image_sample_data_20x128x128x3_float32.npy"


def input_name(index: int) -> str:
    """Name of input `index` in onnx2tf."""
    return f"edgekit_in_{index}"


def output_name(index: int) -> str:
    """Name of output `index` in onnx2tf."""
    return f"edgekit_out_{index}"


def main(items: int) -> None:
    """Convert, or exit with an error on stderr. items: the batch of the SavedModel."""
    # onnx2tf feeds pictures of its own to check itself; where this file is missing it downloads one.
    np.save(_SAMPLE, np.random.default_rng(0).random((20, 128, 128, 3), np.float32))
    import onnx2tf  # type: ignore[import-not-found,unused-ignore]

    kept = Path(KEPT).read_text(encoding="utf-8").split()
    model = onnx2tf.convert(
        onnx_graph=parse(Path(GRAPH).read_bytes()),
        output_folder_path="scratch",
        not_use_onnxsim=True,
        keep_ncw_or_nchw_or_ncdhw_input_names=kept or None,
        disable_model_save=True,
        non_verbose=True,
    )
    _save(model, items)


def _save(model: Any, items: int) -> None:
    import tensorflow as tf

    by_name = {tensor.name.split(":")[0]: position for position, tensor in enumerate(model.inputs)}
    order = [by_name[input_name(index)] for index in range(len(model.inputs))]
    signature = [
        tf.TensorSpec([items, *model.inputs[position].shape[1:]], model.inputs[position].dtype, name=input_name(index))
        for index, position in enumerate(order)
    ]

    def infer(*tensors: Any) -> dict[str, Any]:
        placed: list[Any] = [None] * len(tensors)
        for tensor, position in zip(tensors, order, strict=True):
            placed[position] = tensor
        outputs = model(placed if len(placed) > 1 else placed[0], training=False)
        listed = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        return {output_name(index): output for index, output in enumerate(listed)}

    holder = tf.Module()
    holder.model = model
    holder.infer = tf.function(infer, input_signature=signature)
    # Some of onnx2tf's layers do not belong to the model that it hands back, and what nothing refers to is not saved.
    holder.weights = list(holder.infer.get_concrete_function().graph.variables)
    tf.saved_model.save(holder, RESULT)


if __name__ == "__main__":
    main(int(sys.argv[1]))
