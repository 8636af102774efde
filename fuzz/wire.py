"""The Open Inference Protocol's bodies, and the head of an HTTP request.

An input of `request` and `response` is the value of the header that says how long the JSON is, a line end, and the
body.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import numpy as np

from edgekit.host.http1 import HttpLimits, RequestError, body_length, parse_head
from edgekit_runtime.remote.oip import (
    InferResponse,
    Wire,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from edgekit_runtime.system.errors import WireError
from fuzz.octets import altered
from fuzz.target import Target
from fuzz.trees import changed, spelt


def _split(data: bytes) -> tuple[str | None, bytes]:
    head, mark, body = data.partition(b"\n")
    if not mark:
        return None, data
    text = head.decode("latin-1")
    return (None if text == "-" else text), body


def _read_request(data: bytes) -> None:
    header, body = _split(data)
    found = decode_request(body, header)
    _same(
        found.inputs,
        lambda wire: decode_request(wire.body(), wire.headers.get("Inference-Header-Content-Length")).inputs,
    )
    for name in found.outputs:
        assert found.wants_binary(name) in (True, False)
    assert found.timeout_us is None or found.timeout_us > 0


def _read_response(data: bytes) -> None:
    header, body = _split(data)
    found = decode_response(body, header)
    wire = encode_response(
        InferResponse(found.outputs, found.model_name, found.model_version), binary=tuple(found.outputs)
    )
    again = decode_response(wire.body(), wire.headers.get("Inference-Header-Content-Length"))
    assert all(
        np.array_equal(again.outputs[name], array, equal_nan=array.dtype.kind == "f")
        for name, array in found.outputs.items()
    )


def _same(arrays: Any, through: Callable[[Wire], Any]) -> None:
    """What was read and is written again is the same when it is read again; nothing of it can be written to."""
    again = through(encode_request(arrays, binary=True))
    for name, array in arrays.items():
        assert not array.flags.writeable
        assert np.array_equal(again[name], array, equal_nan=array.dtype.kind == "f")


@cache
def _tensors() -> dict[str, np.ndarray[Any, Any]]:
    return {
        "image": np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3),
        "memory": np.array([[0.5, -1.5]], np.float32),
        "flag": np.array([True, False]),
        "index": np.array([-1, 2**40], np.int64),
        "none": np.zeros((0, 3), np.float64),
    }


def _framed(wire: Wire) -> bytes:
    return wire.headers.get("Inference-Header-Content-Length", "-").encode() + b"\n" + wire.body()


@cache
def _requests() -> Sequence[bytes]:
    some = {name: _tensors()[name] for name in ("image", "memory")}
    return [
        _framed(encode_request(_tensors(), binary=True, timeout_us=50_000, id="7")),
        _framed(encode_request(some, binary=False, parameters={"model": "net"})),
        _framed(encode_request({"x": np.array([[1.5]], np.float16)}, binary=True)),
        b'-\n{"inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[[1,2],[3,4.5]]}],'
        b'"outputs":[{"name":"y","parameters":{"binary_data":true}}]}',
    ]


@cache
def _responses() -> Sequence[bytes]:
    answer = InferResponse(_tensors(), "net", "1", "7", {"took_ms": 3})
    return [_framed(encode_response(answer, binary=tuple(_tensors()))), _framed(encode_response(answer))]


def _mutate(data: bytes, random: Random) -> bytes:
    header, body = _split(data)
    try:
        end = len(body) if header is None else int(header)
        value = json.loads(body[:end])
    except (ValueError, RecursionError):
        return altered(data, random)
    if random.random() < 0.15:
        return altered(data, random)
    rest = body[max(end, 0) :]
    if random.random() < 0.2:
        rest = altered(rest, random)
    else:
        value = changed(value, random)
    text = spelt(value, random)
    length = str(len(text)) if header is not None else "-"
    if random.random() < 0.05:
        length = random.choice(("-1", "0", "1e3", " 5 ", "٣", "9" * 30, str(len(text) + 8), ""))
    return length.encode() + b"\n" + text + rest


def _read_http(data: bytes) -> None:
    limits = HttpLimits()
    head = parse_head(data, limits)
    length = body_length(head, limits)
    assert 0 <= length <= limits.body_bytes
    assert all("\r" not in value and "\n" not in value and "\0" not in value for value in head.headers.values())
    assert all(segment not in ("",) or True for segment in head.segments)


@cache
def _heads() -> Sequence[bytes]:
    return [
        b"POST /v2/models/net/infer HTTP/1.1\r\nHost: box:8080\r\nContent-Length: "
        b"12\r\nInference-Header-Content-Length: 10\r\nConnection: keep-alive",
        b"GET /v2/models/a%20b/ready?x=1 HTTP/1.0\r\nhost: h\r\nExpect: 100-continue",
        b"GET http://box/metrics HTTP/1.1\r\nHost: box\r\nAuthorization: Bearer x",
    ]


_PIECES = (b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"\r\n ", b"Content-Length: 5", b"content-length: +5",
    b"Transfer-Encoding: chunked", b"%2e%2e/", b"%", b"%zz", b"//", b"HTTP/1.1", b"\xff")  # fmt: skip


def _mutate_http(data: bytes, random: Random) -> bytes:
    if random.random() < 0.5:
        return altered(data, random)
    at = random.randrange(len(data) + 1)
    return data[:at] + random.choice(_PIECES) * random.choice((1, 1, 1, 2, 70)) + data[at:]


def request() -> Target:
    return Target("request", _read_request, (WireError,), _requests, _mutate, 1 << 14)


def response() -> Target:
    return Target("response", _read_response, (WireError,), _responses, _mutate, 1 << 14)


def http() -> Target:
    return Target("http", _read_http, (RequestError,), _heads, _mutate_http, 1 << 15)
