"""A small detector of red, green and blue spots whose one output joins boxes in pixels and sparse scores, as a YOLO's
does.

    save(folder / "net")                     # a SavedModel; pictures(90) are its data, CONTRACT its contract file

Its weights are planted, so that nothing is trained. Most pictures have no spot: of the output's power next to nothing
is in the scores, which decide everything.
"""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np

SIDE, CELL, PIXELS = 80, 4, 320
CELLS = SIDE // CELL
CONTRACT = """
task = "detection"
labels = ["red", "green", "blue"]

[input]
kind = "image"
mean = 0
std = 255

[detection]
row = "box scores"
candidates = "first"
format = "cxcywh"
unit = [320, 320]
iou_threshold = 0.2
"""


def pictures(count: int, seed: int = 0) -> np.ndarray:
    """uint8 [count, 80, 80, 3]: a dim mess, and in every third one to three bright spots."""
    draw = np.random.default_rng(seed)
    found = draw.integers(0, 40, (count, SIDE, SIDE, 3)).astype(np.float64)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for picture in found[::3]:
        for _ in range(draw.integers(1, 4)):
            (x, y), width = draw.uniform(8, SIDE - 8, 2), draw.uniform(4, 6)
            spot = np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / (2 * width**2))
            picture[..., draw.integers(3)] += draw.uniform(190, 255) * spot
    return found.clip(0, 255).astype(np.uint8)


def save(folder: Path) -> Path:
    """A convolution, its channels split and joined again, a residual sum, and two heads."""
    import tensorflow as tf

    draw = np.random.default_rng(1)
    first = np.zeros((CELL, CELL, 3, 8), np.float32)
    first[..., [0, 1, 2], [0, 1, 2]] = first[..., [0, 1, 2], [4, 5, 6]] = (
        1 / CELL**2
    )  # the mean of a cell's colour, twice
    first[..., 3], first[..., 7] = draw.normal(0, 0.02, (2, CELL, CELL, 3))
    second = draw.normal(0, 0.02, (3, 3, 4, 4)).astype(np.float32)
    scores = np.zeros((1, 1, 12, 3), np.float32)
    scores[0, 0, [0, 1, 2], [0, 1, 2]] = 12.0
    scores[0, 0, 8:] = draw.normal(0, 0.5, (4, 3))
    boxes = draw.normal(0, 0.3, (1, 1, 12, 4)).astype(np.float32)
    grid = np.stack(np.meshgrid(np.arange(CELLS), np.arange(CELLS)), -1).astype(np.float32)
    step = np.float32(PIXELS / CELLS)

    class Net(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((None, SIDE, SIDE, 3), tf.float32, name="image")])
        def __call__(self, image):
            cells = tf.nn.relu(tf.nn.conv2d(image, first, CELL, "VALID"))
            kept, taken = tf.split(cells, 2, axis=3)
            taken = taken + tf.nn.relu(tf.nn.conv2d(taken, second, 1, "SAME"))
            joined = tf.concat([kept, taken, tf.nn.relu(tf.nn.conv2d(taken, second, 1, "SAME"))], 3)
            score = tf.sigmoid(tf.nn.conv2d(joined, scores, 1, "VALID") - 7.5)
            raw = tf.sigmoid(tf.nn.conv2d(joined, boxes, 1, "VALID"))
            box = tf.concat([(raw[..., :2] + grid) * step, raw[..., 2:] * (10 * step)], 3)
            rows = [tf.reshape(part, (-1, CELLS * CELLS, part.shape[3])) for part in (box, score)]
            return {"found": tf.concat(rows, 2)}

    tf.saved_model.save(Net(), str(folder))
    gc.collect()  # TensorFlow keeps the functions of a living model by name, and a reader would bring the same names
    return folder
