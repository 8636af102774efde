"""The child of `prove`: a self-test or a trial of the bundle that the job names.

{"what": "trial", "path": "objects/ab12.ekb", "digest": "...", "key": null, "answers": 200, "most_s": 60, "least": 20,
 "p99_ms": 12.5, "recipe": null, "engine": null}
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from edgekit_runtime.bundle.jobs import Say, bundle_of, serve
from edgekit_runtime.bundle.reader import Bundle
from edgekit_runtime.system.board import cores, peak_mb
from edgekit_runtime.system.children import limit_this_process
from edgekit_runtime.system.errors import BundleError

if TYPE_CHECKING:
    from edgekit_runtime.serving.model import Model

_TELL_EVERY_S = 1.0


def run_trial(job: dict[str, Any], say: Say) -> dict[str, Any]:
    """say: called now and then, to show progress. Raises EdgekitError."""
    bundle = bundle_of(job)
    selftest = job["what"] == "selftest"
    if selftest:
        for entry in bundle.manifest.artifacts:
            if entry.role == "degraded":
                open_model(bundle, entry.recipe, None).close()
    with closing(open_model(bundle, job["recipe"], job["engine"], batching=selftest)) as model:
        last = model.describe()
        engine = f"{last['engine']['name']} {last['engine']['version']}"
        facts = {"engine": engine, "recipe": last["recipe"]}
        if selftest:
            tested = last["selftest"]
            examples = "1 golden example" if tested["examples"] == 1 else f"{tested['examples']} golden examples"
            return {**facts, "text": f"gives its {examples}, at most {tested['worst_steps']:.3g} steps apart"}
        return {**facts, "seen": _measure(model, bundle, job, say)}


def open_model(
    bundle: Bundle, recipe: str | None, engine: str | None, *, batching: bool = True, threads: int | None = None
) -> Model:
    """Open the bundle as an application does, without a cache.

    recipe: that one alone, by the defaults. batching: off in a trial, whose memory is judged: warming up tries larger
    batches the better they pay, and no promise covers them. threads: those alone, without measuring.
    """
    from edgekit_runtime.loading.candidates import TuningOptions
    from edgekit_runtime.loading.readiness import Preparation, prepare
    from edgekit_runtime.loading.tuning import Tuner
    from edgekit_runtime.policy.options import CacheOptions, Options
    from edgekit_runtime.serving.model import Model
    from edgekit_runtime.serving.opened import OpenedBundle

    def never(path: object) -> OpenedBundle:
        raise BundleError("nothing else is opened here", where=str(path))

    wanted = replace(TuningOptions.needed_by(bundle.manifest), engine=engine, pin=recipe, threads=threads)
    how = Preparation(wanted, batching=batching, tuning=None if recipe is None and threads is None else Tuner(0.0))
    opened = OpenedBundle(bundle, prepare(bundle, how))
    try:
        return Model(opened, Options(cache=CacheOptions(memory_mb=0)), never)
    except BaseException:
        opened.close()
        raise


def _measure(model: Model, bundle: Bundle, job: dict[str, Any], say: Say) -> dict[str, Any]:
    """Run the golden inputs again and again. Milliseconds are the engine's own."""
    began = told_at = perf_counter()
    taken: list[float] = []
    for engine_ms in _inferences(model, bundle):
        taken.append(engine_ms)
        now = perf_counter()
        if now - told_at > _TELL_EVERY_S:
            told_at = now
            say({"ran": len(taken)})
        if len(taken) >= job["answers"] or (now - began > job["most_s"] and len(taken) >= job["least"]):
            break
    ordered = sorted(taken)
    p99 = ordered[-(-99 * len(ordered) // 100) - 1]
    limit = job["p99_ms"]
    late = sum(ms > limit for ms in taken) if limit is not None else 0
    return {"answers": len(taken), "late": late, "seconds": perf_counter() - began, "p99_ms": p99, "peak_mb": peak_mb()}


def _inferences(model: Model, bundle: Bundle) -> Iterator[float]:
    items = [bundle.golden_items(golden) for golden in bundle.manifest.golden]
    stateful = model.contract.state != "none"
    while True:
        for golden, item in zip(bundle.manifest.golden, items, strict=True):
            if not stateful:
                yield model.predict(item).timings["engine"]
                continue
            with model.session() as session:
                for at in range(golden.steps or 0):
                    answer = session.predict({name: array[at] for name, array in item.items()})
                    yield answer.timings["engine"]


def work(job: dict[str, Any], say: Say) -> dict[str, Any]:
    limit_this_process(Path(job["path"]).stat().st_size, cores())
    return run_trial(job, say)


if __name__ == "__main__":
    sys.exit(serve(work))
