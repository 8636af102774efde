"""ai-edge-quantizer on the float TFLite form: its ready recipes, calibration samples in the order given."""

from __future__ import annotations

from pathlib import Path

from peers.feeding import samples


def static(folder: Path, out: Path) -> None:
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import quantizer, recipe

    model = str(folder / "float.tflite")
    runner = Interpreter(model).get_signature_runner()
    (name, details), *_ = runner.get_input_details().items()
    feeds = [{name: sample} for sample in samples(folder, tuple(details["shape"]))]
    tool = quantizer.Quantizer(model, recipe.static_wi8_ai8())
    tool.quantize(tool.calibrate({"serving_default": feeds})).export_model(str(out), overwrite=True)


def dynamic(folder: Path, out: Path) -> None:
    from ai_edge_quantizer import quantizer, recipe

    tool = quantizer.Quantizer(str(folder / "float.tflite"), recipe.dynamic_wi8_afp32())
    tool.quantize().export_model(str(out), overwrite=True)
