"""Model files, before an engine sees them: .tflite, .onnx and .gguf.

Structure: in a FlatBuffer numbers of four bytes are replaced where numbers of four bytes lie. A protobuf is taken apart
into its fields, one is changed however deep it lies, and every length around it is made to fit again. In a GGUF header
the numbers beside its names are replaced: lengths, kinds, counts, sides, offsets. `engine` gives
what was accepted to the engine itself, in this very process: whoever crashes it has got past the check.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

import alphabet
import numpy as np
from hostile import onnx_by_hand as by_hand

from edgekit_runtime.modelfile.check import ModelFacts, check_model
from edgekit_runtime.modelfile.gguf_structure import read_gguf
from edgekit_runtime.system.errors import EdgekitError, EngineError, ModelFileError
from fuzz.octets import altered
from fuzz.target import Target

_MODELS = Path(__file__).parents[1] / "tests" / "models"
_NUMBERS = (0, 1, -1, 2, 3, 4, 7, 16, 127, 128, 255, 256, 65535, 65536, 2**24, 2**30, 2**31 - 1, -(2**31), -4, -64)
_MOST_RUN_BYTES = 1 << 22


def _facts(form: str, data: bytes) -> ModelFacts:
    facts = check_model(form, data, where="x")
    assert facts.format == form
    assert facts.ops == tuple(sorted(set(facts.ops)))
    assert facts.operators >= len(facts.ops) > 0 or not facts.ops
    assert facts.constant_bytes <= len(data) + 64
    assert 0 <= facts.largest_tensor_bytes <= 512 << 20
    return facts


def _read_tflite(data: bytes) -> None:
    _facts("tflite", data)


def _read_onnx(data: bytes) -> None:
    _facts("onnx", data)


def _read_gguf(data: bytes) -> None:
    facts, model = check_model("gguf", data, where="x"), read_gguf(data)
    assert facts.ops == tuple(sorted(model.formats)) != ()
    assert 0 < facts.constant_bytes <= len(data)
    assert model.kv_bytes_per_token > 0 < model.context


def _read_engine(data: bytes) -> None:
    """Loads and runs what was accepted, where it declares no more than some MB.

    Time and memory are the child's limits.
    """
    from edgekit_runtime.engines.registry import load_engine

    facts = check_model("tflite", data, max_tensor_bytes=_MOST_RUN_BYTES, where="x")
    if facts.operators > 64:
        return
    with load_engine("tflite", data, threads=1) as loaded:
        inputs = [np.zeros([max(side, 1) for side in spec.shape], spec.dtype) for spec in loaded.inputs]
        if sum(array.nbytes for array in inputs) <= _MOST_RUN_BYTES:
            loaded.run(inputs)


@cache
def _tflite() -> Sequence[bytes]:
    names = ("tiny_int8", "tiny_f32", "tiny_free_f32", "memory_carried_int8", "memory_inside_f32", "spots_int8")
    return [(_MODELS / f"{name}.tflite").read_bytes() for name in names]


@cache
def _onnx() -> Sequence[bytes]:
    x, y = by_hand.value("x", [1, 4]), by_hand.value("y", [1, 4])
    weights = by_hand.tensor("w", [1, 4], raw=bytes(16))
    inner = by_hand.graph([by_hand.node("Identity", ["x"], ["v"])], [], [by_hand.value("v", [1, 4])], [weights])
    branch = by_hand.node(
        "If", ["c"], ["y"], by_hand.attribute_graph("then_branch", inner), by_hand.attribute_graph("else_branch", inner)
    )
    add = by_hand.node("Add", ["x", "w"], ["y"])
    return [
        *((_MODELS / f"{name}.onnx").read_bytes() for name in ("tiny_f32", "memory_carried_f32")),
        by_hand.model(add, inputs=[x], outputs=[y], tensors=[weights]),
        by_hand.model(branch, inputs=[x, by_hand.value("c", [], by_hand.BOOL)], outputs=[y]),
    ]


@cache
def _gguf() -> Sequence[bytes]:
    few = {f"tokenizer.ggml.{name}": [*made] for name, made in (("tokens", "abc"), ("scores", (0.0,)))}
    few["tokenizer.ggml.token_type"] = None
    weights = {"token_embd.weight": np.ones((2, 32), np.float32), "output.weight": np.ones(8, np.float32)}
    return [alphabet.write_gguf(alphabet.header(chat=chat, **few), weights) for chat in (False, True)]


def _mutate_gguf(data: bytes, random: Random) -> bytes:
    names = [*re.finditer(rb"[a-z0-9_.]{5,}", data)]
    if random.random() < 0.3 or not names:
        return altered(data, random)
    made = bytearray(data)
    for _ in range(random.randint(1, 3)):
        name = random.choice(names)  # before it its length; behind it a kind and a value, or sides, kind, offset
        at = random.choice((name.start() - 8, *(name.end() + step for step in (0, 4, 8, 12, 20, 24))))
        form = random.choice(("<i", "<q"))
        if 0 <= at <= len(made) - 8:
            struct.pack_into(form, made, at, random.choice(_NUMBERS))
    return bytes(made)


def _mutate_tflite(data: bytes, random: Random) -> bytes:
    if random.random() < 0.15 or len(data) < 16:
        return altered(data, random)
    made = bytearray(data)
    for _ in range(random.randint(1, 3)):
        act = random.randrange(6)
        at = random.randrange(len(made) // 4 - 1) * 4
        if act == 0:
            struct.pack_into(
                "<h", made, at + random.choice((0, 2)), random.choice((0, 1, 3, 4, 6, 8, 12, 200, 32767, -1))
            )
        elif act == 1:
            made[at + random.randrange(4)] = random.choice((0, 1, 2, 9, 32, 127, 128, 255, random.randrange(256)))
        elif act == 2:  # another offset, of a table or vector that is there
            struct.pack_into("<i", made, at, random.randrange(len(made) // 4) * 4)
        elif act == 3:
            other = random.randrange(len(made) // 4 - 1) * 4
            made[at : at + 4] = made[other : other + 4]
        else:
            struct.pack_into("<i", made, at, random.choice(_NUMBERS))
    return bytes(made)


def _mutate_onnx(data: bytes, random: Random) -> bytes:
    if random.random() < 0.2:
        return altered(data, random)
    return _within(data, random, 0)


def _within(data: bytes, random: Random, depth: int) -> bytes:
    """One field of a message is changed, doubled, left out or renumbered.

    Or something within one that holds a message.
    """
    fields = _fields(data)
    if not fields:
        return altered(data, random)
    at = random.randrange(len(fields))
    number, kind, value = fields[at]
    act = random.randrange(12)
    if kind == 2 and isinstance(value, bytes) and depth < 8 and act < 7:
        fields[at] = (number, kind, _within(value, random, depth + 1))
    elif act == 7:
        fields.insert(random.randrange(len(fields) + 1), fields[at])
    elif act == 8:
        del fields[at]
    elif act == 9:
        fields[at] = (random.choice((1, 2, 5, 7, 8, 9, 11, 13, 14, 20, 21, 25, number + 1, 2**29 - 1)), kind, value)
    elif act == 10 and depth < 6:
        fields[at] = (number, 2, data[:400])
    elif isinstance(value, int):
        fields[at] = (number, kind, random.choice((*_NUMBERS, 2**40, 2**63 - 1, -(2**63), value + 1)))
    else:
        fields[at] = (number, kind, altered(value, random) if value else random.choice((b"\0", b"../../x", bytes(40))))
    return b"".join(_written(one) for one in fields)


def _fields(data: bytes) -> list[tuple[int, int, int | bytes]]:
    """Of a message, as far as it is one; of anything else, nothing."""
    found: list[tuple[int, int, int | bytes]] = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            found.append((tag >> 3, 0, value))
        elif kind == 2:
            size, at = _varint(data, at)
            if at + size > len(data):
                return []
            found.append((tag >> 3, 2, data[at : at + size]))
            at += size
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            found.append((tag >> 3, kind, data[at : at + size].ljust(size, b"\0")))
            at += size
        else:
            return []
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128 or shift > 63:
            break
    return value, at


def _written(field: tuple[int, int, int | bytes]) -> bytes:
    number, kind, value = field
    tag = by_hand.varint(number << 3 | kind)
    if isinstance(value, int):
        return tag + by_hand.varint(value)
    return tag + (by_hand.varint(len(value)) if kind == 2 else b"") + value


def tflite() -> Target:
    return Target("tflite", _read_tflite, (ModelFileError,), _tflite, _mutate_tflite, 1 << 13)


def onnx() -> Target:
    return Target("onnx", _read_onnx, (ModelFileError,), _onnx, _mutate_onnx, 1 << 13)


def gguf() -> Target:
    return Target("gguf", _read_gguf, (ModelFileError,), _gguf, _mutate_gguf, 1 << 13)


def engine() -> Target:
    refusals: tuple[type[EdgekitError], ...] = (ModelFileError, EngineError)
    return Target("engine", _read_engine, refusals, _tflite, _mutate_tflite, 1 << 13)
