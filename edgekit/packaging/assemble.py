"""From a chosen artifact to a bundle's manifest and blobs, with golden answers.

Rules:
- golden answers are computed here, by the board's engine;
- a stateful artifact's golden answers are all frames' outputs from a fresh state. Rounding may grow with the state, so
  the sequence runs again with every input and state moved by what kernels differ by (a step of 8 bits, 1e-5 of the
  largest float), and twice the furthest move is allowed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.packaging.bundle_options import BundleTerms
from edgekit.packaging.output_errors import PackagingError
from edgekit.packaging.writer import BundleDraft, Encryption, canonical_json
from edgekit_converters.recipe.artifact import Artifact
from edgekit_runtime.bundle.manifest import (
    ENCRYPTED,
    FORMAT_VERSION,
    GENERATION,
    NCNN,
    TEXT_INPUT,
    ArtifactEntry,
    GoldenExample,
    GoldenOutputs,
    Manifest,
    Promise,
    Role,
    Target,
    Tolerance,
)
from edgekit_runtime.bundle.secrets import Secret
from edgekit_runtime.contract.adapt import dequantize
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.contract.text import tokenizer_file
from edgekit_runtime.engines.registry import ENGINES, Engine, Kernels, load_engine
from edgekit_runtime.loading.replay import Stepper
from edgekit_runtime.modelfile.check import check_model
from edgekit_runtime.system.errors import ModelFileError
from edgekit_runtime.system.strict_json import to_json

_FLOAT_NUDGE = 1e-5
_FLOAT_STEP = 1e-4  # of the largest golden value, as in a bundle's tolerance
_MOST = 100_000  # of a chaotic network, for which only the cosine means anything


def golden_outputs(contract: Contract, artifact: Artifact, engine: Engine, item: Item) -> list[NDArray[Any]]:
    """Return each output as [frames, ...]. The engine is fresh before and after."""
    stepper = Stepper(contract, artifact.inputs, artifact.outputs, engine)
    count = len(next(iter(item.values())))
    frames = [stepper.raw({name: array[at] for name, array in item.items()}) for at in range(count)]
    stepper.reset()
    return [np.stack([value[0] for value in values]) for values in zip(*frames, strict=True)]


def leeway(contract: Contract, artifact: Artifact, engine: Engine, item: Item, golden: Sequence[NDArray[Any]]) -> int:
    """Steps to allow on top of an artifact's own tolerance."""
    shown = {spec.name for spec in contract.caller_outputs}
    moved = golden_outputs(contract, artifact, _PerturbedEngine(engine), item)
    furthest = 0.0
    for spec, first, second in zip(artifact.outputs, golden, moved, strict=True):
        if spec.name in shown:
            a, b = (dequantize(value, spec, np.dtype(np.float32)).astype(np.float64) for value in (first, second))
            largest = float(np.abs(a).max(initial=0))
            step = spec.quantization.scale if spec.quantization else max(_FLOAT_STEP * largest, 1e-12)
            furthest = max(furthest, float(np.abs(a - b).max(initial=0)) / step)
    return min(math.ceil(2 * furthest), _MOST) if math.isfinite(furthest) else _MOST


class _PerturbedEngine(Engine):
    """Another engine whose inputs are moved a little before each run, seeded."""

    def __init__(self, engine: Engine) -> None:
        self.info, self.inputs, self.outputs = engine.info, engine.inputs, engine.outputs
        self._engine, self._random = engine, np.random.default_rng(0)

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        moved: list[NDArray[Any]] = []
        for array in inputs:
            sign = self._random.choice((-1, 1), array.shape)
            if array.dtype.kind == "f":
                array = (array + sign * _FLOAT_NUDGE * np.abs(array).max(initial=0)).astype(array.dtype)
            elif array.dtype.itemsize == 1 and array.dtype.kind != "b":  # wider ones are indexes; flags stay
                limits = np.iinfo(array.dtype)
                array = np.clip(array.astype(np.int16) + sign, limits.min, limits.max).astype(array.dtype)
            moved.append(array)
        return self._engine.run(moved)

    def reset(self) -> None:
        self._engine.reset()

    def close(self) -> None:
        """The caller closes the engine."""


Item = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class BundleArtifact:
    """One artifact of a bundle.

    fidelity, estimate: reports as `--json` prints them
    settings: the recipe as data, None for the artifact's own; a GGUF file has none
    top_scores: as in `ArtifactEntry`
    """

    artifact: Artifact
    fidelity: dict[str, Any] | None = None
    estimate: dict[str, Any] | None = None
    settings: dict[str, Any] | None = None
    top_scores: tuple[int, ...] | None = None


@dataclass(frozen=True)
class BundleContent:
    """What goes into one bundle.

    artifact: the primary one, with its fidelity, estimate and top_scores
    golden: canonical items (contract name -> array without a batch axis); sequences [frames, ...] of a stateful model
    engine: the engine whose answers become golden, None for `pick`'s
    alternates: others within the same limits, for tuning on the board
    batches: the primary artifact for several items at once, if its file has a fixed batch
    degraded: the artifact for late answers
    terms: where and when it may be installed
    promise: the limits that the board checks
    secret: its first key encrypts every blob; None to leave them readable
    texts: what each golden item is the tokens of, None for arrays; may be empty
    """

    name: str
    version: str
    model_id: str
    contract: Contract
    target: Target
    artifact: Artifact
    golden: Sequence[Item]
    fidelity: dict[str, Any] | None = None
    estimate: dict[str, Any] | None = None
    top_scores: tuple[int, ...] | None = None
    tools: dict[str, str] = field(default_factory=dict)
    engine: str | None = None
    alternates: Sequence[BundleArtifact] = ()
    batches: Sequence[BundleArtifact] = ()
    degraded: BundleArtifact | None = None
    terms: BundleTerms = field(default_factory=BundleTerms)
    promise: Promise | None = None
    secret: Secret | None = None
    texts: Sequence[str | None] = ()


def assemble(content: BundleContent) -> tuple[BundleDraft, Manifest]:
    """The draft with every blob, and the manifest that names them."""
    draft = BundleDraft(Encryption(content.secret, content.model_id) if content.secret is not None else None)
    primary = BundleArtifact(content.artifact, content.fidelity, content.estimate, top_scores=content.top_scores)
    shipped = (primary, *content.alternates)
    entries = tuple(
        _artifact_entry(draft, one, "alternate" if index else "primary") for index, one in enumerate(shipped)
    )
    if content.degraded is not None:
        shipped += (content.degraded,)
        entries += (_artifact_entry(draft, content.degraded, "degraded"),)
    entries += tuple(_artifact_entry(draft, one, "batch") for one in content.batches)
    answers = []
    for artifact in (one.artifact for one in shipped):
        name = content.engine if artifact is content.artifact else None
        kernels: Kernels = ENGINES[name].portable if name in ENGINES else "default"
        with load_engine(artifact.recipe.format, artifact.data, threads=1, engine=name, kernels=kernels) as engine:
            answers.append([_record_answer(draft, content.contract, artifact, engine, item) for item in content.golden])
    golden = []
    texts = content.texts or [None] * len(content.golden)
    for item, text, *each in zip(content.golden, texts, *answers, strict=True):
        arrays = {name: np.ascontiguousarray(array) for name, array in item.items()}
        inputs = {name: draft.add(array.tobytes()) for name, array in arrays.items()}
        dtypes = {name: array.dtype.name for name, array in arrays.items()}
        steps = len(next(iter(item.values()))) if content.contract.state != "none" else None
        said = None if text is None else draft.add(text.encode())
        golden.append(GoldenExample(inputs=inputs, dtypes=dtypes, answers=tuple(each), steps=steps, text=said))
    spec = content.contract.text
    manifest = Manifest(
        format=FORMAT_VERSION,
        name=content.name,
        version=content.version,
        model_id=content.model_id,
        contract=content.contract,
        contract_digest=hashlib.sha256(canonical_json(to_json(content.contract))).hexdigest(),
        target=content.target,
        artifacts=entries,
        golden=tuple(golden),
        blobs=(),
        tools=content.tools,
        licence=content.terms.licence,
        rollout_seq=content.terms.rollout_seq,
        not_before=content.terms.not_before,
        expires=content.terms.expires,
        compatible=content.terms.boards(content.target.profile),
        promise=content.promise,
        requires=(
            *((ENCRYPTED,) if content.secret is not None else ()),
            *((NCNN,) if any(entry.format == "ncnn" for entry in entries) else ()),
            *((TEXT_INPUT,) if spec is not None else ()),
            *((GENERATION,) if content.contract.generation is not None else ()),
        ),
        tokenizer=None if spec is None else draft.add(tokenizer_file(spec.tokenizer)),
    )
    return draft, manifest


def tolerance(artifact: Artifact) -> Tolerance:
    """How far a board's answer may be from the golden one: a little more than measured.

    Between x86-64 and emulated ARM on one engine version TFLite int8 differs by at most one step, floats by less than
    1e-5 of the largest value, ONNX Runtime's int8 by a few per cent of a deep network's largest output.
    """
    if artifact.recipe.precision == "float32":
        return Tolerance(steps=10, cosine=0.999)
    if artifact.recipe.format == "tflite" and artifact.recipe.precision == "int8":
        return Tolerance(steps=2, cosine=0.95)
    return Tolerance(steps=500, cosine=0.95)


def _artifact_entry(draft: BundleDraft, shipped: BundleArtifact, role: Role) -> ArtifactEntry:
    artifact, recipe, plan = shipped.artifact, shipped.artifact.recipe, shipped.artifact.plan
    try:  # the file may use no other operators from now on
        operators = check_model(recipe.format, artifact.data).ops
    except ModelFileError as error:
        raise PackagingError(error.what, where=f"the model file of {recipe.name}", do=error.do) from error
    settings = {  # the recipe as data, to make the artifact again
        "mixed": recipe.mixed,
        "symmetric": recipe.symmetric,
        "per_tensor": recipe.per_tensor,
        "finished": recipe.finished,
        "samples": artifact.samples,
        "ranges": plan.ranges,
        "fixed_ranges": [list(one) for one in sorted(plan.fixed_ranges)],
        "float_layers": sorted(plan.float_layers),
        "steps": list(plan.steps),
    }
    return ArtifactEntry(
        role=role,
        recipe=recipe.name,
        format=recipe.format,
        precision=recipe.precision,
        blob=draft.add(artifact.data, "model"),
        bytes=len(artifact.data),
        inputs=artifact.inputs,
        outputs=artifact.outputs,
        tools=artifact.tools,
        fidelity=shipped.fidelity,
        estimate=shipped.estimate,
        ops=operators,
        top_scores=shipped.top_scores,
        settings=settings if shipped.settings is None and recipe.format != "gguf" else shipped.settings,
    )


def _record_answer(
    draft: BundleDraft, contract: Contract, artifact: Artifact, engine: Engine, item: Item
) -> GoldenOutputs:
    allowed = tolerance(artifact)
    if contract.state == "none":
        raw = [value[0] for value in Stepper(contract, artifact.inputs, artifact.outputs, engine).raw(item)]
    else:
        raw = golden_outputs(contract, artifact, engine, item)
        allowed = replace(allowed, steps=allowed.steps + leeway(contract, artifact, engine, item, raw))
    shown = {spec.name for spec in contract.caller_outputs}
    for spec, value in zip(artifact.outputs, raw, strict=True):
        if spec.name in shown and not np.isfinite(value).all():
            raise PackagingError(
                f"'{spec.name}' of {artifact.recipe.name} answers NaN or infinity to an example: nothing could be "
                "compared with that on a board",
                where=engine.info.name,
                do="Look for a division by zero or an overflow in the model, or evaluate with other examples",
            )
    return GoldenOutputs(
        recipe=artifact.recipe.name,
        engine=engine.info.name,
        engine_version=engine.info.version,
        outputs={
            spec.name: draft.add(np.ascontiguousarray(value).tobytes())
            for spec, value in zip(artifact.outputs, raw, strict=True)
            if spec.name in shown
        },
        tolerance=allowed,
    )
