"""ONNX files written field by field: the tool's own writer would not write these.

model(node("Relu", ["x"], ["y"]), inputs=[value("x", [1, 4])], outputs=[value("y", [1, 4])])
"""

from __future__ import annotations

from collections.abc import Sequence

FLOAT, INT64, BOOL = 1, 7, 9


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes((*made, number))


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def value(name: str, shape: Sequence[int], kind: int = FLOAT) -> bytes:
    """A ValueInfoProto."""
    sides = b"".join(text(1, number(1, side)) for side in shape)
    return text(1, name) + text(2, text(1, number(1, kind) + text(2, sides)))


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], *attributes: bytes, domain: str = "") -> bytes:
    """A NodeProto."""
    names = b"".join(text(1, name) for name in inputs) + b"".join(text(2, name) for name in outputs)
    return (
        names
        + text(3, outputs[0])
        + text(4, op)
        + b"".join(text(5, one) for one in attributes)
        + (text(7, domain) if domain else b"")
    )


def tensor(
    name: str,
    shape: Sequence[int],
    kind: int = FLOAT,
    *,
    raw: bytes | None = None,
    external: dict[str, str] | None = None,
) -> bytes:
    """A TensorProto."""
    made = b"".join(number(1, side) for side in shape) + number(2, kind) + text(8, name)
    if raw is not None:
        made += text(9, raw)
    if external is not None:
        made += b"".join(text(13, text(1, key) + text(2, entry)) for key, entry in external.items()) + number(14, 1)
    return made


def attribute_tensor(name: str, one: bytes) -> bytes:
    return text(1, name) + text(5, one) + number(20, 4)


def attribute_graph(name: str, one: bytes) -> bytes:
    return text(1, name) + text(6, one) + number(20, 5)


def graph(
    nodes: Sequence[bytes], inputs: Sequence[bytes], outputs: Sequence[bytes], tensors: Sequence[bytes] = ()
) -> bytes:
    made = b"".join(text(1, one) for one in nodes) + text(2, "g") + b"".join(text(5, one) for one in tensors)
    return made + b"".join(text(11, one) for one in inputs) + b"".join(text(12, one) for one in outputs)


def model(
    *nodes: bytes,
    inputs: Sequence[bytes],
    outputs: Sequence[bytes],
    tensors: Sequence[bytes] = (),
    domains: Sequence[str] = ("",),
    functions: Sequence[bytes] = (),
) -> bytes:
    """A ModelProto of IR 8, opset 13."""
    opsets = b"".join(text(8, text(1, domain) + number(2, 13 if domain == "" else 1)) for domain in domains)
    made = number(1, 8) + text(2, "by hand") + text(7, graph(nodes, inputs, outputs, tensors)) + opsets
    return made + b"".join(text(25, one) for one in functions)
