"""What a caller passes comes by name, fits, and is the caller's own memory no more once it is owned."""

from __future__ import annotations

import io

import numpy as np
import pytest

from edgekit_runtime.contract.geometry import Geometry
from edgekit_runtime.contract.spec import Contract, ImageSpec, InputContract, OutputContract, Quantization, TensorSpec
from edgekit_runtime.serving.request import Intake, own
from edgekit_runtime.system.errors import InputError

A, B = InputContract("a", (2,), "float32"), InputContract("b", (3,), "float32")
OUTPUT = OutputContract("y", (2,), "float32")
ONE, TWO = np.zeros(2, np.float32), np.zeros(3, np.float32)


def intake(*inputs, task="raw", tensors=()):
    return Intake(Contract(task, inputs, (OUTPUT,)), tensors)


@pytest.mark.parametrize(
    ("inputs", "given", "found"),
    [
        ((A,), ONE, ["a"]),
        ((A,), ONE[None], ["a"]),
        ((A,), {"a": ONE}, ["a"]),
        ((A, B), {"b": TWO, "a": ONE}, ["a", "b"]),
    ],
    ids=["as it is", "with a batch axis", "by name", "several"],
)
def test_an_input_is_taken(inputs, given, found):
    named = intake(*inputs).take(given)
    items, geometry = intake(*inputs).decode(named)
    assert sorted(items) == found
    assert [items[name].shape for name in found] == [spec.shape for spec in inputs]
    assert geometry is None


@pytest.mark.parametrize(
    ("inputs", "given", "told"),
    [
        ((A, B), ONE, "the model has 2 inputs.*Pass a dict with a, b"),
        ((A, B), {"a": ONE}, "the input 'b' is missing"),
        ((A,), {"a": ONE, "c": ONE}, "unknown input 'c'.*Inputs: a"),
        ((A,), TWO, r"shape \[3\] does not fit"),
        ((A,), io.StringIO("1, 2"), "an open file is not an input"),
    ],
    ids=["several without names", "missing", "unknown", "another shape", "an open file"],
)
def test_what_cannot_fit_is_refused_before_it_is_decoded(inputs, given, told):
    with pytest.raises(InputError, match=told):
        intake(*inputs).take(given)


def test_an_array_that_the_artifact_takes_as_it_is_is_the_callers_own():
    ready = np.array([1, -1], np.int8)
    tensor = TensorSpec("a", "t", "int8", (1, 2), None, Quantization(0.1, 0))
    taking = intake(A, tensors=[tensor])
    assert taking.decode(taking.take(ready))[0]["a"] is ready


def test_where_a_picture_lies_is_asked_for_a_detector_alone():
    picture = InputContract("image", (4, 4, 3), "float32", image=ImageSpec(4, 4, (0.0,), (1.0,)))
    pixels = np.zeros((4, 4, 3), np.uint8)
    finding, naming = intake(picture, task="detection"), intake(picture, task="classification")
    assert finding.placed
    assert finding.decode({"image": pixels})[1] == finding.locate({"image": pixels}) == Geometry(4, 4)
    assert not naming.placed
    assert naming.decode({"image": pixels})[1] is None


def test_what_is_owned_shares_no_memory_with_what_was_passed():
    other = np.ones(2, np.float32)
    first, second = own([ONE[None], other], {"a": ONE})
    assert not np.may_share_memory(first, ONE)
    assert second is other
