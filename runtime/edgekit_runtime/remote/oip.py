"""Open Inference Protocol v2: requests and answers as JSON, or with binary tensors.

    wire = encode_request({"image": pixels}, binary=True, timeout_us=50_000)
    request = decode_request(body, wire.headers.get(HEADER_LENGTH))     # request.inputs["image"], read-only

A body is JSON, or JSON followed by the tensors' bytes (little-endian, C order, in the JSON's order). Then the header
`Inference-Header-Content-Length` gives the JSON's length, and the parameter `binary_data_size` each tensor's.

Rules:
- every byte of a body is accounted for: a wrong header, a short tensor and bytes left over are each a WireError, and
  nothing else is raised, whatever the bytes;
- sizes, types and ranges are checked before NumPy sees a value; decoded arrays are read-only and in C order;
- binary data starts at a multiple of 8 bytes (the JSON is padded with spaces), so the first tensor needs no copy;
- BYTES is refused: no model here takes strings. FP16, NaN and infinity have no JSON form.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.system.errors import WireError, shorten
from edgekit_runtime.system.strict_json import JsonSizeError, compact_json, load_json

DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
_NAMES = {(dtype.kind, dtype.itemsize): name for name, dtype in DATATYPES.items()}
_JSON_TYPES: dict[str, set[type]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}

MAX_DIMS = 16
_MAX_BYTES = 2**40
"""Far above any body that is read; keeps the arithmetic on shapes within NumPy's."""


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The protocol's name of a dtype. Raises WireError if it has none."""
    name = _NAMES.get((dtype.kind, dtype.itemsize))
    if name is None:
        raise WireError(f"dtype {dtype} has no datatype in the protocol", do=f"Datatypes: {', '.join(DATATYPES)}")
    return name


def dtype_of(datatype: object, where: str) -> np.dtype[Any]:
    """Raises WireError for an unknown or unsupported datatype."""
    dtype = DATATYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        unknown = f"unknown datatype {shorten(repr(datatype), 40)}"
        what = "datatype BYTES is not supported" if datatype == "BYTES" else unknown
        raise WireError(what, where=where, do=f"Datatypes: {', '.join(DATATYPES)}")
    return dtype


def to_bytes(array: NDArray[Any]) -> memoryview:
    """The array's values in C order, little-endian; a copy only if needed."""
    dtype = DATATYPES[datatype_of(array.dtype)]
    ready = np.ascontiguousarray(array, dtype)
    return ready.reshape(-1).view(np.uint8).data


def from_bytes(data: memoryview, datatype: object, shape: tuple[int, ...], where: str) -> NDArray[Any]:
    """data: exactly the tensor's bytes. Raises WireError for too many or too few."""
    dtype = dtype_of(datatype, where)
    wanted = count_of(shape, dtype, where) * dtype.itemsize
    if len(data) != wanted:
        raise WireError(f"{datatype} {list(shape)} takes {wanted} bytes, {len(data)} were sent", where=where)
    if dtype.kind == "b" and len(data) and np.frombuffer(data, np.uint8).max() > 1:
        raise WireError("a BOOL is one byte, 0 or 1", where=where)
    array = np.frombuffer(data, dtype) if len(data) else np.empty(0, dtype)
    if not array.flags.aligned:
        array = array.copy()
    return _read_only(array, shape)


def to_json(array: NDArray[Any], where: str) -> list[Any]:
    """A flat list. Raises WireError for values without a JSON form."""
    if array.dtype.kind == "f":
        if array.dtype.itemsize == 2:
            raise WireError("FP16 has no JSON form", where=where, do="Send it as binary, or as FP32")
        if not np.isfinite(array).all():
            raise WireError("NaN and infinity have no JSON form", where=where, do="Ask for binary data")
    values: list[Any] = array.reshape(-1).tolist()
    return values


def from_json(data: object, datatype: object, shape: tuple[int, ...], where: str) -> NDArray[Any]:
    """data: a flat list, or lists nested as the shape says. Raises WireError."""
    dtype = dtype_of(datatype, where)
    if datatype == "FP16":
        raise WireError("FP16 has no JSON form", where=where, do="Send it as binary, or as FP32")
    count = count_of(shape, dtype, where)
    flat = _flat(data, shape, where)
    if len(flat) != count:
        raise WireError(f"shape {list(shape)} takes {count} values, {len(flat)} were sent", where=where)
    if not set(map(type, flat)) <= _JSON_TYPES[dtype.kind]:
        raise WireError(f"a value in the data is not {datatype}", where=where)
    if dtype.kind in "ui" and flat:
        limits = np.iinfo(dtype)
        if min(flat) < limits.min or max(flat) > limits.max:
            raise WireError(f"a value in the data is out of {datatype}'s range", where=where)
    return _read_only(_floats(flat, dtype, where) if dtype.kind == "f" else np.array(flat, dtype), shape)


def count_of(shape: tuple[int, ...], dtype: np.dtype[Any], where: str) -> int:
    """How many values; raises WireError for shapes that no array can have."""
    if math.prod(max(n, 1) for n in shape) * dtype.itemsize > _MAX_BYTES:
        raise WireError(f"shape {list(shape)} is too large", where=where)
    return math.prod(shape)


def _flat(data: object, shape: tuple[int, ...], where: str) -> Sequence[Any]:
    if not isinstance(data, list):
        raise WireError("the data is not a list", where=where)
    if len(shape) < 2 or not any(isinstance(v, list) for v in data):
        return data
    level: list[Any] = data
    for axis, length in enumerate(shape[1:], 1):
        if not all(isinstance(v, list) and len(v) == length for v in level):
            raise WireError(f"the nested data does not follow the shape at axis {axis}", where=where)
        level = list(chain.from_iterable(level))
    return level


def _floats(flat: Sequence[Any], dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    try:
        wide = np.array(flat, np.float64)
    except OverflowError as error:
        raise WireError("a value in the data is too large", where=where) from error
    with np.errstate(over="ignore"):
        array = wide.astype(dtype)
    if np.isinf(array).any():  # 1e999 is JSON
        raise WireError("a value in the data is too large", where=where)
    return array


def _read_only(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    array = array.reshape(shape)
    array.flags.writeable = False
    return array


HEADER_LENGTH = "Inference-Header-Content-Length"
BINARY_EXTENSION = "binary_tensor_data"
MAX_JSON = 32 * 2**20
MAX_TENSORS = 64
MAX_TEXT = 1024
_BINARY = "Send the tensors as binary data"

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Wire:
    """An encoded body.

    json: its first part.
    tensors: views of the encoded arrays, not copies.
    """

    json: bytes
    tensors: tuple[memoryview, ...] = ()
    binary: bool = False

    @property
    def parts(self) -> tuple[bytes | memoryview, ...]:
        return (self.json, *self.tensors)

    @property
    def headers(self) -> dict[str, str]:
        if not self.binary:
            return {"Content-Type": "application/json"}
        return {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(self.json))}

    def body(self) -> bytes:
        """Everything in one piece: a copy."""
        return b"".join(self.parts)


@dataclass(frozen=True)
class InferRequest:
    """inputs: with their batch axis, read-only.
    outputs: the requested names, () for all.
    timeout_us: what is left of the caller's budget, None for no limit.
    parameters: the request's own, as sent.
    """

    inputs: Mapping[str, NDArray[Any]]
    outputs: tuple[str, ...] = ()
    binary: Mapping[str, bool] = field(default_factory=dict)
    binary_default: bool = False
    id: str | None = None
    timeout_us: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def wants_binary(self, output: str) -> bool:
        return self.binary.get(output, self.binary_default)


@dataclass(frozen=True)
class InferResponse:
    """outputs: with their batch axis, read-only.
    model_name, model_version: None if the server names none.
    """

    outputs: Mapping[str, NDArray[Any]]
    model_name: str | None = None
    model_version: str | None = None
    id: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)


def encode_request(
    inputs: Mapping[str, NDArray[Any]],
    *,
    binary: bool = True,
    timeout_us: int | None = None,
    id: str | None = None,  # noqa: A002 - the protocol's word
    parameters: Mapping[str, Any] | None = None,
) -> Wire:
    """Requests all outputs, in the inputs' form. Raises WireError for what cannot be carried."""
    own: dict[str, Any] = dict(parameters or {})
    if timeout_us is not None:
        own["timeout"] = timeout_us
    if binary:
        own["binary_data_output"] = True
    head: dict[str, Any] = {} if id is None else {"id": id}
    if own:
        head["parameters"] = own
    return _encode(head, "inputs", inputs, frozenset(inputs) if binary else frozenset())


def encode_response(response: InferResponse, *, binary: Collection[str] = ()) -> Wire:
    """binary: outputs sent as raw bytes; the rest as JSON. Raises WireError."""
    head: dict[str, Any] = {"model_name": response.model_name, "model_version": response.model_version}
    if response.id is not None:
        head["id"] = response.id
    if response.parameters:
        head["parameters"] = dict(response.parameters)
    return _encode(head, "outputs", response.outputs, frozenset(binary))


def decode_request(body: bytes | bytearray | memoryview, header_length: str | None = None) -> InferRequest:
    """header_length: value of the header HEADER_LENGTH, None if absent. Raises WireError."""
    value, rest = _split(body, header_length)
    parameters = _optional(value, "parameters", dict, "the request") or {}
    asked = _optional(value, "outputs", list, "the request") or []
    if len(asked) > MAX_TENSORS:
        raise WireError(f"{len(asked)} outputs are asked for, {MAX_TENSORS} is the most")
    binary: dict[str, bool] = {}
    names = []
    for position, output in enumerate(asked):
        name, own = _name_and_parameters(output, f"output {position}")
        if "classification" in own or "shared_memory_region" in own:
            raise WireError("classification and shared memory are not supported", where=f"output '{name}'")
        names.append(name)
        wanted = _optional(own, "binary_data", bool, f"output '{name}'")
        if wanted is not None:
            binary[name] = wanted
    return InferRequest(
        inputs=_tensors(value, "inputs", "input", rest),
        outputs=tuple(names),
        binary=binary,
        binary_default=bool(_optional(parameters, "binary_data_output", bool, "the request")),
        id=_text(value, "id", "the request"),
        timeout_us=_timeout(parameters),
        parameters=parameters,
    )


def peek_request(text: bytes | bytearray | memoryview) -> tuple[dict[str, tuple[int, ...]], int | None]:
    """The inputs' shapes and timeout_us from a request's JSON alone. Raises WireError."""
    value = parse_json(text, "the body")
    shapes = {}
    for position, entry in enumerate(_entries(value, "inputs")):
        name, _ = _name_and_parameters(entry, f"input {position}")
        shapes[name] = _shape(entry, f"input '{name}'")
    return shapes, _timeout(_optional(value, "parameters", dict, "the request") or {})


def decode_response(body: bytes | bytearray | memoryview, header_length: str | None = None) -> InferResponse:
    """As `decode_request`, for the answer."""
    value, rest = _split(body, header_length)
    return InferResponse(
        outputs=_tensors(value, "outputs", "output", rest),
        model_name=_text(value, "model_name", "the answer"),
        model_version=_text(value, "model_version", "the answer"),
        id=_text(value, "id", "the answer"),
        parameters=_optional(value, "parameters", dict, "the answer") or {},
    )


def parse_json(data: bytes | bytearray | memoryview, where: str) -> dict[str, Any]:
    """One JSON object. Raises WireError for anything else, however large, deep or odd."""
    if len(data) > MAX_JSON:
        raise WireError(f"the JSON is larger than {MAX_JSON // 2**20} MiB", where=where, do=_BINARY)
    try:
        value = load_json(data)
    except JsonSizeError as error:
        raise WireError(f"the JSON is too large: {error}", where=where, do=_BINARY) from error
    except ValueError as error:  # also bad UTF-8 and numbers of thousands of digits
        raise WireError(f"not JSON ({type(error).__name__})", where=where) from error
    if not isinstance(value, dict):
        raise WireError("the JSON is not an object", where=where)
    return value


def _encode(head: dict[str, Any], key: str, tensors: Mapping[str, NDArray[Any]], binary: frozenset[str]) -> Wire:
    listed, views = [], []
    for name, array in tensors.items():
        array = np.asarray(array)
        entry: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": datatype_of(array.dtype)}
        if name in binary:
            view = to_bytes(array)
            views.append(view)
            entry["parameters"] = {"binary_data_size": len(view)}
        else:
            entry["data"] = to_json(array, f"{key[:-1]} '{name}'")
        listed.append(entry)
    text = compact_json({**head, key: listed})
    if views:
        text += b" " * (-len(text) % 8)
    return Wire(text, tuple(views), bool(views))


def _split(body: bytes | bytearray | memoryview, header_length: str | None) -> tuple[dict[str, Any], memoryview]:
    """The JSON, and the bytes after it."""
    view = memoryview(body).cast("B")
    end = len(view)
    if header_length is not None:
        text = header_length.strip()
        if not (text.isascii() and text.isdigit() and len(text) <= 12 and 0 < int(text) <= len(view)):
            what = f"the header says that the JSON takes {text[:40]!r} bytes, the body has {len(view)}"
            raise WireError(what, where=HEADER_LENGTH)
        end = int(text)
    return parse_json(view[:end], "the body"), view[end:]


def _tensors(value: dict[str, Any], key: str, kind: str, rest: memoryview) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    at = 0
    for position, entry in enumerate(_entries(value, key)):
        name, parameters = _name_and_parameters(entry, f"{kind} {position}")
        where = f"{kind} '{name}'"
        if name in found:
            raise WireError("duplicate tensor", where=where)
        shape = _shape(entry, where)
        size = _optional(parameters, "binary_data_size", int, where)
        if "shared_memory_region" in parameters:
            raise WireError("shared memory is not supported", where=where)
        if size is None:
            found[name] = from_json(entry.get("data"), entry.get("datatype"), shape, where)
            continue
        dtype_of(entry.get("datatype"), where)
        if entry.get("data") is not None or not 0 <= size <= len(rest) - at:
            raise WireError(f"binary_data_size says {size} bytes, {len(rest) - at} are there", where=where)
        found[name] = from_bytes(rest[at : at + size], entry.get("datatype"), shape, where)
        at += size
    if at != len(rest):
        raise WireError(f"{len(rest) - at} bytes are left over after the last tensor", where="the body")
    return found


def _entries(value: dict[str, Any], key: str) -> list[Any]:
    listed = value.get(key)
    if not isinstance(listed, list) or not listed:
        raise WireError(f"'{key}' is missing or empty", where="the body")
    if len(listed) > MAX_TENSORS:
        raise WireError(f"{len(listed)} {key} are too many, {MAX_TENSORS} is the most", where="the body")
    return listed


def _shape(entry: dict[str, Any], where: str) -> tuple[int, ...]:
    sizes: Any = entry.get("shape")
    listed = isinstance(sizes, list) and len(sizes) <= MAX_DIMS
    if not listed or not all(type(n) is int and 0 <= n < 2**62 for n in sizes):
        raise WireError(f"the shape is not a list of at most {MAX_DIMS} sizes", where=where)
    return tuple(sizes)


def _name_and_parameters(entry: object, where: str) -> tuple[str, dict[str, Any]]:
    if not isinstance(entry, dict):
        raise WireError("not a JSON object", where=where)
    name = _text(entry, "name", where)
    if not name:
        raise WireError("it has no name", where=where)
    return name, _optional(entry, "parameters", dict, where) or {}


def _timeout(parameters: dict[str, Any]) -> int | None:
    """Microseconds; 0 means none, as in Triton's schedule policy."""
    timeout = _optional(parameters, "timeout", int, "the request")
    if timeout is not None and not 0 <= timeout < 2**63:
        raise WireError("the timeout is not a number of microseconds", where="the request")
    return timeout or None


def _text(value: dict[str, Any], key: str, where: str) -> str | None:
    text = _optional(value, key, str, where)
    if text is not None and len(text) > MAX_TEXT:
        raise WireError(f"'{key}' is longer than {MAX_TEXT} characters", where=where)
    return text


def _optional(value: dict[str, Any], key: str, kind: type[Kind], where: str) -> Kind | None:
    """Missing and null are the same: some servers write every field."""
    found = value.get(key)
    if found is None:
        return None
    if type(found) is not kind:
        raise WireError(f"'{key}' is not {_WORDS[kind]}", where=where)
    return found


_WORDS: dict[type, str] = {
    dict: "a JSON object",
    list: "a list",
    str: "a string",
    int: "an integer",
    bool: "true or false",
}
