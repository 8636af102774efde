"""The contract: what goes into a model and what comes out, independent of any artifact.

An artifact may be int8 and NHWC or float and NCHW; the caller sees the contract, which travels in the manifest.
Three views of one input:

    what the caller has     PIL image, path, encoded bytes, array        -> decode ->
    the canonical tensor    uint8 [height, width, channels] for images   -> adapt  ->
    one artifact's tensor   its own dtype, layout, mean/std, scale and zero-point: `TensorSpec`

What raw outputs mean:

    DetectionSpec("output0", "box scores", "cxcywh", span=(640, 640), candidates="last")      # YOLOv8 as it is exported
    DetectionSpec("boxes", "box", "yxyx", span=(1, 1), scores="scores", classes="classes", suppressed=True)
    EmbeddingSpec("features", normalize=True)
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeVar

from edgekit_runtime.system.records import record, replace

BoxFormat = Literal["xyxy", "yxyx", "xywh", "cxcywh"]
Row = Literal["box", "box scores", "box objectness scores", "box score class"]
Candidates = Literal["first", "last"]
Activation = Literal["none", "sigmoid", "softmax"]
Background = Literal["none", "first", "last"]
Task = Literal["classification", "detection", "embedding", "generation", "raw"]
State = Literal["none", "explicit", "internal"]
Color = Literal["rgb", "bgr", "gray"]
Resize = Literal["stretch", "center-crop", "letterbox"]
Interpolation = Literal["nearest", "bilinear", "bicubic"]
Truncation = Literal["right", "left", "refuse"]
Pooling = Literal["none", "mean", "cls"]
_Spec = TypeVar("_Spec", "InputContract", "OutputContract")


@record(frozen=True)
class DetectionSpec:
    """How a detector's raw outputs become boxes. The network itself decodes anchors.

    boxes: output with one row a candidate.
    row: the columns of a row, in order; if only the `box`, the rest is in `scores`.
    format: corners (`xyxy`, or `yxyx` as in TensorFlow), upper left corner and size (`xywh`), or centre and size.
    span: (width, height) of a box that covers the network's picture: its pixels, or (1, 1) for fractions.
    scores: output [N, C], one a class, or [N] for the classes in the output `classes`.
    count: output whose first number says how many of the N rows are filled.
    candidates: axis of the candidates in `boxes` and [N, C] scores: `first` for [N, 4 + C], `last` for [4 + C, N].
    activation: makes probabilities of scores (sigmoid: of objectness too).
    background: the class that means nothing; labels leave it out.
    suppressed: the network ends in its own non-maximum suppression.
    score_threshold, iou_threshold, max_boxes: which boxes an answer has.
    class_aware: boxes of different classes never suppress each other."""

    boxes: str
    row: Row
    format: BoxFormat
    span: tuple[float, float]
    scores: str | None = None
    classes: str | None = None
    count: str | None = None
    candidates: Candidates = "first"
    activation: Activation = "none"
    background: Background = "none"
    suppressed: bool = False
    score_threshold: float = 0.25
    iou_threshold: float = 0.45
    max_boxes: int = 100
    class_aware: bool = True


@record(frozen=True)
class EmbeddingSpec:
    """output: the one that holds the vector.
    normalize: whether `answer.vector` has length 1."""

    output: str
    normalize: bool = False


@record(frozen=True)
class ImageSpec:
    """How a picture becomes the canonical uint8 tensor and the original network's input.

    height, width: pixels.
    mean, std: the network's input is `(pixel - mean) / std`, pixels from 0 to 255, one value a channel.
    crop: with `center-crop`, side of the centre square kept, as a fraction of the shorter side, before resizing."""

    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    color: Color = "rgb"
    resize: Resize = "stretch"
    crop: float = 1.0
    interpolation: Interpolation = "bilinear"

    @property
    def channels(self) -> int:
        return 1 if self.color == "gray" else 3


@record(frozen=True)
class InputContract:
    """One input.

    shape: one item, no batch axis; for images the canonical [height, width, channels].
    dtype: NumPy name of what the original model takes; a caller's float array is already normalised."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    image: ImageSpec | None = None


@record(frozen=True)
class OutputContract:
    """One output of the original model. shape: one item, no batch axis; dtype: a NumPy name."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@record(frozen=True)
class TextSpec:
    """How a text becomes token ids; their number is the length of the input `ids`.

    tokenizer: SHA-256 of the tokenizer.json, in hex.
    ids, mask, types: the inputs that take token ids, 1 for each token that is not padding, and token types.
    pad: the id behind a shorter text.
    truncation: where a longer text is cut, or `refuse`.
    special_tokens: whether the tokenizer adds those of the model, as [CLS] and [SEP].
    pooling: how the model file makes one vector of its tokens' vectors, for a person."""

    tokenizer: str
    ids: str
    mask: str | None = None
    types: str | None = None
    pad: int = 0
    truncation: Truncation = "right"
    special_tokens: bool = True
    pooling: Pooling = "none"

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs that a text fills."""
        return tuple(name for name in (self.ids, self.mask, self.types) if name is not None)


@record(frozen=True)
class GenerationSpec:
    """A language model. Input and output are the row and the token ids of a golden example.

    context: tokens of prompt and answer that it was trained for.
    chat: whether it takes messages; else a text, which it continues."""

    context: int
    chat: bool = False


@record(frozen=True)
class CarriedState:
    """A state that goes in and comes out: `output` is the next run's `input`.

    initial: the first run's input: None for zeros, one number throughout, or every value of one item in C order."""

    input: str
    output: str
    initial: tuple[float, ...] | None = None


@record(frozen=True)
class Contract:
    """Inputs and outputs by name, and what the answer means.

    task: what an answer offers besides named outputs: `top(k)`, `boxes`, `vector`, or nothing for `raw`; `generation`
        is asked by `Model.generate`.
    labels: one name a class, in index order, without a detector's background.
    scores: a classifier's output: probabilities, or logits that need a softmax.
    state: whether an answer depends on earlier ones; `explicit`: a session carries the tensors in `carried`;
        `internal`: the model keeps its state.
    carried: the states, which are among inputs and outputs.
    hop: samples from the start of one piece of a recording to the next, for a stateful model; None for the whole piece.
    detection, embedding, generation: for these tasks only.
    text: for a model of token ids that may be given as a text. What is absent is not in a contract's digest."""

    task: Task
    inputs: tuple[InputContract, ...]
    outputs: tuple[OutputContract, ...]
    labels: tuple[str, ...] | None = None
    scores: Literal["probabilities", "logits"] | None = None
    state: State = "none"
    carried: tuple[CarriedState, ...] | None = None
    hop: int | None = None
    detection: DetectionSpec | None = None
    embedding: EmbeddingSpec | None = None
    text: TextSpec | None = None
    generation: GenerationSpec | None = None

    def input(self, name: str) -> InputContract:
        return next(spec for spec in self.inputs if spec.name == name)

    @property
    def caller_inputs(self) -> tuple[InputContract, ...]:
        """What a caller passes: all inputs but the states that a session carries."""
        return _without(self.inputs, {pair.input for pair in self.carried or ()})

    @property
    def caller_outputs(self) -> tuple[OutputContract, ...]:
        """What a caller gets: all outputs but the states that a session carries."""
        return _without(self.outputs, {pair.output for pair in self.carried or ()})

    @property
    def of_caller(self) -> Contract:
        """The contract without the states that a session carries."""
        if not self.carried:
            return self
        return replace(self, inputs=self.caller_inputs, outputs=self.caller_outputs, carried=None)


def _without(specs: tuple[_Spec, ...], names: Collection[str]) -> tuple[_Spec, ...]:
    return tuple(spec for spec in specs if spec.name not in names)


Layout = Literal["NHWC", "NCHW"]


@record(frozen=True)
class Quantization:
    """real = scale * (quantized - zero_point), one pair for the whole tensor."""

    scale: float
    zero_point: int


@record(frozen=True)
class TensorSpec:
    """One input or output of a model file.

    name: the contract's name, the same for every artifact.
    tensor: the name in this file.
    dtype: a NumPy name.
    shape: batch axis first, -1 for a free axis.
    layout: for images only."""

    name: str
    tensor: str
    dtype: str
    shape: tuple[int, ...]
    layout: Layout | None = None
    quantization: Quantization | None = None

    @property
    def free_batch(self) -> bool:
        """True when the file takes any number of items at once."""
        return bool(self.shape) and self.shape[0] == -1
