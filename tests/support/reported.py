"""The object of `edgekit build --json` for one board, as the page is made of it."""

from __future__ import annotations

from typing import Any

FIDELITY: dict[str, Any] = {
    "items": 500, "metric": "top1", "original": 0.92, "artifact": 0.918, "drop": 0.002, "ci95": [-0.004, 0.008],
    "agreement": 0.97, "cosine": 0.998, "sqnr_db": 22.9, "quantized_macs": 1.0, "quantized_weights": 0.99,
    "not_finite": 0,
}  # fmt: skip
ESTIMATE = {"low_ms": 15.9, "mid_ms": 20.7, "high_ms": 36.4, "grade": "anchored", "dominated_by": "1x1 convolutions"}


def report(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model": {"path": "nets/digits.keras", "sha256": "ab" * 32, "format": "keras"},
        "data": [],
        "candidates": [
            {"recipe": "tflite-int8", "bytes": 5_272_056, "fidelity": FIDELITY, "tools": {"tensorflow": "2.21.0"}},
            {"recipe": "tflite-f32", "bytes": 18_566_304, "fidelity": FIDELITY, "tools": {}},
        ],
        "bundles": [
            {
                "profile": "raspberry-pi-4", "path": "digits.ekb", "recipe": "tflite-int8", "bytes": 5_272_056,
                "fidelity": FIDELITY, "estimate": ESTIMATE, "notes": [],
                "candidates": [{"recipe": "tflite-int8", "estimate": ESTIMATE},
                    {"recipe": "tflite-f32", "estimate": None}],
                "refused": [{"recipe": "tflite-f32", "reason": "it may take 52 to 120 ms", "code": "budget"}],
            }
        ],
        "seconds": 12.0,
    }  # fmt: skip
    return {**found, **changes}
