"""A float ONNX graph in float16, with the float32 inputs and outputs that it had.

Rules: onnxruntime's own converter does it (it comes with the wheel that runs the result, and knows which operators need
float32 around them); weights beyond float16's range become its largest number; the graph's ends keep their types.

On a CPU most operators have no float16 kernel: ONNX Runtime converts around them, and the artifact is small, not fast.

    model = halved(parse(data))
"""

from __future__ import annotations

import warnings
from typing import Any

from edgekit_converters.errors import ConversionError, first_line
from edgekit_converters.formats.onnx import copied
from edgekit_converters.sources import canonical
from edgekit_converters.sources.quiet import quiet

__all__ = ["halved"]


def halved(model: Any) -> Any:
    """A copy. Raises ConversionError when the converter fails."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    copy = copied(model)
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = convert_float_to_float16(copy, keep_io_types=True, disable_shape_infer=False)
    except Exception as error:
        raise ConversionError(
            f"onnxruntime's float16 converter failed: {first_line(error)}",
            where="onnx-f16",
            do="Choose onnx-f32, or onnx-int8-qdq for a small file",
        ) from error
    del made.graph.value_info[:]
    canonical.order(made)  # the converter puts its casts last, and readers that walk the file lose the shapes
    return made
