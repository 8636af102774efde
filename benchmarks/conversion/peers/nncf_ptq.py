"""NNCF on the ONNX form, nothing set but how many samples there are."""

from __future__ import annotations

from pathlib import Path

from peers.feeding import samples


def static(folder: Path, out: Path) -> None:
    import nncf
    import onnx

    model = onnx.load(folder / "float.onnx")
    value = model.graph.input[0]
    shape = [axis.dim_value for axis in value.type.tensor_type.shape.dim]
    feeds = [{value.name: sample} for sample in samples(folder, shape)]
    onnx.save(nncf.quantize(model, nncf.Dataset(feeds), subset_size=len(feeds)), out)
