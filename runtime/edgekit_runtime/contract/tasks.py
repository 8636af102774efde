"""What raw outputs mean, for the tasks that need saying it: part of a contract, and so of a bundle's manifest.

DetectionSpec("output0", "box scores", "cxcywh", span=(640, 640), candidates="last")      # YOLOv8 as it is exported
DetectionSpec("boxes", "box", "yxyx", span=(1, 1), scores="scores", classes="classes", count="count", suppressed=True)
EmbeddingSpec("features", normalize=True)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Activation", "Background", "BoxFormat", "Candidates", "DetectionSpec", "EmbeddingSpec", "Row"]

BoxFormat = Literal["xyxy", "yxyx", "xywh", "cxcywh"]
Row = Literal["box", "box scores", "box objectness scores", "box score class"]
Candidates = Literal["first", "last"]
Activation = Literal["none", "sigmoid", "softmax"]
Background = Literal["none", "first", "last"]


@dataclass(frozen=True)
class DetectionSpec:
    """How a detector's raw outputs become boxes. Anchors are no part of it: the boxes are decoded by the network.

    boxes: the output that holds one row a candidate; row: what stands in it, in this order. Where that is the `box` alone,
    the output `scores` has the rest: [N, C], one a class, or [N] of the classes in the output `classes`. `count`: an output
    whose first number says how many of the N rows are filled.
    candidates: the axis of `boxes` (and of scores, if [N, C]) along which the candidates lie: `first` for [N, 4 + C], `last`
    for [4 + C, N].
    format: corners (`xyxy`, or `yxyx` as TensorFlow has them), upper left corner and size (`xywh`), or centre and size.
    span: (width, height) of a box that covers the network's whole picture: its pixels, or (1, 1) for fractions.
    activation: what makes probabilities of scores (sigmoid: of objectness too). background: the class that stands for
    nothing; labels leave it out. suppressed: the network ends in a non-maximum suppression of its own.
    score_threshold, iou_threshold, max_boxes: which boxes an answer has; class_aware: boxes of different classes never
    suppress each other.
    """

    boxes: str
    row: Row
    format: BoxFormat
    span: tuple[float, float]
    scores: str | None = None
    classes: str | None = None
    count: str | None = None
    candidates: Candidates = "first"
    activation: Activation = "none"
    background: Background = "none"
    suppressed: bool = False
    score_threshold: float = 0.25
    iou_threshold: float = 0.45
    max_boxes: int = 100
    class_aware: bool = True


@dataclass(frozen=True)
class EmbeddingSpec:
    """output: the one that holds the vector. normalize: whether `answer.vector` is scaled to length 1."""

    output: str
    normalize: bool = False
