"""Quantization-aware training by NNCF in PyTorch, of the network of qat.py with its weights.

    PYTHON benchmarks/compress/nncf_peer.py work.npz out.onnx

PYTHON is that of an environment with nncf_requirements.txt beside this file. work.npz: as of tfmot_peer.py. The
artifact is an ONNX file with QuantizeLinear and DequantizeLinear, channels first.
"""

from __future__ import annotations

import sys
from typing import Any


def network(torch: Any) -> Any:
    """The architecture of `benchmarks/compress/qat.py`, in PyTorch; it answers logits."""
    nn = torch.nn

    def normal(layer: Any, width: int) -> list[Any]:
        return [layer, nn.BatchNorm2d(width, eps=1e-3, momentum=0.1), nn.ReLU()]

    parts = normal(nn.Conv2d(1, 16, 3, padding=1, bias=False), 16)
    before = 16
    for width, stride in ((24, 2), (32, 1)):
        if stride == 2:  # Keras pads 8 pixels to the right and below alone
            parts.append(nn.ZeroPad2d((0, 1, 0, 1)))
        deep = nn.Conv2d(before, before, 3, stride, 0 if stride == 2 else 1, groups=before, bias=False)
        parts += normal(deep, before) + normal(nn.Conv2d(before, width, 1, bias=False), width)
        before = width
    net = nn.Module()  # NNCF hangs its own parts into the module, and a Sequential would run them
    net.layers = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))
    net.forward = net.layers.forward
    return net


def set_weights(torch: Any, net: Any, weights: list[Any]) -> None:
    """weights: Keras', in its layers' order."""
    given = iter(weights)
    for layer in net.layers:
        if isinstance(layer, torch.nn.Conv2d):
            kernel = next(given)
            layer.weight.data = torch.tensor(
                kernel.transpose((2, 3, 0, 1) if layer.groups > 1 else (3, 2, 0, 1)).copy()
            )
        elif isinstance(layer, torch.nn.BatchNorm2d):
            for part in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
                part.data = torch.tensor(next(given))
        elif isinstance(layer, torch.nn.Linear):
            layer.weight.data, layer.bias.data = torch.tensor(next(given).T.copy()), torch.tensor(next(given))


def main() -> None:
    import math

    import nncf
    import numpy as np
    import torch

    work = np.load(sys.argv[1])
    torch.manual_seed(int(work["seed"]))
    torch.set_num_threads(1)
    net = network(torch)
    set_weights(
        torch, net, [work[f"weight{at}"] for at in range(sum(name.startswith("weight") for name in work.files))]
    )
    x, y = torch.tensor(work["x"].transpose(0, 3, 1, 2).copy()), torch.tensor(work["y"])
    batch, epochs = int(work["batch"]), int(work["epochs"])
    net.eval()
    print("in float, of the training set:", float((net(x).argmax(1) == y).float().mean()))
    model = nncf.quantize(net, nncf.Dataset([x[at : at + 1] for at in range(300)]), subset_size=300)
    steps = epochs * len(x) // batch
    optimizer = torch.optim.Adam(model.parameters(), float(work["rate"]))
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.01 + 0.99 * (1 + math.cos(math.pi * min(1.0, step / steps))) / 2
    )
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(x))
        for start in range(0, len(x) - batch + 1, batch):
            rows = order[start : start + batch]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            rate.step()
    model.eval()
    print("in 8 bits, of the training set:", float((model(x).argmax(1) == y).float().mean()))
    torch.onnx.export(nncf.strip(model, example_input=x[:1]), (x[:1],), sys.argv[2], opset_version=17, dynamo=False)


if __name__ == "__main__":
    main()
