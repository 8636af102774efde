"""What the original raises on an item, said of the item."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from linear import Linear, linear

from edgekit_converters.data.describe_contract import describe
from edgekit_converters.data.open import open_dataset
from edgekit_converters.fidelity.reference import check_answerable, reason, reference
from edgekit_converters.recipe.conversion_errors import CalibrationError, SourceError
from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.system.errors import EngineError

TENSORFLOW = (
    "Graph execution error:\n\nDetected at node functional/GatherV2 defined at (most recent call last):\n"
    '  File "/somewhere/main.py", line 8, in <module>\n\nindices[0,3] = 7 is not in [0, 5)\n'
    "\t [[{{node functional/GatherV2}}]] [Op:__inference_function_1]"
)
ONNX = (
    "the inference failed: [ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while running "
    "Gather node. Name:'' Status Message: indices element out of data bounds, idx=7 must be within the inclusive "
    "range [-5,4]"
)


@dataclass(frozen=True)
class Picky(Linear):
    """Fails on a batch that holds a 7."""

    error: Exception | None = None

    def predict(self, inputs):
        if (np.asarray(inputs[0]) == 7).any():
            raise self.error
        return super().predict(inputs)


def picky(error):
    source = Picky(**vars(linear((-1, 4), 3)), error=error)
    return replace(source, inputs=(TensorSpec("x", "x", "int32", (-1, 4)),))


@pytest.fixture
def ids(tmp_path):
    def write(source, wrong=11):
        values = np.zeros((40, 4), np.int32)
        values[wrong:, 2] = 7
        np.save(tmp_path / "ids.npy", values)
        return open_dataset(tmp_path / "ids.npy", describe(source, None))

    return write


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError(TENSORFLOW), "7 is not in 0 to 4, which is what the model has an entry for"),
        (EngineError(ONNX, where="onnxruntime"), "7 is not in 0 to 4, which is what the model has an entry for"),
        (IndexError("index out of range in self"), "the original model fails on it: index out of range in self"),
        (ValueError(), "the original model fails on it: ValueError"),
    ],
    ids=["tensorflow", "onnxruntime", "torch", "without a word"],
)
def test_an_item_that_the_original_fails_on_is_named_with_the_reason_in_one_line(ids, error, said):
    source = picky(error)
    with pytest.raises(CalibrationError) as caught:
        reference(source, describe(source, None), ids(source))
    assert caught.value.where.endswith("ids.npy, item 11")
    assert caught.value.what == said
    assert caught.value.do
    assert "\n" not in str(caught.value)


def test_the_calibration_set_is_asked_too_where_inputs_are_whole_numbers(ids):
    source = picky(RuntimeError(TENSORFLOW))
    with pytest.raises(CalibrationError, match="item 35: 7 is not in 0 to 4"):
        check_answerable(source, describe(source, None), ids(source, wrong=35))
    floating = linear((-1, 4), 3)
    check_answerable(floating, describe(floating, None), None)  # not even read


@pytest.mark.parametrize("error", [MemoryError("112 GiB"), SourceError("the file changed")])
def test_what_is_no_items_fault_stays_what_it_is(ids, error):
    source = picky(error)
    with pytest.raises(type(error)) as caught:
        reference(source, describe(source, None), ids(source))
    assert caught.value is error


def test_a_reason_has_neither_stack_nor_node_names():
    assert reason(RuntimeError(TENSORFLOW)) == "indices[0,3] = 7 is not in [0, 5)"
    assert len(reason(RuntimeError("x" * 9000))) < 300
