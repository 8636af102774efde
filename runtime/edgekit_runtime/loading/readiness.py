"""From a checked bundle to a ready engine: choose, load, self-test and warm up.

    prepared = prepare(bundle, Preparation(cache_mb=64))
    prepared.engine.run_batch(items)         # one object for every batch size in use
    prepared.ready.memory_mb, prepared.verdict.why, prepared.degraded

Rules:
- ready means warm: the engine of every batch size in use has run;
- a batch variant that does not pay on this board is freed;
- no engine reads a file whose structure was not checked (`modelfile`), and this process none that no child loaded;
- a golden example is replayed by the very engine that will serve, and all where they have not agreed here before;
- a candidate that passed its trial and does not load now makes way for the next, with its reason;
- under a memory limit the model first gives up batches and cache, and reports it, before it is refused;
- while candidates are measured beside it, a model has no batches that its default candidate would try first;
- what is measured beside a model must fit into the memory with it, else it is measured first.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from time import perf_counter
from typing import Any, TypedDict

from edgekit_runtime.bundle.manifest import ArtifactEntry
from edgekit_runtime.bundle.reader import Bundle, read_bundle
from edgekit_runtime.engines.registry import ANY_GPU, ENGINES, Engine, expected_info, load_with
from edgekit_runtime.engines.variants import BatchEngine, with_spare
from edgekit_runtime.loading.candidates import TuningCandidate, TuningOptions, TuningVerdict, untried_candidates
from edgekit_runtime.loading.replay import SelfTest
from edgekit_runtime.loading.selftest import check_fits, first_open
from edgekit_runtime.loading.tuning import BESIDE, Tuner, offered_candidates, tune
from edgekit_runtime.loading.warming import Load, batches_offered, shares_one_engine, warm_up
from edgekit_runtime.modelfile.check import DELEGATED, check_artifact, delegated_operators
from edgekit_runtime.system.board import homeless, resident_mb
from edgekit_runtime.system.children import StoppableRun
from edgekit_runtime.system.errors import (
    BundleError,
    EdgekitError,
    EngineError,
    MemoryExceeded,
    MissingExtraError,
    SelfTestError,
)
from edgekit_runtime.system.memory import Claim, MemoryBudget, Need, megabytes, room_here
from edgekit_runtime.system.records import asdict, field, record, replace

PROCESS_MB = 40.0
"""The least memory of a process before it loads a model: Python, NumPy, an engine's library."""
_ESTIMATE = 3.0
"""Memory of a loaded artifact by its bytes, unmeasured: file, packed weights, activations."""
_OF_WEIGHTS = 1.3
"""The same of a language model, whose weights are used as they lie in the file."""


@record(frozen=True)
class Preparation:
    """Options of `prepare`.

    wanted: what the caller decided.
    batching: whether batches are wanted at all.
    isolate: run the engine in a process of its own.
    hang_s: the longest run of an isolated engine, seconds; None to find out.
    memory: a budget shared with other models; None for the system's limits.
    cache_mb: the cache's size, in MB (1e6 bytes).
    tuning: None for EDGEKIT_TUNE.
    later: answer first, and measure then (`choose_beside`).
    kv_mb: see `EngineSetup`.
    """

    wanted: TuningOptions = field(default_factory=TuningOptions)
    batching: bool = True
    isolate: bool = False
    hang_s: float | None = None
    memory: MemoryBudget | None = None
    cache_mb: float = 0.0
    tuning: Tuner | None = None
    later: bool = False
    kv_mb: float | None = None


@record(frozen=True)
class Ready:
    """Milliseconds, and MB (1e6 bytes).

    choose_ms: finding the artifact and engine (measuring, or reading the verdict).
    first_ms: the first inference.
    warm_ms: all runs before ready, the first included.
    memory_mb: growth of the process meanwhile, or the isolated engine's resident memory; None if unknown.
    """

    choose_ms: float
    load_ms: float
    first_ms: float
    warm_ms: float
    memory_mb: float | None

    @property
    def total_ms(self) -> float:
        return self.choose_ms + self.load_ms + self.warm_ms

    def as_json(self) -> dict[str, float | None]:
        return {name: None if value is None else round(value, 3) for name, value in asdict(self).items()}


class ReadinessDescription(TypedDict):
    """batches: items -> milliseconds of a run."""

    tuning: dict[str, Any]
    batches: dict[int, float]
    ready: dict[str, float | None]
    degraded: list[str]
    notes: list[str]
    isolated: bool


@record(frozen=True)
class PreparedEngine:
    """An engine that is ready to answer.

    costs: batch size in use -> seconds of a run.
    notes: candidates that did not load, batches that do not pay.
    isolated: the engine has a process of its own, and needs no other watchdog.
    """

    engine: BatchEngine
    entry: ArtifactEntry
    verdict: TuningVerdict
    tested: SelfTest
    costs: Mapping[int, float]
    ready: Ready
    notes: tuple[str, ...]
    claim: Claim
    isolated: bool = False

    @property
    def cache_mb(self) -> float:
        """Memory left for the cache now, in MB (1e6 bytes)."""
        return self.claim.cache_mb

    @property
    def degraded(self) -> tuple[str, ...]:
        """What the model does without for lack of memory."""
        return self.claim.degraded

    def describe(self) -> ReadinessDescription:
        """For `Model.describe()`."""
        return {
            "tuning": self.verdict.describe(),
            "batches": {size: round(seconds * 1e3, 4) for size, seconds in self.costs.items()},
            "ready": self.ready.as_json(),
            "degraded": list(self.degraded),
            "notes": list(self.notes),
            "isolated": self.isolated,
        }

    def close(self) -> None:
        self.engine.close()
        self.claim.release()


def prepare(bundle: Bundle, how: Preparation | None = None) -> PreparedEngine:
    """Everything between a checked bundle and the first request.

    Raises EngineError, SelfTestError, BundleError, MissingExtraError, MemoryExceeded.
    """
    how = how or Preparation()
    begun = perf_counter()
    _check_runnable(bundle, how.wanted)
    verdict = tune(bundle, how.wanted, _tuning(bundle, how))
    try:
        return _ready(bundle, how, verdict, begun)
    except EdgekitError:
        if not verdict.pending:
            raise
    return prepare(bundle, replace(how, later=False))  # another candidate may do


def choose_beside(prepared: PreparedEngine, opened: Bundle, how: Preparation, run: StoppableRun) -> PreparedEngine:
    """Measure, and prepare the fastest; `prepared` itself, with the verdict, if that is it.

    opened: what `prepared` was loaded from.
    Raises as `prepare` does, and ClosedError once `run` was stopped.
    """
    bundle, begun = read_bundle(opened.path, secret=opened.secret), perf_counter()
    if bundle.digest != opened.digest:
        raise BundleError("the file was replaced while it was in use", where=str(bundle.path), do="Open it again")
    before = prepared.verdict
    tuning = _tuning(bundle, how)
    longer_s = BESIDE * tuning.bound_s
    verdict = tune(bundle, how.wanted, replace(tuning, bound_s=longer_s, later=False, beside=True, run=run))
    complete = before.how == "stored" or not how.batching or not batches_offered(bundle, prepared.entry)
    if verdict.chosen == before.chosen and complete:
        return replace(prepared, verdict=verdict)
    run.check()
    fresh = _ready(bundle, how, verdict, begun)
    forms = [(one.entry, one.engine.info, one.engine.sizes) for one in (prepared, fresh)]
    if forms[0] == forms[1]:
        fresh.close()
        return replace(prepared, verdict=verdict, notes=fresh.notes)
    return fresh


def _ready(bundle: Bundle, how: Preparation, verdict: TuningVerdict, begun: float) -> PreparedEngine:
    chosen_at = perf_counter()
    if verdict.pending and verdict.how == "default":
        how = replace(how, batching=False)
    before = resident_mb()
    loaded = _load_first(bundle, verdict, how)
    with ExitStack() as undo:
        undo.callback(loaded.close)
        loaded_at = perf_counter()
        offer = batches_offered(bundle, loaded.entry) if how.batching else {}
        if not shares_one_engine(loaded.entry, offer):
            offer = {size: offer[size] for size in loaded.claim.grant.batches}
        warm = warm_up(bundle, loaded.entry, loaded.single, offer, loaded.load)
        own = getattr(loaded.single, "host", None)  # the process that holds the engine
        after = resident_mb() if own is None else own.resident_mb
        added = None if before is None or after is None else max(0.0, after - (before if own is None else 0.0))
        loaded.claim.settle(after if how.isolate else loaded.claimed_mb(len(warm.engine.sizes)))
        undo.pop_all()
    ready = Ready(
        choose_ms=(chosen_at - begun) * 1e3,
        load_ms=(loaded_at - chosen_at) * 1e3,
        first_ms=warm.first_ms,
        warm_ms=(perf_counter() - loaded_at) * 1e3,
        memory_mb=added,
    )
    return PreparedEngine(
        warm.engine,
        loaded.entry,
        replace(verdict, chosen=loaded.candidate) if verdict.pending else verdict,
        warm.tested,
        dict(warm.engine.seconds),
        ready,
        (*loaded.notes, *warm.notes, *filter(None, [homeless()])),
        loaded.claim,
        how.isolate,
    )


@record(frozen=True)
class _LoadedEngine:
    """The engine for single items, and how to load its variants."""

    candidate: TuningCandidate
    entry: ArtifactEntry
    single: Engine
    load: Load
    claim: Claim
    notes: tuple[str, ...]

    def claimed_mb(self, sizes: int) -> float:
        """The claim, less the variants that were given up. sizes: those left, the single one too."""
        variants = len(self.claim.grant.batches)
        return self.claim.loaded_mb / (1 + variants) * (sizes if variants else 1)

    def close(self) -> None:
        self.single.close()
        self.claim.release()


def _load_first(bundle: Bundle, verdict: TuningVerdict, how: Preparation) -> _LoadedEngine:
    """The chosen candidate, or the next that loads."""
    order = (
        untried_candidates(offered_candidates(bundle, how.wanted)) if verdict.how == "default" else verdict.in_order()
    )
    notes: list[str] = []
    for place, candidate in enumerate(order):
        try:
            return _load(bundle, candidate, verdict, how, tuple(notes))
        except (EngineError, SelfTestError, MemoryExceeded) as error:
            another = any(one.delegate is None for one in order[place + 1 :])
            may_pass = candidate.delegate is not None or candidate.on_gpu or verdict.how != "default"
            own = candidate.on_gpu or candidate.delegate is not None  # its fault may be the driver's or the library's
            if not (another and may_pass) or not (isinstance(error, EngineError) or own):
                raise
            notes.append(f"{candidate.label} does not load: {error}")
    raise AssertionError("there is always a candidate")


def _load(
    bundle: Bundle, candidate: TuningCandidate, verdict: TuningVerdict, how: Preparation, notes: tuple[str, ...]
) -> _LoadedEngine:
    entry = next(one for one in bundle.manifest.artifacts if one.blob == candidate.blob)
    claim = _claim(bundle, candidate, entry, verdict, how)
    with ExitStack() as undo:
        undo.callback(claim.release)
        if verdict.how == "default":  # else its trial was the child that loaded it first
            first_open(bundle, entry, expected_info(candidate.engine, candidate.setup))
        load = _loader(bundle, candidate, how)
        single = load(entry, 1)
        undo.callback(single.close)
        check_fits(bundle, entry, single)
        undo.pop_all()
    return _LoadedEngine(candidate, entry, single, load, claim, notes)


def _loader(bundle: Bundle, candidate: TuningCandidate, how: Preparation) -> Load:
    host = None
    if how.isolate:
        from edgekit_runtime.engines.isolated import IsolatedHost

        limit_s = how.hang_s
        host = IsolatedHost(None if limit_s is None else lambda: limit_s, confidential=bundle.secret is not None)

    def load(entry: ArtifactEntry, batch: int) -> Engine:
        setup = replace(candidate.setup, batch=batch, keep=bundle.secret is None, kv_mb=how.kv_mb)
        data = bundle.blob(entry.blob)
        check_artifact(bundle, entry)
        if host is None:
            alone = partial(load_with, candidate.engine, entry.format, data)
            return with_spare(alone(setup), lambda: alone(replace(setup, kernels="default")))
        engine = host.load(candidate.engine, entry.format, data, setup)
        return with_spare(engine, lambda: host.leave_gpu(engine))

    return load


def _claim(
    bundle: Bundle, candidate: TuningCandidate, entry: ArtifactEntry, verdict: TuningVerdict, how: Preparation
) -> Claim:
    """Raises MemoryExceeded."""
    measured = next((one for one in verdict.tried if one.candidate == candidate), None)
    model_mb = measured.memory_mb if measured is not None else None
    estimate = _ESTIMATE if entry.format != "gguf" else _OF_WEIGHTS
    model_mb = estimate * entry.bytes / 1e6 if model_mb is None else max(model_mb, entry.bytes / 1e6)
    model_mb += how.kv_mb or 0.0
    offer = batches_offered(bundle, entry) if how.batching else {}
    if how.isolate:
        model_mb += PROCESS_MB
    need = Need(model_mb, {} if shares_one_engine(entry, offer) else dict.fromkeys(offer, model_mb), how.cache_mb)
    name = f"{bundle.manifest.name} ({bundle.path.name})"
    return (how.memory or room_here()).claim(name, need)


def _tuning(bundle: Bundle, how: Preparation) -> Tuner:
    """The tuner, within the rest of the memory budget.

    Raises MemoryExceeded if not even a process of its own would fit.
    """
    room = room_here()
    left = how.memory.room_mb if how.memory is not None else room.hard_mb
    if left is not None and how.isolate:
        if left <= PROCESS_MB:
            raise MemoryExceeded(
                f"an isolated process takes {megabytes(PROCESS_MB)} MB before loading anything, and "
                f"{megabytes(max(0.0, left))} MB are left",
                where=f"{bundle.manifest.name} ({bundle.path.name})",
                do="Allow more, close another model, or open it with isolate=False",
            )
        left -= PROCESS_MB
    tuner = replace(how.tuning, memory_mb=left) if how.tuning is not None else Tuner.from_environment(left)
    beside_mb = 2 * PROCESS_MB + 4 * _ESTIMATE * max(entry.bytes for entry in bundle.manifest.artifacts) / 1e6
    fits = how.memory is None and all(mb is None or mb >= beside_mb for mb in (room.hard_mb, room.soft_mb))
    return replace(tuner, later=tuner.later and how.later and fits)


def _check_runnable(bundle: Bundle, wanted: TuningOptions) -> None:
    """Raise BundleError, EngineError or MissingExtraError if no installed engine runs any of it."""
    if wanted.engine not in (None, ANY_GPU, *ENGINES):
        raise EngineError(f"there is no engine '{wanted.engine}'", do=f"Engines: {', '.join(ENGINES)}")
    if offered_candidates(bundle, wanted):
        return
    primary = bundle.artifact()
    own = delegated_operators(primary.ops)
    if own and wanted.delegate is None:
        raise EngineError(
            f"{primary.recipe} has the operator {own[0]}, which only a delegate can run, and none was given",
            where=str(bundle.path),
            do=f'Pass delegate="{DELEGATED[own[0]]}" or set EDGEKIT_DELEGATE, on a machine with the accelerator',
        )
    roles = ("primary",) if wanted.pin == "primary" else ("primary", "alternate")
    formats = {one.format for one in bundle.manifest.artifacts if one.role in roles}
    kinds = [kind for name, kind in ENGINES.items() if wanted.engine is None or wanted.takes(name)]
    if formats.isdisjoint(form for kind in kinds for form in kind.formats):
        do = f"It holds {primary.recipe}" + (", which pin selects" if wanted.pin == "primary" else "")
        on = "a GPU" if wanted.engine == ANY_GPU else wanted.engine
        unfit = BundleError(f"nothing in it runs on {on}", where=str(bundle.path), do=do)
        unfit.of_the_caller = True
        raise unfit
    extra = next(kind.extra for kind in kinds if not formats.isdisjoint(kind.formats))
    if wanted.engine == ANY_GPU:
        extra = "host-gpu"
    raise MissingExtraError(extra, f"running {primary.recipe}", where=str(bundle.path))
