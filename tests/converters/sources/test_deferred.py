"""A source that is described without being opened."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.recipe.store import NO_STORE, DiskStore
from edgekit_converters.sources.load import DeferredSource, actual, open_source
from edgekit_converters.sources.load_options import LoadOptions


@pytest.mark.convert
def test_a_second_opening_knows_the_model_and_opens_it_when_asked(digits_model, tmp_path):
    store = DiskStore(tmp_path)
    first = open_source(digits_model.model, LoadOptions(), store)
    second = open_source(digits_model.model, LoadOptions(), store)
    assert not isinstance(first, DeferredSource)
    assert isinstance(second, DeferredSource)
    for name in ("path", "format", "sha256", "inputs", "outputs", "state", "notes"):
        assert getattr(second, name) == getattr(first, name)
    batch = np.zeros((2, 8, 8, 1), np.float32)
    np.testing.assert_array_equal(second.predict([batch])[0], first.predict([batch])[0])
    assert actual(second) is actual(second)
    assert actual(first) is first


@pytest.mark.convert
def test_other_bytes_or_options_are_another_model(digits_model, tmp_path):
    store = DiskStore(tmp_path / "store")
    open_source(digits_model.model, LoadOptions(), store)
    other = tmp_path / "other.keras"
    other.write_bytes(digits_model.model.read_bytes()[:-1])
    with pytest.raises(SourceError):
        open_source(other, LoadOptions(), store)
    trusted = open_source(digits_model.model, LoadOptions(trust_model=True), store)
    assert not isinstance(trusted, DeferredSource)


@pytest.mark.parametrize("name", ["absent.keras", "absent.onnx", "folder"])
def test_what_is_no_model_is_said_by_the_reader(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(SourceError, match=name):
        open_source(tmp_path / name, LoadOptions(), NO_STORE)


@pytest.mark.convert
def test_a_model_that_is_replaced_before_it_is_opened_is_not_taken_for_the_one_that_was_described(
    digits_model, tmp_path
):
    store = DiskStore(tmp_path / "store")
    path = tmp_path / "net.keras"
    path.write_bytes(digits_model.model.read_bytes())
    open_source(path, LoadOptions(), store)
    described = open_source(path, LoadOptions(), store)
    assert isinstance(described, DeferredSource)
    import keras

    image = keras.Input((8, 8, 1))
    keras.Model(image, keras.layers.Flatten()(image)).save(path)
    for _ in range(2):  # also where the first refusal was passed over
        with pytest.raises(SourceError, match="changed while it was read"):
            actual(described)
    assert open_source(path, LoadOptions(), store).outputs[0].shape == (-1, 64)
