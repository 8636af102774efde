"""The peers: what other tools make of the same float model with the same calibration inputs.

Each entry is `module:function` of this folder and the format that it writes. A function takes the case's folder, made
by `forms`, and the file to write, and returns what a reader must know of how it was done, or None; it runs in `child`,
in the peers' own environment, and may fail as it likes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True)
class Peer:
    """form: the file or folder of the case that it starts from."""

    entry: str
    format: str
    form: str
    what: str


_METHODS, _SCOPES = ("minmax", "percentile", "entropy"), ("all", "products")
GRID = tuple(f"ort-{method}-{scope}" for method, scope in product(_METHODS, _SCOPES))

PEERS: dict[str, Peer] = {
    "tf-int8": Peer("tensorflow_ptq:full_int8", "tflite", "saved_model", "TFLiteConverter, full INT8"),
    "tf-dynamic": Peer("tensorflow_ptq:dynamic", "tflite", "saved_model", "TFLiteConverter, dynamic range"),
    "aeq-static": Peer("ai_edge:static", "tflite", "float.tflite", "ai-edge-quantizer, static wi8 ai8"),
    "aeq-dynamic": Peer("ai_edge:dynamic", "tflite", "float.tflite", "ai-edge-quantizer, dynamic wi8"),
    "ort-defaults": Peer("onnxruntime_ptq:defaults", "onnx", "float.onnx", "quantize_static, nothing set"),
    "ort-dynamic": Peer("onnxruntime_ptq:dynamic", "onnx", "float.onnx", "quantize_dynamic, nothing set"),
    **{
        name: Peer(
            f"onnxruntime_ptq:{name.removeprefix('ort-').replace('-', '_')}", "onnx", "float.onnx", "of the grid"
        )
        for name in GRID
    },
    "nncf": Peer("nncf_ptq:static", "onnx", "float.onnx", "nncf.quantize, nothing set"),
}

COLUMNS: dict[str, tuple[str, ...]] = {
    "TensorFlow INT8": ("tf-int8",),
    "TensorFlow dynamic": ("tf-dynamic",),
    "ai-edge-quantizer static": ("aeq-static",),
    "ai-edge-quantizer dynamic": ("aeq-dynamic",),
    "onnxruntime static, defaults": ("ort-defaults",),
    "onnxruntime static, best of grid": GRID,
    "onnxruntime dynamic": ("ort-dynamic",),
    "NNCF": ("nncf",),
}
"""Column -> peers; of several the one that agrees most on the test items themselves is shown, which favours the peer.
"""
