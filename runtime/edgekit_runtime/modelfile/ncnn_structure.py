"""An ncnn network in one file: a line of JSON, the .param text, the .bin weights.

    network = read_network(data)                # raises ModelFileError
    network.layers[1].outputs                   # ((16, 112, 112),), without the batch axis, channels first
    data = pack_network(param, weights, [NcnnSide("in0", (1, 3, 224, 224))], [NcnnSide("out0", (1, 1000))])

Rules, because ncnn trusts both files (it checks no index, size or channel count):
- a layer's type is in `_RULES`, which derive the shape of what it makes; a parameter that its rule does not read is
  refused, and so is a real number where ncnn reads a whole one;
- a blob is made once, before its one reader; what kernels divide by is at least 1, and every window fits;
- weights have the sizes that the shapes imply, and end where the file ends; in 8 bits only where parameter 8 says so;
- a shape stays within one tensor's limit;
- ncnn reads the text that `param` writes, so that both readers see the same network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import TypeAlias

from edgekit_runtime.modelfile.check import MAX_TENSOR_BYTES, ModelFacts, bytes_of, refusal
from edgekit_runtime.system.errors import BundleError
from edgekit_runtime.system.records import record
from edgekit_runtime.system.strict_json import compact_json, read_json, to_json

Shape: TypeAlias = "tuple[int, ...]"
_MAGIC, _PARAM_MAGIC = b"edgekit-ncnn-1 ", "7767517"
_MOST_LAYERS, _MOST_HEAD, _MOST_SIDE = 20_000, 1 << 16, 1 << 24
_NUMBER = re.compile(r"-?\d{1,10}|-?\d+\.\d*(e[-+]?\d+)?|-?\d+e[-+]?\d+")
_NAME = re.compile(r"[!-~]{1,200}")
HALF_TAG, INT8_TAG, _PLAIN_FLOATS = 0x01306B47, 0x000D4B38, (0, 0x0002C056)
"""Tags before a kernel: 16-bit floats, 8 bits, 32-bit floats. ncnn's other is a table of 256 values."""
WIDTHS = {HALF_TAG: 2, INT8_TAG: 1}
"""Bytes of an element, where it is not 4."""
_ORDERS = (
    *((), ("w",), ("wh", "hw"), ("whc", "hwc", "wch", "cwh", "hcw", "chw")),
    (
        *("whdc", "hwdc", "wdhc", "dwhc", "hdwc", "dhwc", "whcd", "hwcd", "wchd", "cwhd", "hcwd", "chwd"),
        *("wdch", "dwch", "wcdh", "cwdh", "dcwh", "cdwh", "hdcw", "dhcw", "hcdw", "chdw", "dchw", "cdhw"),
    ),
)
"""Of Permute, by rank: the axes of the result, the innermost first, by the names of the input's."""
_AXES = ("", "w", "hw", "chw", "cdhw")


@record(frozen=True)
class NcnnSide:
    """An input or output: its blob, and its shape with a batch axis of 1."""

    name: str
    shape: tuple[int, ...]


@record(frozen=True)
class _Head:
    inputs: tuple[NcnnSide, ...]
    outputs: tuple[NcnnSide, ...]
    param_bytes: int


@record(frozen=True)
class NcnnLayer:
    """inputs, outputs: shapes without the batch axis, channels first.
    kind: ncnn's type. params: as written.
    kernel: elements of its kernel or matrix. constants: of all its weights."""

    kind: str
    name: str
    bottoms: tuple[str, ...]
    tops: tuple[str, ...]
    params: dict[int, str]
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    kernel: int
    constants: int

    @property
    def eight_bit(self) -> bool:
        """Whether kernel and input are in 8 bits."""
        return bool(self.kernel) and self.params.get(8) == "1"


@record(frozen=True)
class NcnnNetwork:
    """weights: the .bin. half: whether a kernel is in 16-bit floats."""

    inputs: tuple[NcnnSide, ...]
    outputs: tuple[NcnnSide, ...]
    layers: tuple[NcnnLayer, ...]
    weights: bytes
    half: bool

    def param(self) -> str:
        """The .param text."""
        lines = [_PARAM_MAGIC, f"{len(self.layers)} {sum(len(layer.tops) for layer in self.layers)}"]
        for one in self.layers:
            params = [f"{-23300 - key if ',' in value else key}={value}" for key, value in one.params.items()]
            counts = str(len(one.bottoms)), str(len(one.tops))
            lines.append(" ".join([one.kind, one.name, *counts, *one.bottoms, *one.tops, *params]))
        return "\n".join([*lines, ""])


def pack_network(param: bytes, weights: bytes, inputs: Sequence[NcnnSide], outputs: Sequence[NcnnSide]) -> bytes:
    head = _Head(tuple(inputs), tuple(outputs), len(param))
    return _MAGIC + compact_json(to_json(head)) + b"\n" + param + weights


def check(data: bytes, max_tensor_bytes: int) -> ModelFacts:
    """Raises ModelFileError, which says what is wrong and with which layer."""
    network = read_network(data, max_tensor_bytes)
    layers = network.layers
    kinds = tuple(sorted({layer.kind for layer in layers}))
    shapes = [shape for layer in layers for shape in layer.outputs]
    largest = 4 * max(prod(shape) for shape in shapes)
    return ModelFacts("ncnn", "1", kinds, len(layers), 1, len(shapes), len(network.weights), largest)


def read_network(data: bytes, max_tensor_bytes: int = MAX_TENSOR_BYTES) -> NcnnNetwork:
    """Raises ModelFileError."""
    if not data.startswith(_MAGIC):
        raise refusal("it does not begin as an ncnn network of edgekit")
    end = data.find(b"\n", 0, _MOST_HEAD)
    try:
        head = read_json(_Head, data[len(_MAGIC) : max(end, 0)], "its first line")
        text = str(data[end + 1 : end + 1 + max(0, head.param_bytes)], "ascii", "replace")
    except (ValueError, BundleError) as error:
        raise refusal(f"its first line cannot be read: {error}") from error
    if not 0 < head.param_bytes <= len(data) - end - 1:
        raise refusal("its text is longer than the file")
    for side in (*head.inputs, *head.outputs):
        if not 2 <= len(side.shape) <= 5 or side.shape[0] != 1 or not all(0 < n < _MOST_SIDE for n in side.shape):
            raise refusal(f"'{side.name:.40}' has the shape {list(side.shape)[:9]}")
        bytes_of(side.shape, 32, f"'{side.name:.40}'", max_tensor_bytes)
    return _Walk(head, data[end + 1 + head.param_bytes :], max_tensor_bytes).network(text)


class _Walk:
    """Reads layers in order. shapes: of the blobs made so far that no layer has read."""

    def __init__(self, head: _Head, weights: bytes, most: int) -> None:
        self._head, self._most = head, most
        self.weights, self.at, self.half = weights, 0, False
        self.sides = {side.name: side.shape[1:] for side in head.inputs}
        self._shapes: dict[str, Shape] = {}

    def network(self, text: str) -> NcnnNetwork:
        lines = [line.split() for line in text.splitlines() if line.strip()]
        if len(lines) < 3 or lines[0] != [_PARAM_MAGIC] or not len(lines) <= _MOST_LAYERS:
            raise refusal("its text is not a network of ncnn")
        layers = tuple(self._layer(words) for words in lines[2:])
        made = [name for layer in layers for name in layer.tops]
        if lines[1] != [str(len(layers)), str(len(made))]:
            raise refusal(f"it has {len(layers)} layers and {len(made)} blobs, and says {' '.join(lines[1])[:40]}")
        given = sorted(name for layer in layers if layer.kind == "Input" for name in layer.tops)
        if given != sorted(side.name for side in self._head.inputs) or not self._head.outputs:
            raise refusal("its first line names other inputs than its layers")
        for side in self._head.outputs:
            if side.name not in self._shapes or prod(side.shape) != prod(self._shapes[side.name]):
                raise refusal(f"no layer makes the output '{side.name:.40}' of {list(side.shape)}")
        if self.at != len(self.weights):
            raise refusal(f"its weights take {self.at:,} bytes, and {len(self.weights):,} follow its text")
        return NcnnNetwork(self._head.inputs, self._head.outputs, layers, self.weights, self.half)

    def _layer(self, words: list[str]) -> NcnnLayer:
        what = f"the layer '{' '.join(words[:2])[:60]}'"
        rule = _RULES.get(words[0])
        if rule is None:
            raise refusal(f"{what} is of a type that edgekit does not check")
        if (
            len(words) < 4
            or not (words[2].isdecimal() and words[3].isdecimal())
            or not all(map(_NAME.fullmatch, words))
        ):
            raise refusal(f"{what} cannot be read")
        bottoms_end = 4 + int(words[2][:6])
        end = bottoms_end + int(words[3][:6])
        bottoms, tops = tuple(words[4:bottoms_end]), tuple(words[bottoms_end:end])
        if end > len(words) or not tops or any("=" in name for name in (*bottoms, *tops)):
            raise refusal(f"{what} names fewer blobs than it says")
        try:
            inputs = tuple(self._shapes.pop(name) for name in bottoms)
        except KeyError as error:
            raise refusal(f"{what} reads {error}, which no layer before it makes, or which another has read") from None
        step = _LayerReading(self, what, tops, inputs, _params(words[end:], what))
        outputs = tuple(rule(step))
        if step.unread:
            raise refusal(f"{what} has the parameters {sorted(step.unread)}, which edgekit does not check")
        if len(outputs) != len(tops) or len(set(tops)) != len(tops) or self._shapes.keys() & set(tops):
            raise refusal(f"{what} makes {len(outputs)} blobs and names {len(tops)}, or names one twice")
        for shape in outputs:
            if not 1 <= len(shape) <= 4 or min(shape) < 1:
                raise refusal(f"{what} makes the shape {list(shape)}")
            bytes_of(shape, 32, what, self._most)
        self._shapes.update(zip(tops, outputs, strict=True))
        numbers = step.params, inputs, outputs, step.kernel, step.constants
        return NcnnLayer(words[0], words[1], bottoms, tops, *numbers)


def _params(words: Sequence[str], what: str) -> dict[int, str]:
    """Key -> a number, or numbers with commas and a length before them, as ncnn writes arrays."""
    found: dict[int, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        values = value.split(",")
        if not re.fullmatch(r"-?\d{1,5}", key) or not all(len(v) < 16 and _NUMBER.fullmatch(v) for v in values):
            raise refusal(f"{what} has the parameter {word:.40}, which edgekit does not check")
        number, listed = int(key), len(values) > 1
        number = -23300 - number if number <= -23300 else number
        if not 0 <= number < 32 or number in found or listed != (int(key) <= -23300):
            raise refusal(f"{what} has the parameter {word:.40}")
        if listed and values[0] != str(len(values) - 1):
            raise refusal(f"{what} has a list with another length than it says: {word:.40}")
        found[number] = value
    return found


class _LayerReading:
    """One layer while its rule reads it. unread: parameters that no rule has asked for."""

    def __init__(
        self, walk: _Walk, what: str, tops: tuple[str, ...], inputs: tuple[Shape, ...], params: dict[int, str]
    ) -> None:
        self._walk, self._what, self.tops, self.inputs, self.params = walk, what, tops, inputs, params
        self.unread = set(params)
        self.kernel = self.constants = 0

    def refuse(self, why: str) -> Exception:
        return refusal(f"{self._what}: {why}")

    def input(self, *ranks: int) -> Shape:
        """Its one input, of one of these ranks, any without them."""
        if len(self.inputs) != 1 or (ranks and len(self.inputs[0]) not in ranks):
            raise self.refuse(f"its inputs are {[list(shape) for shape in self.inputs]}")
        return self.inputs[0]

    def whole(self, key: int, default: int = 0, least: int = 0, most: int = _MOST_SIDE) -> int:
        self.unread.discard(key)
        text = self.params.get(key, str(default))
        if not re.fullmatch(r"-?\d+", text) or (key in self.params and not least <= int(text) <= most):
            raise self.refuse(f"parameter {key} is {text:.40}")
        return int(text)

    def real(self, *keys: int) -> None:
        """These are numbers, which only scale values."""
        for key in keys:
            self.unread.discard(key)
            if "," in self.params.get(key, ""):
                raise self.refuse(f"parameter {key} is a list")

    def listed(self, key: int) -> tuple[int, ...]:
        self.unread.discard(key)
        values = self.params.get(key, "0").split(",")[1:]
        if not values or not all(re.fullmatch(r"-?\d+", value) for value in values):
            raise self.refuse(f"parameter {key} is not a list of whole numbers")
        return tuple(map(int, values))

    def axes(self, key: int, rank: int) -> set[int]:
        found = {axis + rank if axis < 0 else axis for axis in self.listed(key)}
        if not found <= set(range(rank)):
            raise self.refuse(f"parameter {key} names axes that {rank} do not have")
        return found

    def axis(self, key: int, rank: int) -> int:
        value = self.whole(key, 0, -rank, rank - 1)
        return value + rank if value < 0 else value

    def load(self, count: int, tagged: bool = False, eight: bool = False) -> None:
        """So many floats of the weights; tagged: they may be of 16 bits; eight: they are of 8."""
        walk, width = self._walk, 4
        if tagged:
            tag = int.from_bytes(walk.weights[walk.at : walk.at + 4], "little")
            if tag not in ((INT8_TAG,) if eight else (HALF_TAG, *_PLAIN_FLOATS)):
                raise self.refuse(f"its weights are not {'in 8 bits' if eight else '32-bit or 16-bit floats'}")
            walk.at, width, walk.half = walk.at + 4, WIDTHS.get(tag, 4), walk.half or tag == HALF_TAG
        walk.at += -(-count * width // 4) * 4
        self.constants += count
        if count < 1 or walk.at > len(walk.weights):
            raise self.refuse(f"{count:,} weights end beyond the file")

    def product(self, outputs: int, size_key: int, bias_key: int, count: int, scales: int = 0) -> None:
        """The kernel, its bias and what follows: ncnn gets as many weights as the shapes imply.

        scales: of a kernel in 8 bits, which parameter 8 announces; 0 where it must be in floats."""
        eight = self.whole(8, most=min(scales, 1)) == 1
        if self.whole(size_key, most=1 << 30) != count:
            raise self.refuse(f"it has {self.params.get(size_key, 0)} weights, and its shapes imply {count}")
        self.kernel = count
        self.load(count, tagged=True, eight=eight)
        if self.whole(bias_key, most=1):
            self.load(outputs)
        if eight:
            self.load(scales + 1)  # the last is the input's
        if self.params.get(9, "0") not in _ACTIVATIONS:
            raise self.refuse(f"activation {self.params[9]:.9} is unknown")
        wanted = _ACTIVATIONS[self.params.get(9, "0")]
        if len(self.params.get(10, "").split(",")) - 1 < wanted:
            raise self.refuse("its activation has too few parameters")
        self.unread -= {9, 10}

    def window(self, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int] | None) -> list[int]:
        """Kernel height and width, strides, extents with dilation. Keys: of width, of height."""
        width = self.whole(kernel[0], 0, 1, 4096)
        if not width:
            raise self.refuse("it has no kernel")
        sizes = [self.whole(kernel[1], width, 1, 4096), width]
        step = self.whole(stride[0], 1, 1, 4096)
        steps = [self.whole(stride[1], step, 1, 4096), step]
        gap = 1 if dilation is None else self.whole(dilation[0], 1, 1, 4096)
        gaps = [gap if dilation is None else self.whole(dilation[1], gap, 1, 4096), gap]
        return [*sizes, *steps, *(g * (size - 1) + 1 for g, size in zip(gaps, sizes, strict=True))]


_ACTIVATIONS = {"0": 0, "1": 0, "2": 1, "3": 2, "4": 0, "5": 0, "6": 2}


def _numbers(*keys: int) -> Callable[[_LayerReading], list[Shape]]:
    """The rule of a layer that changes each value by itself, or values along an axis."""

    def rule(step: _LayerReading) -> list[Shape]:
        step.real(*keys)
        return [step.input()]

    return rule


def _given(step: _LayerReading) -> list[Shape]:
    name = str(step.tops[0])
    if step.inputs or name not in step._walk.sides:
        raise step.refuse("its first line does not name this input")
    return [step._walk.sides[name]]


def _memory(step: _LayerReading) -> list[Shape]:
    w, h, d, c = (step.whole(key) for key in (0, 1, 11, 2))
    shape = (c, d, h, w) if d else (c, h, w) if c else (h, w) if h else (w,)
    count = prod(shape)
    bytes_of(shape, 32, "a constant", MAX_TENSOR_BYTES)
    step.load(count, tagged=step.whole(21, 1, 0, 1) == 0)
    return [] if step.inputs else [shape]


def _convolution(step: _LayerReading, grouped: bool = False, back: bool = False) -> list[Shape]:
    """back: a transposed one, which gives each pixel a window."""
    (channels, *plane), outputs = step.input(3, *(() if back or grouped else (1,))), step.whole(0, least=1)
    group = step.whole(7, 1, 1) if grouped else 1
    kh, kw, sh, sw, eh, ew = step.window((1, 11), (3, 13), (2, 12))
    left = step.whole(4, 0, -234, 4096)
    top = step.whole(14, left, -234, 4096)
    right, bottom = step.whole(15, left, -234, 4096), step.whole(16, top, -234, 4096)
    if channels % group or outputs % group:
        raise step.refuse(f"{group} groups do not divide {channels} channels and {outputs}")
    # ncnn's other grouped convolutions in 8 bits read memory that nothing wrote
    scales = outputs if plane and not back and group in (1, channels) and (not grouped or outputs == group) else 0
    step.product(outputs, 6, 5, channels // group * outputs * kh * kw, scales)
    same, negative = {left, top, right, bottom} in ({-233}, {-234}), min(left, top, right, bottom) < 0
    if back:
        more = step.whole(18, 0, 0, sw - 1)
        below = step.whole(19, more, 0, sh - 1)
        high, wide = (plane[0] - 1) * sh + eh + below - top - bottom, (plane[1] - 1) * sw + ew + more - left - right
        return [(outputs, high, wide)] if not negative else []
    step.real(18)
    if not plane and (kh, kw) == (1, 1):  # ncnn then multiplies a matrix by the vector
        return [(outputs,)]
    if not plane or (negative and not same):
        raise step.refuse("its window does not fit")
    if same:
        return [(outputs, -(-plane[0] // sh), -(-plane[1] // sw))]
    return [(outputs, (plane[0] + top + bottom - eh) // sh + 1, (plane[1] + left + right - ew) // sw + 1)]


def _inner(step: _LayerReading) -> list[Shape]:
    shape, outputs, size = step.input(), step.whole(0, least=1), step.whole(2, 0, 1, 1 << 30)
    rows = len(shape) == 2 and size == shape[1] * outputs
    step.product(outputs, 2, 1, outputs * (shape[1] if rows else prod(shape)), 0 if rows else outputs)
    return [(shape[0], outputs) if rows else (outputs,)]


def _pooling(step: _LayerReading) -> list[Shape]:
    (channels, h, w), whole = step.input(3), step.whole(4, most=1)
    step.whole(0, most=1), step.whole(6, most=1)
    if whole:
        return [(channels,)]
    if step.whole(7, most=1):
        wide = step.whole(8, 0, -233, 4096)
        high = step.whole(18, wide, -233, 4096)
        return [(channels, h if high == -233 else high, w if wide == -233 else wide)]
    kh, kw, sh, sw, *_ = step.window((1, 11), (2, 12), None)
    left = step.whole(3, 0, 0, 4096)
    right, top = step.whole(14, left, 0, 4096), step.whole(13, left, 0, 4096)
    bottom, mode = step.whole(15, top, 0, 4096), step.whole(5, 0, 0, 3)
    if mode > 1:
        return [(channels, -(-h // sh), -(-w // sw))]
    if max(left, right) >= kw or max(top, bottom) >= kh:
        raise step.refuse("a window may lie in its padding alone")
    tall, broad = h + top + bottom - kh, w + left + right - kw
    if min(tall, broad) < 0:
        raise step.refuse("its window is larger than the picture")
    ends = (sh - 1, sw - 1) if mode == 0 else (0, 0)
    return [(channels, (tall + ends[0]) // sh + 1, (broad + ends[1]) // sw + 1)]


def _binary(step: _LayerReading) -> list[Shape]:
    step.whole(0, most=20)
    step.real(2)
    if step.whole(1, most=1):
        return [step.input()]
    if len(step.inputs) != 2 or len({len(shape) for shape in step.inputs}) != 1:
        if len(step.inputs) == 2 and (1,) in step.inputs:
            return [max(step.inputs, key=len)]
        raise step.refuse(f"its inputs are {[list(shape) for shape in step.inputs]}")
    pairs = list(zip(*step.inputs, strict=True))
    if any(a != b and 1 not in (a, b) for a, b in pairs):
        raise step.refuse(f"its inputs are {[list(shape) for shape in step.inputs]}")
    return [tuple(map(max, pairs))]


def _concat(step: _LayerReading) -> list[Shape]:
    first = step.inputs[0] if step.inputs else ()
    axis = step.axis(0, len(first))
    rests = {(*shape[:axis], *shape[axis + 1 :]) for shape in step.inputs}
    if len(rests) != 1 or len({len(shape) for shape in step.inputs}) != 1:
        raise step.refuse(f"its inputs are {[list(shape) for shape in step.inputs]}")
    return [(*first[:axis], sum(shape[axis] for shape in step.inputs), *first[axis + 1 :])]


def _slice(step: _LayerReading) -> list[Shape]:
    shape, parts = step.input(), step.listed(0)
    axis, left, found = step.axis(1, len(shape)), 0, list[Shape]()
    for place, part in enumerate(parts):
        size = (shape[axis] - left) // (len(parts) - place) if part == -233 else part
        found.append((*shape[:axis], size, *shape[axis + 1 :]))
        left += size
    if left > shape[axis] or len(found) != len(step.tops):
        raise step.refuse(f"the parts {list(parts)[:9]} are not those of {shape[axis]}")
    return found


def _reshape(step: _LayerReading) -> list[Shape]:
    shape = step.input()
    w, h, d, c = (step.whole(key, -233, -1) for key in (0, 1, 11, 2))
    wanted = [n for n in (c, d, h, w) if n != -233]
    if w == -233 or (d != -233 and c == -233) or (c != -233 and h == -233) or wanted.count(-1) > 1:
        raise step.refuse("its sizes cannot be read")
    if 0 in wanted:
        raise step.refuse("a size of 0 takes the input's")
    rest = prod(n for n in wanted if n != -1)
    found = tuple(prod(shape) // rest if n == -1 else n for n in wanted)
    if prod(found) != prod(shape):
        raise step.refuse(f"{list(shape)} cannot become {list(found)}")
    return [found]


def _squeeze(step: _LayerReading) -> list[Shape]:
    shape = step.input()
    gone = step.axes(3, len(shape))
    return [tuple(n for axis, n in enumerate(shape) if axis not in gone or n != 1) or (1,)]


def _expand(step: _LayerReading) -> list[Shape]:
    shape, count = step.input(), len(step.listed(3))
    new, sizes = step.axes(3, len(shape) + count), iter(step.input())
    if len(new) != count:
        raise step.refuse("it names an axis twice")
    return [tuple(1 if axis in new else next(sizes) for axis in range(len(shape) + count))]


def _permute(step: _LayerReading) -> list[Shape]:
    shape = step.input()
    orders = _ORDERS[len(shape)]
    sizes = dict(zip(_AXES[len(shape)], shape, strict=True))
    return [tuple(sizes[axis] for axis in reversed(orders[step.whole(0, most=len(orders) - 1)]))]


def _reduction(step: _LayerReading) -> list[Shape]:
    shape = step.input()
    step.whole(0, most=10)
    step.real(2)
    kept, over = step.whole(4, most=1), range(len(shape))
    every = step.whole(1, 1, 0, 1)
    gone = set(over) if every else step.axes(3, len(shape))
    if not every and step.whole(5, most=1) != 1:
        raise step.refuse("its axes are written as before 2020")
    step.unread -= {3, 5}
    return [tuple(1 if axis in gone else shape[axis] for axis in over if kept or axis not in gone) or (1,)]


def _interp(step: _LayerReading) -> list[Shape]:
    channels, h, w = step.input(3)
    kind, high, wide = step.whole(0, 0, 1, 3), step.whole(3), step.whole(4)
    scales = [float(step.params.get(key, "1")) for key in (1, 2) if "," not in step.params.get(key, "1")]
    step.real(1, 2)
    step.whole(5, most=0), step.whole(6, most=1)
    if min(h, w) < (1, 1, 2, 4)[kind] or not all(0 < scale < 4096 for scale in scales):
        raise step.refuse(f"{h} x {w} is too small for it")
    if not high or not wide:
        if h * scales[0] % 1 or w * scales[1] % 1:
            raise step.refuse("its size is rounded")
        high, wide = int(h * scales[0]), int(w * scales[1])
    return [(channels, high, wide)]


def _padding(step: _LayerReading) -> list[Shape]:
    channels, h, w = step.input(3)
    top, bottom, left, right = (step.whole(key, most=4096) for key in range(4))
    step.real(5)
    if step.whole(4, most=2) == 2 and (max(top, bottom) >= h or max(left, right) >= w):
        raise step.refuse("it reflects more than there is")
    return [(channels, h + top + bottom, w + left + right)]


def _channels(step: _LayerReading, shuffled: bool = False) -> list[Shape]:
    """PixelShuffle, and ShuffleChannel, which only changes their order."""
    (channels, h, w), factor, _ = step.input(3), step.whole(0, 1, 1, 4096), step.whole(1, most=1)
    if channels % (factor if shuffled else factor**2):
        raise step.refuse(f"{factor} does not divide {channels} channels")
    return [(channels, h, w) if shuffled else (channels // factor**2, h * factor, w * factor)]


def _per_channel(arrays: int, one: bool = False) -> Callable[[_LayerReading], list[Shape]]:
    """The rule of a layer with arrays of a number a channel. one: or with one number for all."""

    def rule(step: _LayerReading) -> list[Shape]:
        shape, count = step.input(), step.whole(0, least=1)
        step.real(1)
        if count != shape[0] and not (one and count == 1):
            raise step.refuse(f"it has {count} numbers for {shape[0]} channels")
        for _ in range(arrays):
            step.load(count)
        return [shape]

    return rule


_SAME = ("AbsVal", "Mish", "Noop", "Sigmoid", "Softplus", "Swish", "TanH")
_RULES: dict[str, Callable[[_LayerReading], list[Shape]]] = {
    **dict.fromkeys(_SAME, _numbers()),
    **dict.fromkeys(("ReLU", "ELU", "Dropout", "GELU", "UnaryOp"), _numbers(0)),
    **dict.fromkeys(("Clip", "HardSigmoid", "HardSwish", "SELU", "Softmax"), _numbers(0, 1)),
    "Convolution": _convolution, "ConvolutionDepthWise": lambda step: _convolution(step, grouped=True),
    "Deconvolution": lambda step: _convolution(step, back=True),
    "DeconvolutionDepthWise": lambda step: _convolution(step, grouped=True, back=True),
    "Split": lambda step: [step.input()] * len(step.tops), "BatchNorm": _per_channel(4),
    "PReLU": _per_channel(1, one=True), "InnerProduct": _inner, "Pooling": _pooling,
    "Input": _given, "MemoryData": _memory, "BinaryOp": _binary, "Concat": _concat, "Slice": _slice,
    "Reshape": _reshape, "Flatten": lambda step: [(prod(step.input()),)], "Squeeze": _squeeze, "ExpandDims": _expand,
    "Permute": _permute, "Reduction": _reduction, "Interp": _interp, "Padding": _padding,
    "PixelShuffle": _channels, "ShuffleChannel": lambda step: _channels(step, shuffled=True),
}  # fmt: skip
