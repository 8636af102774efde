"""Biases that take back what the rounding of weights does to a channel's mean.

Inputs behind a ReLU have a mean far from 0, so that rounded weights shift the mean of every output; the bias is stored in
32 bits and can undo that shift (Nagel et al., Data-free quantization, 2019; here the mean comes from calibration data).

    bias = corrected(bias, weights, rounded, mean)

Rule: with float weights in place of rounded ones the correction is exactly nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["corrected"]


def corrected(
    bias: NDArray[Any], weights: NDArray[np.float64], rounded: NDArray[np.float64], mean: NDArray[np.float64]
) -> NDArray[np.float32]:
    """weights, rounded: [groups, outputs, n]. mean: of the inputs, [groups, n]. bias: one number an output channel."""
    shift = ((weights - rounded) @ mean[:, :, None])[..., 0]
    return np.asarray(bias.astype(np.float64) + shift.reshape(bias.shape), np.float32)
