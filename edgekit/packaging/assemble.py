"""From a chosen artifact to a bundle's manifest and blobs: the golden answers are computed here, by the board's engine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit.errors import PackagingError
from edgekit.packaging.encryption import Encryption
from edgekit.packaging.sequences import answered, leeway
from edgekit.packaging.terms import Terms
from edgekit.packaging.writer import BundleDraft, canonical_json
from edgekit_converters.targets.artifact import Artifact
from edgekit_runtime.bundle import (
    FORMAT_VERSION,
    ArtifactEntry,
    Golden,
    GoldenOutputs,
    Manifest,
    Promise,
    Target,
    Tolerance,
)
from edgekit_runtime.bundle.codec import to_json
from edgekit_runtime.bundle.manifest import ENCRYPTED
from edgekit_runtime.bundle.secrets import Secret
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.engines import ENGINES, Engine, Kernels, load_engine
from edgekit_runtime.errors import ModelFileError
from edgekit_runtime.modelfile import check_model
from edgekit_runtime.stepping import Stepper

__all__ = ["Content", "Shipped", "assemble", "tolerance"]

Item = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Shipped:
    """One artifact of a bundle. fidelity, estimate: reports as `--json` prints them."""

    artifact: Artifact
    fidelity: dict[str, Any] | None = None
    estimate: dict[str, Any] | None = None


@dataclass(frozen=True)
class Content:
    """What goes into one bundle.

    artifact: the primary one, with its fidelity and estimate. alternates: others that keep the same limits, for tuning on
    the board. batches: the primary artifact for several items at once, where its file has a fixed batch. golden: canonical items (contract name -> array, no batch axis); every artifact answers each of them. Of a stateful model:
    sequences, [frames, ...] of what a caller passes, each answered from a fresh state.
    engine: the engine whose answers become golden; None for the one `pick` chooses. terms: where and when it may be
    installed. promise: what the board is held to. secret: encrypts every blob with its first key, None to leave them readable.
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
    tools: dict[str, str] = field(default_factory=dict)
    engine: str | None = None
    alternates: Sequence[Shipped] = ()
    batches: Sequence[Shipped] = ()
    terms: Terms = field(default_factory=Terms)
    promise: Promise | None = None
    secret: Secret | None = None


def assemble(content: Content) -> tuple[BundleDraft, Manifest]:
    """The draft with every blob, and the manifest that names them."""
    draft = BundleDraft(Encryption(content.secret, content.model_id) if content.secret is not None else None)
    shipped = (Shipped(content.artifact, content.fidelity, content.estimate), *content.alternates)
    entries = tuple(_entry(draft, one, "alternate" if index else "primary") for index, one in enumerate(shipped))
    entries += tuple(_entry(draft, one, "batch") for one in content.batches)
    answers = [_answers(draft, content, one.artifact) for one in shipped]
    golden = tuple(
        _golden(draft, item, each, content.contract.state != "none")
        for item, *each in zip(content.golden, *answers, strict=True)
    )
    manifest = Manifest(
        format=FORMAT_VERSION,
        name=content.name,
        version=content.version,
        model_id=content.model_id,
        contract=content.contract,
        contract_digest=hashlib.sha256(canonical_json(to_json(content.contract))).hexdigest(),
        target=content.target,
        artifacts=entries,
        golden=golden,
        blobs=(),
        tools=content.tools,
        licence=content.terms.licence,
        rollout_seq=content.terms.rollout_seq,
        not_before=content.terms.not_before,
        expires=content.terms.expires,
        compatible=content.terms.boards(content.target.profile),
        promise=content.promise,
        requires=(ENCRYPTED,) if content.secret is not None else (),
    )
    return draft, manifest


def tolerance(artifact: Artifact) -> Tolerance:
    """How far a board's answer may lie from the golden one.

    Measured between x86-64 and emulated ARM on the same engine version: TFLite int8 differs by at most one step of its
    output, floats by less than 1e-5 of the largest value, ONNX Runtime's int8 by a few per cent of a deep net's largest
    output. The bounds leave room for that and for little more.
    """
    if artifact.recipe.precision == "float32":
        return Tolerance(steps=10, cosine=0.999)
    if artifact.recipe.format == "tflite" and artifact.recipe.precision == "int8":
        return Tolerance(steps=2, cosine=0.95)
    return Tolerance(steps=500, cosine=0.95)


def _entry(draft: BundleDraft, shipped: Shipped, role: Literal["primary", "alternate", "batch"]) -> ArtifactEntry:
    artifact = shipped.artifact
    return ArtifactEntry(
        role=role,
        recipe=artifact.recipe.name,
        format=artifact.recipe.format,
        precision=artifact.recipe.precision,
        blob=draft.add(artifact.data, "model"),
        bytes=len(artifact.data),
        inputs=artifact.inputs,
        outputs=artifact.outputs,
        tools=artifact.tools,
        fidelity=shipped.fidelity,
        estimate=shipped.estimate,
        ops=_operators(artifact),
        settings=_settings(artifact),
    )


def _operators(artifact: Artifact) -> tuple[str, ...]:
    """What the file uses, which is all that it may use from now on. Raises PackagingError for a file that is no model."""
    try:
        return check_model(artifact.recipe.format, artifact.data).ops
    except ModelFileError as error:
        raise PackagingError(error.what, where=f"the model file of {artifact.recipe.name}", do=error.do) from error


def _settings(artifact: Artifact) -> dict[str, Any]:
    """The recipe as data: with it, and the tools, the artifact can be made again."""
    recipe, plan = artifact.recipe, artifact.plan
    return {
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


def _answers(draft: BundleDraft, content: Content, artifact: Artifact) -> list[GoldenOutputs]:
    """What one artifact answers to each golden item."""
    name = content.engine if artifact is content.artifact else None
    kernels: Kernels = ENGINES[name].portable if name in ENGINES else "default"
    with load_engine(artifact.recipe.format, artifact.data, threads=1, engine=name, kernels=kernels) as engine:
        return [_answer(draft, content.contract, artifact, engine, item) for item in content.golden]


def _answer(draft: BundleDraft, contract: Contract, artifact: Artifact, engine: Engine, item: Item) -> GoldenOutputs:
    allowed = tolerance(artifact)
    if contract.state == "none":
        raw = [value[0] for value in Stepper(contract, artifact.inputs, artifact.outputs, engine).raw(item)]
    else:
        raw = answered(contract, artifact, engine, item)
        allowed = replace(allowed, steps=allowed.steps + leeway(contract, artifact, engine, item, raw))
    told = {spec.name for spec in contract.caller_outputs}
    for spec, value in zip(artifact.outputs, raw, strict=True):
        if spec.name in told and not np.isfinite(value).all():
            raise PackagingError(
                f"'{spec.name}' of {artifact.recipe.name} answers NaN or infinity to an example: nothing could be compared "
                "with that on a board",
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
            if spec.name in told
        },
        tolerance=allowed,
    )


def _frames(item: Item) -> int:
    return len(next(iter(item.values())))


def _golden(draft: BundleDraft, item: Item, answers: Sequence[GoldenOutputs], stateful: bool) -> Golden:
    arrays = {name: np.ascontiguousarray(array) for name, array in item.items()}
    return Golden(
        inputs={name: draft.add(array.tobytes()) for name, array in arrays.items()},
        dtypes={name: array.dtype.name for name, array in arrays.items()},
        answers=tuple(answers),
        steps=_frames(item) if stateful else None,
    )
