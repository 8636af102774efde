"""What a workspace makes once, and what it keeps of work that was interrupted."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from edgekit_converters.recipe.artifact import STATIC, recipe
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_converters.sources.load import load
from edgekit_converters.targets.workspace import Workspace
from edgekit_runtime.engines.registry import load_engine

pytestmark = pytest.mark.convert


class Counted:
    """Samples that remember how often they were read."""

    def __init__(self, images: np.ndarray) -> None:
        self._images, self.read = images, 0

    def __len__(self) -> int:
        return len(self._images)

    def __iter__(self):
        for image in self._images:
            self.read += 1
            yield [np.ascontiguousarray(image[None].transpose(0, 3, 1, 2))]


@pytest.fixture(scope="module")
def images(digits_model) -> np.ndarray:
    return np.load(digits_model.calibration)["x"][:60]


def test_an_interrupted_calibration_goes_on_and_gives_the_same_artifact(digits_onnx, images, tmp_path: Path) -> None:
    source, entry = load(digits_onnx), recipe("onnx-int8-qdq")

    def stop(stage: str, done: int, total: int | None) -> None:
        if stage == "ONNX calibration" and done == 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Workspace(source, Counted(images), stop, scratch=tmp_path).make(entry)
    assert [path.suffix for path in tmp_path.iterdir()] == [".unfinished"]
    seen: list[tuple[str, int]] = []
    later = Workspace(source, Counted(images), lambda stage, done, _: seen.append((stage, done)), scratch=tmp_path)
    artifact = later.make(entry)
    assert [done for stage, done in seen if stage == "ONNX calibration"] == list(range(41, 61))
    assert not list(tmp_path.iterdir())
    assert artifact.data == Workspace(source, Counted(images)).make(entry).data


def test_several_artifacts_need_one_conversion_and_one_calibration(digits_onnx, images) -> None:
    told: list[str] = []
    samples = Counted(images)
    workspace = Workspace(load(digits_onnx), samples, lambda stage, done, _: told.append(stage))
    workspace.statistics("onnx")
    read = samples.read
    for name in ("onnx-int8-qdq-symmetric", "onnx-int8-dynamic", "onnx-f32"):
        workspace.make(recipe(name))
    assert told.count("ONNX calibration") == len(images)
    assert told.count("ONNX conversion") == 1
    assert samples.read <= 2 * read  # rounding looks at them once more


def test_a_variant_for_several_items_gives_each_the_answer_it_gets_alone(digits_model, images) -> None:
    samples = [[image[None]] for image in images]
    workspace = Workspace(load(digits_model.model), samples)
    entry = recipe("tflite-int8")
    single, four = workspace.make(entry), workspace.make_batch(entry, STATIC, 4)
    assert four.inputs[0].shape == (4, *single.inputs[0].shape[1:])
    assert four.inputs[0].quantization == single.inputs[0].quantization
    given = np.random.default_rng(0).integers(-128, 128, four.inputs[0].shape, np.int8)
    with load_engine("tflite", single.data) as one, load_engine("tflite", four.data) as many:
        alone = [np.array(one.run([row[None]])[0]) for row in given]
        np.testing.assert_array_equal(many.run([given])[0], np.concatenate(alone))


def test_a_format_that_takes_any_batch_has_no_variants(digits_onnx, images) -> None:
    with pytest.raises(ConversionError, match="takes any batch"):
        Workspace(load(digits_onnx), Counted(images)).make_batch(recipe("onnx-f32"), STATIC, 4)


def test_two_formats_at_once_give_a_source_its_items_once(digits_onnx, images) -> None:
    class Slow(Counted):
        def __iter__(self):
            time.sleep(0.05)
            return super().__iter__()

    source = load(digits_onnx)
    workspace = Workspace(source, Slow(images))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(workspace._give_items, [source, source]))
    assert len(source.items) == len(source.inputs)
