"""The child of `prove`: the job on stdin, one line of JSON with what came of it on stdout, and dots while it works.

{"what": "trial", "path": "objects/ab12.ekb", "digest": "...", "answers": 200, "most_s": 60, "least": 20, "p99_ms": 12.5,
 "recipe": null, "engine": null}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from edgekit_runtime.board import cores, peak_mb
from edgekit_runtime.bundle import Bundle, read_bundle
from edgekit_runtime.children import die_with_parent
from edgekit_runtime.errors import BundleError, EdgekitError, MemoryExceeded
from edgekit_runtime.rlimits import limit_this_process

if TYPE_CHECKING:
    from edgekit_runtime.model import Model

__all__ = ["main", "proved"]

_TELL_EVERY_S = 1.0


def proved(job: dict[str, Any], secret: Any, tell: Callable[[], object]) -> dict[str, Any]:
    """What the parent reads. tell: called after an inference, now and then. Raises EdgekitError."""
    bundle = read_bundle(job["path"], secret=secret)
    if bundle.digest != job["digest"]:
        raise BundleError("the file was replaced while it was installed", where=job["path"], do="Install it again")
    with closing(_opened(bundle, job["recipe"], job["engine"])) as model:
        told = model.describe()
        engine = f"{told['engine']['name']} {told['engine']['version']}"
        facts = {"engine": engine, "recipe": told["recipe"]}
        if job["what"] == "selftest":
            tested = told["selftest"]
            examples = "1 golden example" if tested["examples"] == 1 else f"{tested['examples']} golden examples"
            return {**facts, "told": f"gives its {examples}, at most {tested['worst_steps']:.3g} steps apart"}
        return {**facts, "seen": _seen(model, bundle, job, tell)}


def _opened(bundle: Bundle, recipe: str | None, engine: str | None) -> Model:
    """As an application opens it, without a cache: every answer is the device's. recipe: that one alone, by the defaults."""
    from edgekit_runtime.model import Model
    from edgekit_runtime.opened import Opened
    from edgekit_runtime.options import Options
    from edgekit_runtime.readiness import Preparation, prepare
    from edgekit_runtime.tuning import Tuning, Wanted

    def never(path: object) -> Opened:
        raise BundleError("nothing else is opened here", where=str(path))

    wanted = replace(Wanted.needed_by(bundle.manifest), engine=engine, pin=recipe)
    opened = Opened(bundle, prepare(bundle, Preparation(wanted, tuning=None if recipe is None else Tuning(0.0))))
    try:
        return Model(opened, Options(cache_mb=0.0), never)
    except BaseException:
        opened.close()
        raise


def _seen(model: Model, bundle: Bundle, job: dict[str, Any], tell: Callable[[], object]) -> dict[str, Any]:
    """The golden inputs again and again. Milliseconds of an inference are the engine's own."""
    began = told_at = perf_counter()
    taken: list[float] = []
    for engine_ms in _inferences(model, bundle):
        taken.append(engine_ms)
        now = perf_counter()
        if now - told_at > _TELL_EVERY_S:
            told_at = now
            tell()
        if len(taken) >= job["answers"] or (now - began > job["most_s"] and len(taken) >= job["least"]):
            break
    ordered = sorted(taken)
    p99 = ordered[-(-99 * len(ordered) // 100) - 1]
    limit = job["p99_ms"]
    late = sum(ms > limit for ms in taken) if limit is not None else 0
    return {
        "answers": len(taken),
        "late": late,
        "seconds": perf_counter() - began,
        "p99_ms": p99,
        "peak_mb": peak_mb(),
    }


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


def main() -> int:
    from edgekit_runtime.bundle.secret_key import Secret

    die_with_parent()
    out, job = sys.stdout, json.load(sys.stdin)

    def say(text: str) -> None:
        out.write(f"{text}\n")
        out.flush()

    try:
        limit_this_process(Path(job["path"]).stat().st_size, cores())
        say(json.dumps(proved(job, Secret.received(job["key"]), lambda: say("."))))
    except EdgekitError as error:
        say(json.dumps({"error": error.as_json()}))
        return 1
    except MemoryError:
        much = MemoryExceeded("it takes more memory than a model of its size may", where=job["path"])
        say(json.dumps({"error": much.as_json()}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
