"""`describe()` and `stats()` of an open model, without asking the engine.

    describe_model(journey, None)["engine"]      # {"name": "litert", "version": "2.3.0", "threads": 2, ...}
    model_metrics(journey, healthy=True).queued

Both read what is known already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

from edgekit_runtime.engines.registry import on_gpu
from edgekit_runtime.loading.readiness import ReadinessDescription

if TYPE_CHECKING:
    from edgekit_runtime.serving.journey import Journey
    from edgekit_runtime.telemetry.metrics import ModelMetrics


class EngineDescription(TypedDict):
    """arithmetic: `exact`, or `fast` where sums of 8-bit products may saturate.
    gpu: its name, of several all names; None on the processor."""

    name: str
    version: str
    threads: int
    arithmetic: str
    device: Literal["cpu", "gpu"]
    gpu: str | None
    delegate: str | None


class ModelDescription(ReadinessDescription):
    """What `Model.describe()` gives. artifact: a digest. telemetry: None if not reporting."""

    name: str
    version: str
    profile: str
    recipe: str
    role: str
    why_alternate: str
    artifact: str
    engine: EngineDescription
    inputs: dict[str, str]
    selftest: dict[str, Any]
    state: str
    max_batch: int
    batching: dict[str, object]
    cache: bool
    signed: bool
    encrypted: bool
    trust: str
    installed: dict[str, Any] | None
    degraded_artifact: dict[str, Any] | None
    hosts: list[dict[str, Any]]
    telemetry: dict[str, Any] | None


def describe_model(journey: Journey, telemetry: dict[str, Any] | None) -> ModelDescription:
    """What is in use: bundle, artifact, engine, the way inputs travel, the self-test's result."""
    opened, device = journey.opened, journey.device
    prepared, manifest = opened.prepared, opened.bundle.manifest
    tested, info = prepared.tested, prepared.engine.info
    return {
        "name": manifest.name,
        "version": manifest.version,
        "profile": manifest.target.profile,
        "recipe": prepared.entry.recipe,
        "role": prepared.entry.role,
        "why_alternate": opened.why_alternate,
        "artifact": prepared.entry.blob,
        "engine": {
            "name": info.name,
            "version": info.version,
            "threads": info.threads,
            "arithmetic": info.arithmetic,
            "device": "gpu" if on_gpu(info.name, info.kernels) else "cpu",
            "gpu": info.gpu or None,
            "delegate": info.delegate,
        },
        **prepared.describe(),
        "inputs": device.ways(),
        "selftest": {
            "examples": tested.examples,
            "same_engine": tested.same_engine,
            "worst_steps": tested.worst_steps,
            "worst_cosine": tested.worst_cosine,
        },
        "state": journey.contract.state,
        "max_batch": device.costs.limit,
        "batching": device.costs.as_json(),
        "cache": journey.cache is not None,
        "signed": opened.bundle.trusted,
        "encrypted": manifest.encrypted_with is not None,
        "trust": opened.bundle.trust_decision.text,
        "installed": opened.held.describe() if opened.held is not None else None,
        "degraded_artifact": None
        if opened.degraded is None
        else {"recipe": opened.degraded.entry.recipe, "engine": opened.degraded_engine},
        "hosts": opened.hosts.describe() if opened.hosts is not None else [],
        "telemetry": telemetry,
    }


def model_metrics(journey: Journey, *, healthy: bool) -> ModelMetrics:
    """This model's part of a page for Prometheus."""
    from edgekit_runtime.telemetry.metrics import ModelMetrics

    prepared, cache = journey.opened.prepared, journey.cache
    manifest, info = journey.opened.bundle.manifest, prepared.engine.info
    kept = cache.stats() if cache is not None else None
    tiers = {} if kept is None else {"memory": kept.memory, "shared": kept.shared, "disk": kept.disk}
    return ModelMetrics(
        manifest.name,
        manifest.version,
        journey.meter.counted(),
        {"recipe": prepared.entry.recipe, "engine": info.name, "engine_version": info.version},
        journey.device.batcher.queued,
        journey.device.batcher.stats().batches,
        {tier: stats for tier, stats in tiers.items() if stats is not None},
        healthy=healthy,
        restarts=journey.device.engine.restarts,
        faults=journey.faults.counts(),
    )
