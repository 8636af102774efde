"""Script for another environment: replay one artifact's golden examples, or load a model.

Only `edgekit_runtime`, NumPy and an engine are on its path.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgekit_runtime.bundle.jobs import Say, bundle_of, serve
from edgekit_runtime.engines.registry import EngineSetup, delegate_for, load_with
from edgekit_runtime.loading.replay import replay
from edgekit_runtime.modelfile.check import check_artifact, check_model
from edgekit_runtime.system.errors import SelfTestError


def work(job: dict[str, Any], say: Say) -> dict[str, Any]:
    """job: `model` and `format` of a file to load and not to run, or `bundle_job` with:

    recipe: of the artifact
    exact: whether values are compared if this engine made the golden answers
    """
    if "model" in job:
        data = Path(job["model"]).read_bytes()
        check_model(job["format"], data)
        load_with(job["engine"], job["format"], data, EngineSetup(delegate=delegate_for(job["format"], data))).close()
        return {}
    bundle = bundle_of(job)
    entry = bundle.artifact(job["recipe"])
    check_artifact(bundle, entry)
    data = bundle.blob(entry.blob)
    setup = EngineSetup(kernels=job["kernels"], delegate=delegate_for(entry.format, data))
    with load_with(job["engine"], entry.format, data, setup) as loaded:
        say({"loaded": True})
        try:
            return asdict(replay(bundle, entry, loaded, exact=job["exact"]))
        except SelfTestError as error:
            say({"steps": error.steps, "cosine": error.cosine})
            raise


if __name__ == "__main__":
    sys.exit(serve(work))
