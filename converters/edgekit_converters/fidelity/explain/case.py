"""What a rule looks at, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from edgekit_converters.fidelity.layers import LayerError
from edgekit_converters.graph.graph import Graph, Layer

DAMAGE_DB = 30.0
"""A tensor with a better signal to noise ratio is not damaged: a full range of 8 bits gives 40 to 50 dB."""

ACCUMULATED_DB = 20.0
"""An output with less is damaged even where every layer by itself is well."""

FALL_DB = 3.0
"""A layer whose output is worse than its worst input by less did not do it."""

HALF_DB = 3.0
"""Half of the noise."""

Figure = float | int | str | list[str]


@dataclass(frozen=True)
class Cause:
    """layer: where it shows (`graph.Layer.name`); empty for the file as a whole.

    code: short and stable. what: in words, with figures. evidence: the figures. remedy: what takes it away.
    loss_db: what the layer lost against its inputs (`LayerError.harm_db`).
    float_layers: the layers that take the cause away when they stay in float; empty where that is no remedy.
    """

    layer: str
    code: str
    what: str
    evidence: Mapping[str, Figure]
    remedy: str
    loss_db: float = 0.0
    float_layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class IsolatedLayer:
    """Signal to noise of one layer on the same items, dB.
    kernel_db: with its own kernel rounded and all else in float; artifact_db: in the quantized file.
    where: at its output, or at the model's, wherever the kernel has the greater part in the noise."""

    kernel_db: float
    artifact_db: float
    where: str = "here"

    @property
    def to_blame(self) -> bool:
        """The kernel alone makes half of the noise or more."""
        return self.kernel_db <= self.artifact_db + HALF_DB


@dataclass(frozen=True)
class Case:
    """One quantized file against its float file.

    errors: of `layer_errors`. weights_only: the same for the float file with nothing but its weights rounded, empty
    where not known. kernels: of damaged layers. input_ranges: tensor -> (low, high) that the float file was seen to
    get. input_cuts: tensor -> what is left, dB, of an input that is cut off at the ends of its grid; only those that
    lose something.
    calibrated: tensor -> (low, high) that calibration saw, empty where not known. pieces: parts that the engine's fast
    path was cut into, None where not known; outside: operators that it left out.
    """

    float_graph: Graph
    quantized: Graph
    errors: tuple[LayerError, ...]
    weights_only: tuple[LayerError, ...] = ()
    input_ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    input_cuts: Mapping[str, float] = field(default_factory=dict)
    calibrated: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    kernels: Mapping[str, IsolatedLayer] = field(default_factory=dict)
    pieces: int | None = None
    outside: tuple[str, ...] = ()

    @cached_property
    def by_layer(self) -> Mapping[str, LayerError]:
        return {error.layer: error for error in self.errors}

    @cached_property
    def by_weights(self) -> Mapping[str, LayerError]:
        return {error.layer: error for error in self.weights_only}

    @cached_property
    def layers(self) -> Mapping[str, Layer]:
        return {layer.name: layer for layer in self.float_graph.layers}

    @cached_property
    def producers(self) -> Mapping[str, Layer]:
        """Tensor -> the layer that makes it."""
        return {output: layer for layer in self.float_graph.layers for output in layer.outputs}

    @cached_property
    def damaged(self) -> tuple[tuple[Layer, LayerError], ...]:
        """Layers whose output is bad and worse than what came in, the greatest loss first."""
        found = [
            (self.layers[error.layer], error)
            for error in self.errors
            if error.sqnr_db is not None and error.sqnr_db < DAMAGE_DB and error.harm_db >= FALL_DB
        ]
        return tuple(sorted(found, key=lambda pair: -pair[1].harm_db))

    def with_readers(self, error: LayerError) -> tuple[str, ...]:
        """The layer and those that read its output.
        While one of them is in 8 bits, the value is rounded for it."""
        made = {*self.layers[error.layer].outputs, error.tensor}
        return (error.layer, *(other.name for other in self.float_graph.layers if made & {*other.inputs}))

    def input_errors(self, layer: Layer) -> list[LayerError]:
        """What is known of the layers that make its inputs."""
        makers = [self.producers[name] for name in layer.inputs if name in self.producers]
        return [self.by_layer[maker.name] for maker in makers if maker.name in self.by_layer]

    def upstream(self, layer: Layer, steps: int = 6) -> tuple[str, ...]:
        """The layer and those before it, back to the last that multiplies with weights.
        That one is not among them."""
        found: dict[str, None] = {layer.name: None}
        edge = [layer]
        for _ in range(steps):
            makers = [self.producers[name] for node in edge for name in node.inputs if name in self.producers]
            edge = [maker for maker in makers if maker.weight is None and maker.name not in found]
            found.update(dict.fromkeys(maker.name for maker in edge))
        return tuple(found)
