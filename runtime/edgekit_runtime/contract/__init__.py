"""What a caller may pass and what an answer means.

Decode (to the canonical tensor), adapt (to one artifact), finish.
"""

from __future__ import annotations

from edgekit_runtime.contract.adapt import Adapter, Carry, Finisher, Prediction, softmax, vector
from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.contract.detect import Box, boxes
from edgekit_runtime.contract.frame import Frame
from edgekit_runtime.contract.geometry import Geometry
from edgekit_runtime.contract.spec import (
    CarriedState,
    Contract,
    DetectionSpec,
    EmbeddingSpec,
    ImageSpec,
    InputContract,
    OutputContract,
)

__all__ = [
    "Adapter",
    "Box",
    "CarriedState",
    "Carry",
    "Contract",
    "Decoder",
    "DetectionSpec",
    "EmbeddingSpec",
    "Finisher",
    "Frame",
    "Geometry",
    "ImageSpec",
    "InputContract",
    "OutputContract",
    "Prediction",
    "boxes",
    "softmax",
    "vector",
]
