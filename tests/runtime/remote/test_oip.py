"""The wire format: golden bytes, round trips, and a refusal for everything that does not add up."""

from __future__ import annotations

import contextlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from property_examples import examples

from edgekit_runtime.remote.oip import (
    DATATYPES,
    HEADER_LENGTH,
    InferResponse,
    Wire,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from edgekit_runtime.system.errors import WireError

GOLDEN_JSON = (
    b'{"id":"7","parameters":{"timeout":50000},'
    b'"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[1.0,-2.5,3.0]}]}'
)
GOLDEN_BINARY = (
    b'{"parameters":{"binary_data_output":true},"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32",'
    b'"parameters":{"binary_data_size":8}},{"name":"k","shape":[2],"datatype":"UINT8",'
    b'"parameters":{"binary_data_size":2}}]}'
)


def test_a_json_request_is_these_bytes():
    wire = encode_request({"x": np.array([[1, -2.5, 3]], "f4")}, binary=False, timeout_us=50_000, id="7")
    assert wire.body() == GOLDEN_JSON
    assert wire.headers == {"Content-Type": "application/json"}


def test_a_binary_request_is_these_bytes():
    wire = encode_request({"x": np.array([[1, -2]], "f4"), "k": np.array([7, 9], "u1")})
    padded = GOLDEN_BINARY + b" " * (-len(GOLDEN_BINARY) % 8)
    assert wire.body() == padded + struct.pack("<2f2B", 1, -2, 7, 9)
    assert wire.headers == {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(padded))}


def test_a_binary_answer_as_triton_writes_it():
    text = (
        b'{"model_name":"dbl","model_version":"1","outputs":[{"name":"y","datatype":"FP32","shape":[1,2],'
        b'"parameters":{"binary_data_size":8}}]}'
    )
    answer = decode_response(text + struct.pack("<2f", 2, 4), str(len(text)))
    assert (answer.model_name, answer.model_version) == ("dbl", "1")
    assert answer.outputs["y"].tolist() == [[2, 4]]


def test_an_answer_with_nulls_as_kserve_writes_it():
    text = (
        b'{"model_name":"m","model_version":null,"id":null,"parameters":null,'
        b'"outputs":[{"name":"y","shape":[1,2],"datatype":"FP32","parameters":null,"data":[2.0,4]}]}'
    )
    assert decode_response(text).outputs["y"].tolist() == [[2, 4]]


def test_big_endian_and_strided_arrays_travel_as_little_endian_in_c_order():
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    wire = encode_request({"x": array})
    assert bytes(wire.tensors[0]) == array.astype("<i4").tobytes()


def test_what_is_contiguous_already_is_not_copied():
    array = np.arange(6, dtype=np.float32)
    assert np.shares_memory(np.frombuffer(encode_request({"x": array}).tensors[0], np.uint8), array)


def test_the_first_tensor_is_looked_at_where_it_lies_and_an_unaligned_one_is_copied():
    wire = encode_request({"a": np.arange(3, dtype=np.uint8), "b": np.arange(4, dtype=np.float64)})
    body = bytearray(wire.body())
    inputs = decode_request(body, wire.headers[HEADER_LENGTH]).inputs
    whole = np.frombuffer(body, np.uint8)
    assert np.shares_memory(inputs["a"], whole)
    assert not np.shares_memory(inputs["b"], whole)
    assert all(a.flags.aligned and not a.flags.writeable for a in inputs.values())
    assert inputs["b"].tolist() == [0, 1, 2, 3]


def test_an_answer_can_carry_one_output_as_bytes_and_another_as_json():
    outputs = {"a": np.array([[1.5]], np.float16), "b": np.array([True, False])}
    wire = encode_response(InferResponse(outputs, "m", "1", id="q"), binary=["a"])
    back = decode_response(wire.body(), wire.headers[HEADER_LENGTH])
    assert (back.model_name, back.id) == ("m", "q")
    assert json.loads(wire.json)["outputs"][1]["data"] == [True, False]
    assert back.outputs["a"].dtype == np.float16
    assert back.outputs["b"].tolist() == [True, False]


def test_outputs_may_be_asked_for_one_by_one():
    head = {
        "inputs": [{"name": "x", "shape": [1], "datatype": "UINT8", "data": [1]}],
        "outputs": [{"name": "a", "parameters": {"binary_data": False}}, {"name": "b"}],
        "parameters": {"binary_data_output": True},
    }
    request = decode_request(json.dumps(head).encode())
    assert request.outputs == ("a", "b")
    assert (request.wants_binary("a"), request.wants_binary("b")) == (False, True)


def test_a_timeout_of_nothing_is_no_timeout():
    assert decode_request(Wire(_json()).body()).timeout_us is None
    assert decode_request(_json(parameters={"timeout": 0})).timeout_us is None
    assert decode_request(_json(parameters={"timeout": 12})).timeout_us == 12


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2], [3, 4]]])
def test_json_data_is_flat_or_nested_as_the_shape_says(data):
    assert decode_request(_json(shape=[2, 2], data=data)).inputs["x"].tolist() == [[1, 2], [3, 4]]


def _json(**changes) -> bytes:
    parameters = changes.pop("parameters", None)
    tensor = {"name": "x", "shape": [2], "datatype": "UINT8", "data": [1, 2]} | changes
    head = {"inputs": [tensor]} | ({"parameters": parameters} if parameters else {})
    return json.dumps(head).encode()


WRONG_JSON = {
    "no JSON": (b"\x00\x01", "not JSON"),
    "bad UTF-8": (b'{"id":"\xff"}', "not JSON"),
    "lists a million deep": (b"[" * 1_000_000, "not JSON"),
    "a number of five thousand digits": (b'{"id":' + b"9" * 5000 + b"}", "not JSON"),
    "a list": (b"[]", "not an object"),
    "no inputs": (b"{}", "'inputs' is missing"),
    "no input": (b'{"inputs":[]}', "'inputs' is missing or empty"),
    "an input that is a number": (b'{"inputs":[3]}', "not a JSON object"),
    "no name": (b'{"inputs":[{"shape":[1]}]}', "has no name"),
    "a name that is a number": (_json(name=3), "'name' is not a string"),
    "a name without end": (_json(name="x" * 5000), "longer than"),
    "no shape": (_json(shape=None), "the shape is not a list"),
    "a shape of text": (_json(shape=["2"]), "the shape is not a list"),
    "a negative size": (_json(shape=[-1]), "the shape is not a list"),
    "a size that is true": (_json(shape=[True]), "the shape is not a list"),
    "a size of a thousand digits": (_json(shape=[10**1000]), "the shape is not a list"),
    "too many axes": (_json(shape=[1] * 17), "at most 16"),
    "a shape no memory holds": (_json(shape=[2**40, 2**40]), "too large"),
    "a shape of nothing times too much": (_json(shape=[0, 2**61], data=[]), "too large"),
    "an unknown datatype": (_json(datatype="FP8"), "unknown datatype 'FP8'"),
    "a datatype that is a list": (_json(datatype=["FP32"]), "unknown datatype"),
    "strings": (_json(datatype="BYTES", data=["a", "b"]), "BYTES is not supported"),
    "half floats as JSON": (_json(datatype="FP16"), "no JSON form"),
    "too few values": (_json(data=[1]), "takes 2 values, 1 were sent"),
    "too many values": (_json(data=[1, 2, 3]), "takes 2 values, 3 were sent"),
    "no data": (_json(data=None), "not a list"),
    "data that is a number": (_json(data=3), "not a list"),
    "data nested otherwise": (_json(shape=[2, 2], data=[[1, 2, 3], [4]]), "does not follow the shape at axis 1"),
    "data nested in part": (_json(shape=[2, 2], data=[[1, 2], 3]), "does not follow the shape"),
    "data nested too deep": (_json(data=[[1], [2]]), "is not UINT8"),
    "text for a number": (_json(data=["1", "2"]), "is not UINT8"),
    "a float for a whole number": (_json(data=[1.0, 2]), "is not UINT8"),
    "a number for a truth": (_json(datatype="BOOL", data=[0, 1]), "is not BOOL"),
    "a truth for a number": (_json(data=[True, 1]), "is not UINT8"),
    "out of range": (_json(data=[1, 256]), "out of UINT8's range"),
    "below zero": (_json(datatype="UINT64", data=[-1, 0]), "out of UINT64's range"),
    "beyond 64 bits": (_json(datatype="INT64", data=[2**63, 0]), "out of INT64's range"),
    "too large for FP32": (_json(datatype="FP32", data=[1e300, 0]), "too large"),
    "too large for any float": (_json(datatype="FP64", data=[10**400, 0]), "too large"),
    "shared memory": (_json().replace(b'"name"', b'"parameters":{"shared_memory_region":"r"},"name"'), "shared memory"),
    "a timeout of text": (_json(parameters={"timeout": "5"}), "'timeout' is not an integer"),
    "a timeout in the past": (_json(parameters={"timeout": -5}), "not a number of microseconds"),
    "outputs that are text": (b'{"outputs":"a",' + _json()[1:], "'outputs' is not a list"),
    "a classification": (
        b'{"outputs":[{"name":"y","parameters":{"classification":3}}],' + _json()[1:], "classification",
    ),
    "too many inputs": (json.dumps({"inputs": [{}] * 65}).encode(), "too many"),
    "one input twice": (json.dumps({"inputs": json.loads(_json())["inputs"] * 2}).encode(), "duplicate tensor"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "why"), WRONG_JSON.values(), ids=WRONG_JSON.keys())
def test_json_that_does_not_add_up_is_refused(body, why):
    with pytest.raises(WireError, match=why.replace("(", r"\(")):
        decode_request(body)


def _binary(size=8, datatype="FP32", shape=(2,), tail=b"\0" * 8) -> tuple[bytes, str]:
    entry = {"name": "x", "shape": list(shape), "datatype": datatype, "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [entry]}).encode()
    return text + tail, str(len(text))


WHOLE, LENGTH = _binary()
WRONG_BINARY = {
    "a length that is no number": (WHOLE, "many", "says that the JSON takes"),
    "a negative length": (WHOLE, "-1", "says that the JSON takes"),
    "a length of nothing": (WHOLE, "0", "says that the JSON takes"),
    "a length beyond the body": (WHOLE, str(len(WHOLE) + 1), "says that the JSON takes"),
    "a length of a thousand digits": (WHOLE, "9" * 1000, "says that the JSON takes"),
    "a length in other digits": (WHOLE, "\u0663", "says that the JSON takes"),
    "a length that is too short": (WHOLE, str(int(LENGTH) - 1), "not JSON"),
    "a length that is too long": (WHOLE, str(int(LENGTH) + 1), "not JSON"),
    "no length": (WHOLE, None, "not JSON"),
    "a tensor cut short": (WHOLE[:-1], LENGTH, "says 8 bytes, 7 are there"),
    "no tensor at all": (WHOLE[:-8], LENGTH, "says 8 bytes, 0 are there"),
    "bytes left over": (WHOLE + b"\0", LENGTH, "1 bytes are left over"),
    "a size that lies": (*_binary(size=4), r"takes 8 bytes, 4 were sent"),
    "a negative size": (*_binary(size=-8), "says -8 bytes"),
    "a size of text": (*_binary(size="8"), "not an integer"),
    "a size that is true": (*_binary(size=True), "not an integer"),
    "strings": (*_binary(datatype="BYTES"), "BYTES is not supported"),
    "an unknown datatype": (*_binary(datatype=None), "unknown datatype None"),
    "a truth of two": (*_binary(size=2, datatype="BOOL", tail=b"\1\2"), "one byte, 0 or 1"),
    "a shape no memory holds": (*_binary(shape=(2**61, 4)), "too large"),
}


@pytest.mark.parametrize(("body", "length", "why"), WRONG_BINARY.values(), ids=WRONG_BINARY.keys())
def test_binary_that_does_not_add_up_is_refused(body, length, why):
    with pytest.raises(WireError, match=why):
        decode_request(body, length)


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.array(["a"]), "has no datatype in the protocol"),
        (np.array([1j]), "has no datatype in the protocol"),
        (np.array([np.nan], np.float32), "NaN and infinity"),
        (np.array([1], np.float16), "FP16 has no JSON form"),
    ],
)
def test_what_json_cannot_carry_is_refused_before_it_is_sent(array, why):
    with pytest.raises(WireError, match=why):
        encode_request({"x": array}, binary=False)


arrays = st.sampled_from(sorted(DATATYPES)).flatmap(
    lambda name: hnp.arrays(DATATYPES[name], hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)
tensors = st.dictionaries(st.text(min_size=1, max_size=8), arrays, min_size=1, max_size=4)


def _same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert (a[name].dtype, a[name].shape) == (b[name].dtype, b[name].shape)
        assert a[name].tobytes() == b[name].tobytes()


@given(tensors, st.none() | st.integers(1, 2**40), st.none() | st.text(max_size=20))
def test_binary_round_trips_bit_for_bit(given_tensors, timeout_us, name):
    wire = encode_request(given_tensors, timeout_us=timeout_us, id=name)
    request = decode_request(wire.body(), wire.headers.get(HEADER_LENGTH))
    _same(given_tensors, request.inputs)
    assert (request.timeout_us, request.id) == (timeout_us, name)
    wire = encode_response(InferResponse(given_tensors, "m", "1"), binary=list(given_tensors))
    _same(given_tensors, decode_response(wire.body(), wire.headers.get(HEADER_LENGTH)).outputs)


@given(tensors)
def test_json_round_trips_bit_for_bit(given_tensors):
    kept = {n: a for n, a in given_tensors.items() if a.dtype.itemsize != 2 or a.dtype.kind != "f"}
    kept = {n: np.nan_to_num(a, nan=0, posinf=1, neginf=-1) if a.dtype.kind == "f" else a for n, a in kept.items()}
    if kept:
        _same(kept, decode_request(encode_request(kept, binary=False).body()).inputs)


def _decoded_or_refused(body: bytes, length: str | None) -> None:
    for decode in (decode_request, decode_response):
        with contextlib.suppress(WireError):
            decode(body, length)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
entries = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("x") | json_values,
        "shape": st.lists(st.integers(0, 4), max_size=3) | json_values,
        "datatype": st.sampled_from([*DATATYPES, "BYTES"]) | json_values,
        "data": st.lists(st.integers(0, 300) | st.floats(), max_size=8) | json_values,
        "parameters": st.fixed_dictionaries({"binary_data_size": st.integers(-1, 20) | json_values}) | json_values,
    },
)


@settings(max_examples=examples(300))
@given(
    st.fixed_dictionaries(
        {}, optional={k: st.lists(entries, max_size=3) | json_values for k in ("inputs", "outputs", "parameters", "id")}
    ),
    st.binary(max_size=24),
    st.booleans(),
)
def test_whatever_json_comes_nothing_but_our_error_is_raised(head, tail, says_length):
    text = json.dumps(head).encode()
    _decoded_or_refused(text + tail, str(len(text)) if says_length else None)


@settings(max_examples=examples(300))
@given(st.binary(max_size=200), st.none() | st.text(max_size=5) | st.integers(0, 200).map(str))
def test_whatever_bytes_come_nothing_but_our_error_is_raised(body, length):
    _decoded_or_refused(body, length)


@settings(max_examples=examples(300))
@given(st.data())
def test_a_damaged_message_is_decoded_or_refused(data):
    array = np.arange(6).reshape(1, 6).astype(data.draw(st.sampled_from(["u1", "<f4", "?", "<i8"])))
    wire = encode_request({"x": array, "y": array}, binary=data.draw(st.booleans()))
    body = bytearray(wire.body())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        if data.draw(st.booleans()):
            body[at] = data.draw(st.integers(0, 255))
        else:
            del body[at:]
        if not body:
            break
    _decoded_or_refused(bytes(body), wire.headers.get(HEADER_LENGTH))
