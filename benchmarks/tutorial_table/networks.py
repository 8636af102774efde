"""Networks of the tutorial table, with seeded weights: only time and memory are looked at, no accuracy.

    python benchmarks/tutorial_table/networks.py resnet50 resnet50.keras --side 224     # in a process with TensorFlow

- resnet50: ResNet-50 of Keras Applications;
- halved: the same, and in each convolution and dense layer the half of the weights that is nearest to 0 set to 0;
- student: MobileNetV2 of width 0.35, whose products are fewer by the factor that the table prints.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

NETWORKS = ("resnet50", "halved", "student")


def network(name: str, side: int) -> Any:
    import keras

    keras.utils.set_random_seed(0)
    shape = (side, side, 3)
    if name == "student":
        return keras.applications.MobileNetV2(weights=None, input_shape=shape, alpha=0.35)
    made = keras.applications.ResNet50(weights=None, input_shape=shape)
    if name == "halved":
        for layer in made.layers:
            if isinstance(layer, (keras.layers.Conv2D, keras.layers.Dense)):
                kernel, *rest = layer.get_weights()
                kernel[np.abs(kernel) < np.median(np.abs(kernel))] = 0.0
                layer.set_weights([kernel, *rest])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("name", choices=NETWORKS)
    parser.add_argument("path", type=Path)
    parser.add_argument("--side", type=int, default=224)
    options = parser.parse_args()
    network(options.name, options.side).save(options.path)


if __name__ == "__main__":
    main()
