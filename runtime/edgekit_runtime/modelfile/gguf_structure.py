"""A GGUF file of a language model: its header, checked before llama.cpp reads the file.

    model = read_gguf(data)                     # raises ModelFileError
    model.context, model.kv_bytes_per_token     # 8192 tokens, 46,080 bytes of 16-bit keys and values each
    check(data, MAX_TENSOR_BYTES).ops           # ("F32", "Q4_1", "Q6_K"): the number formats of its tensors

Rules, because llama.cpp allocates and seeks by what a file says:
- counts and lengths are compared with the bytes that are left before anything is made of them;
- keys and names of tensors are short UTF-8, each once; arrays do not nest;
- each tensor has 1 to 4 sides above 0, a known number format and whole blocks. Its bytes lie within the file, aligned,
  and apart from every other tensor's;
- a model has the sizes that its memory follows from: context, layers, heads and lengths, each within bounds;
- one file alone: a part of a split model is refused.
"""

from __future__ import annotations

import struct
from math import prod

from edgekit_runtime.modelfile.check import ModelFacts, bytes_of
from edgekit_runtime.system.errors import ModelFileError
from edgekit_runtime.system.records import record

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_KEYS, _MOST_TENSORS, _MOST_NAME, _MOST_SIDE = 4_096, 100_000, 1_000, 1 << 31
_FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
"""Kinds of values of one size, by GGUF's number; 8 is a string, 9 an array."""
_STRING, _ARRAY = 8, 9
_KEPT_ARRAY = 1_024
"""Elements of an array that are looked at; of a longer one, as the words of a tokenizer, the number alone counts."""
_BLOCKS = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}  # fmt: skip
"""GGUF's number of a format -> its name, elements of a block, bytes of a block."""


@record(frozen=True)
class GgufModel:
    """architecture: as llama.cpp calls it, such as "llama".
    formats: number format -> elements of the weights in it.
    context: tokens that the model was trained for.
    layers: of the network; kv_width: keys and values of one token in one layer, together.
    chat: whether it holds a template for messages."""

    architecture: str
    name: str
    licence: str
    formats: dict[str, int]
    tensors: int
    context: int
    layers: int
    kv_width: int
    chat: bool
    version: int
    weights_bytes: int

    @property
    def kv_bytes_per_token(self) -> int:
        """Of the cache, in 16-bit floats."""
        return 2 * self.layers * self.kv_width

    @property
    def precision(self) -> str:
        """The number format of most weights, in lower case."""
        return max(self.formats, key=self.formats.__getitem__).lower()


def check(data: bytes, max_tensor_bytes: int) -> ModelFacts:
    """Raises ModelFileError. Weights are constants; what llama.cpp computes is not in the file."""
    model = read_gguf(data)
    ops = tuple(sorted(model.formats))
    return ModelFacts("gguf", f"GGUF {model.version}", ops, model.layers, 1, model.tensors, model.weights_bytes, 0)


def read_gguf(data: bytes) -> GgufModel:
    """The facts of the header. Raises ModelFileError, which says what is wrong."""
    if data[:4] != MAGIC:
        raise refusal("it does not begin with GGUF", "Pass a .gguf file of a language model")
    reader = _HeaderCursor(data)
    version = reader.number("I", "version")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        what = "it was written for big-endian machines" if swapped in _VERSIONS else f"it has GGUF version {version}"
        raise refusal(f"{what}; versions {' and '.join(map(str, _VERSIONS))} are read", "Convert the model again")
    tensors, keys = reader.number("Q", "number of tensors"), reader.number("Q", "number of keys")
    if not 0 < tensors <= _MOST_TENSORS or not 0 < keys <= _MOST_KEYS:
        raise refusal(f"it declares {tensors:,} tensors and {keys:,} keys")
    values: dict[str, object] = {}
    for _ in range(keys):
        key = reader.name("a key")
        if key in values:
            raise refusal(f"it has the key '{key:.60}' twice")
        values[key] = reader.value(reader.number("I", f"the kind of '{key:.60}'"), key)
    if values.get("split.count", 0) not in (0, 1):
        raise refusal("it is one part of a split model", "Merge the parts: llama-gguf-split --merge")
    formats, weights = _tensors(reader, tensors, values.get("general.alignment", 32))
    return _described(values, version, formats, tensors, weights)


def refusal(what: str, do: str = "Download the file again, and build its bundle again") -> ModelFileError:
    return ModelFileError(what, do=do)


class _HeaderCursor:
    """A position in the file; each step stays inside it."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, len(MAGIC)

    def left(self, size: int, what: str) -> int:
        """The position of `size` more bytes, which are then read."""
        at = self.at
        if size > len(self.data) - at:
            raise refusal(f"it ends inside {what}: {size:,} bytes are declared, {len(self.data) - at:,} are left")
        self.at = at + size
        return at

    def number(self, kind: str, what: str) -> int:
        return int(struct.unpack_from(f"<{kind}", self.data, self.left(struct.calcsize(kind), what))[0])

    def name(self, what: str) -> str:
        text = self.text(what, _MOST_NAME)
        if not text or "\0" in text:
            raise refusal(f"{what} is empty, or has a NUL")
        return text

    def text(self, what: str, most: int | None = None) -> str:
        size = self.number("Q", f"the length of {what}")
        if most is not None and size > most:
            raise refusal(f"{what} has {size:,} bytes, more than {most:,}")
        at = self.left(size, what)
        try:
            return self.data[at : at + size].decode()
        except UnicodeDecodeError as error:
            raise refusal(f"{what} is not UTF-8") from error

    def value(self, kind: int, key: str) -> object:
        """A key's value; of a long array the number of its elements."""
        what = f"'{key:.60}'"
        if kind == _STRING:
            return self.text(what)
        if kind in _FIXED:
            form = f"<{_FIXED[kind]}"
            return struct.unpack_from(form, self.data, self.left(struct.calcsize(form), what))[0]
        if kind != _ARRAY:
            raise refusal(f"{what} has a value of kind {kind}")
        inner, count = self.number("I", what), self.number("Q", what)
        if inner in _FIXED:
            size = struct.calcsize(f"<{_FIXED[inner]}")
            at = self.left(count * size, what)
            return count if count > _KEPT_ARRAY else struct.unpack_from(f"<{count}{_FIXED[inner]}", self.data, at)
        if inner != _STRING:
            raise refusal(f"{what} is an array of kind {inner}")
        if count > len(self.data) - self.at:
            raise refusal(f"{what} declares {count:,} texts")
        for _ in range(count):  # words of a tokenizer need not be UTF-8 each
            self.left(self.number("Q", what), what)
        return count


def _tensors(reader: _HeaderCursor, count: int, alignment: object) -> tuple[dict[str, int], int]:
    """Format -> elements, and the bytes of all weights."""
    if type(alignment) is not int or not 8 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise refusal(f"its alignment is {alignment!r:.40}")
    formats: dict[str, int] = {}
    places: list[tuple[int, int, str]] = []
    for _ in range(count):
        name = reader.name("the name of a tensor")
        rank = reader.number("I", f"'{name:.60}'")
        if not 1 <= rank <= 4:
            raise refusal(f"'{name:.60}' has {rank} sides")
        sides = tuple(reader.number("Q", f"'{name:.60}'") for _ in range(rank))
        known = _BLOCKS.get(kind := reader.number("I", f"'{name:.60}'"))
        if known is None:
            raise refusal(f"'{name:.60}' has numbers of kind {kind}", "Upgrade edgekit-deploy, or quantize it again")
        form, block, size = known
        if not all(0 < side < _MOST_SIDE for side in sides) or sides[0] % block:
            raise refusal(f"'{name:.60}' has the sides {list(sides)}, in blocks of {block}")
        total = bytes_of((*sides[1:], sides[0] // block), 8 * size, f"'{name:.60}'", len(reader.data))
        offset = reader.number("Q", f"'{name:.60}'")
        if offset % alignment:
            raise refusal(f"'{name:.60}' is not aligned to {alignment} bytes")
        places.append((offset, total, name))
        formats[form] = formats.get(form, 0) + prod(sides)
    start = -(-reader.at // alignment) * alignment
    if len({name for _, _, name in places}) < count:
        raise refusal("two of its tensors have one name")
    end = 0
    for offset, total, name in sorted(places):
        if offset < end:
            raise refusal(f"'{name:.60}' overlaps another tensor")
        end = offset + total
        if start + end > len(reader.data):
            raise refusal(f"'{name:.60}' ends {start + end - len(reader.data):,} bytes behind the file's end")
    return formats, sum(total for _, total, _ in places)


def _described(
    values: dict[str, object], version: int, formats: dict[str, int], tensors: int, weights: int
) -> GgufModel:
    texts = {key: found for key, found in values.items() if isinstance(found, str)}
    architecture = texts.get("general.architecture")
    if not architecture:
        raise refusal("it names no architecture", "Pass a .gguf file of a language model")
    if "tokenizer.ggml.tokens" not in values:
        raise refusal(f"'{architecture:.60}' has no tokenizer", "Pass a model that answers texts")

    def size(key: str, most: int, otherwise: int | None = None) -> int:
        found = values.get(f"{architecture}.{key}", otherwise)
        each = found if isinstance(found, tuple) and found else (found,)  # some models differ by layer
        if not all(type(one) is int and 0 <= one <= most for one in each) or not max(each):
            raise refusal(f"'{architecture:.60}.{key}' is {found!r:.60}, not from 1 to {most:,}")
        return int(max(each))

    heads = size("attention.head_count", 1 << 14)
    kv_heads = size("attention.head_count_kv", 1 << 14, heads)
    length = max(1, size("embedding_length", 1 << 20) // heads)
    keys, each = size("attention.key_length", 1 << 16, length), size("attention.value_length", 1 << 16, length)

    return GgufModel(
        architecture=architecture,
        name=texts.get("general.name", ""),
        licence=texts.get("general.license", ""),
        formats=formats,
        tensors=tensors,
        context=size("context_length", 1 << 30),
        layers=size("block_count", 1 << 14),
        kv_width=kv_heads * (keys + each),
        chat=bool(texts.get("tokenizer.chat_template")),
        version=version,
        weights_bytes=weights,
    )
