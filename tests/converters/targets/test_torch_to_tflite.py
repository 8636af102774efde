"""TFLite from a `.pt2`, where litert-torch is installed; where it is not, the command that adds it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit_converters.recipe.conversion_errors import MissingToolsError
from edgekit_converters.sources.load import load
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.targets import onnx_to_tf
from edgekit_converters.targets import tflite_float as tflite
from edgekit_converters.targets import tflite_float as torch_to_tflite
from edgekit_runtime.engines.registry import load_engine

torch = pytest.importorskip("torch", reason="the 'torch' extra is not installed: make test-torch")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.convert
with_litert_torch = pytest.mark.skipif(not torch_to_tflite.available(), reason="needs the torch-tflite extra")


def residual():
    """As torchvision writes them: batch normalization, a shortcut with a stride, a maximum and a mean, a dense head."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, before, after):
            super().__init__()
            self.first, self.norm = nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after)
            self.second, self.again = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, 2, bias=False), nn.BatchNorm2d(after))

        def forward(self, x):
            return torch.relu(self.again(self.second(torch.relu(self.norm(self.first(x))))) + self.short(x))

    torch.manual_seed(0)
    stem = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    return nn.Sequential(
        *stem, Block(8, 16), Block(16, 24), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5)
    ).eval()


@pytest.fixture(scope="module")
def pt2(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("residual") / "net.pt2"
    batch = torch.export.Dim("batch", min=1, max=64)
    torch.export.save(torch.export.export(residual(), (torch.randn(2, 3, 32, 32),), dynamic_shapes=({0: batch},)), path)
    return path


@with_litert_torch
@pytest.mark.parametrize("batch", [1, 4])
def test_a_residual_network_gives_torchs_answers_with_its_pictures_in_nhwc(pt2, batch, monkeypatch):
    monkeypatch.setenv("EDGEKIT_ISOLATE", "off")
    source = load(pt2, LoadOptions())
    made = tflite.float_model(source, batch=batch)
    assert made.transposed == {source.inputs[0].name}
    assert made.transposes == 0
    assert "litert-torch" in made.tools
    pixels = np.random.default_rng(0).random((batch, 3, 32, 32), np.float32)
    with load_engine("tflite", made.data) as engine:
        [answer] = engine.run([np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))])
    [wanted] = source.predict([pixels])
    np.testing.assert_allclose(answer, wanted, atol=1e-4)


@with_litert_torch
def test_one_build_gives_tflite_int8_of_a_pt2(pt2, tmp_path, edgekit):
    np.save(tmp_path / "calibration.npy", np.random.default_rng(1).random((64, 3, 32, 32), np.float32))
    (tmp_path / "net.contract.toml").write_text('task = "raw"\n')
    ran = edgekit(
        *("build", pt2, "--contract", tmp_path / "net.contract.toml", "--profile", "raspberry-pi-4"),
        *("--calibration", tmp_path / "calibration.npy", "--recipe", "tflite-int8", "--max-drop", "100%"),
        *("--repair-budget", "0", "--json"),
    )  # in the sandbox that opens untrusted models
    assert ran.code == 0, ran.out
    assert ran.json["bundles"][0]["recipe"] in ("tflite-int8", "tflite-int8-mixed")  # seeded weights may want a repair
    made = ran.json["candidates"][0]
    assert "litert-torch" in made["tools"]
    assert made["fidelity"]["quantized_macs"] == 1.0
    named = {layer["layer"]: layer["op"].lower() for layer in made["layers"]}
    assert all(name.startswith((f"{op}_", "serving_default")) for name, op in named.items())


def test_without_litert_torch_the_error_names_the_command(pt2, monkeypatch):
    monkeypatch.setattr(torch_to_tflite, "available", lambda: False)
    monkeypatch.setattr(onnx_to_tf, "available", lambda: False)
    monkeypatch.setenv("EDGEKIT_ISOLATE", "off")
    with pytest.raises(MissingToolsError, match="'torch-tflite' extra") as raised:
        tflite.float_model(load(pt2, LoadOptions()))
    assert "torch-tflite]'" in raised.value.do
