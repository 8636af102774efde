"""Run in another environment: the golden examples of one artifact on the engine that is there. NumPy and an engine are enough.

    python replayed_child.py BUNDLE RECIPE ENGINE KERNELS [loosely]        # one line of JSON; the key of an encrypted
                                                                           # bundle, or null, on standard input
    python replayed_child.py --load MODEL FORMAT ENGINE                    # loads a bare model file and runs nothing

loosely: values are compared by class and likeness even with the version that made the golden answers.

It is a script and no module: beside it nothing of edgekit's is on the path but `edgekit_runtime`.
"""

from __future__ import annotations

import json
import sys


def main(arguments: list[str]) -> int:
    return load(*arguments[1:]) if arguments[0] == "--load" else replay_golden(arguments)


def load(path: str, format: str, engine: str) -> int:  # noqa: A002 - the manifest's word
    from pathlib import Path

    from edgekit_runtime.engines import Setup, load_with
    from edgekit_runtime.engines.registry import delegate_for
    from edgekit_runtime.errors import EdgekitError
    from edgekit_runtime.modelfile import check_model

    data = Path(path).read_bytes()
    try:
        check_model(format, data)
        load_with(engine, format, data, Setup(delegate=delegate_for(format, data))).close()
    except EdgekitError as error:
        print(json.dumps({"failed": "load", "what": error.what}))
        return 1
    print(json.dumps({"loaded": True}))
    return 0


def replay_golden(arguments: list[str]) -> int:
    path, recipe, engine, kernels, *how = arguments
    from edgekit_runtime.bundle import read_bundle
    from edgekit_runtime.bundle.secrets import Secret
    from edgekit_runtime.engines import Setup, load_with
    from edgekit_runtime.engines.registry import delegate_for
    from edgekit_runtime.errors import EdgekitError, EngineError
    from edgekit_runtime.modelfile import check_artifact
    from edgekit_runtime.selftest import replay

    stage = "load"
    try:
        bundle = read_bundle(path, secret=Secret.received(json.load(sys.stdin)))
        entry = bundle.artifact(recipe)
        check_artifact(bundle, entry)
        data = bundle.blob(entry.blob)
        setup = Setup(kernels=kernels, delegate=delegate_for(entry.format, data))  # type: ignore[arg-type]
        with load_with(engine, entry.format, data, setup) as loaded:
            stage = "answer"
            found = replay(bundle, entry, loaded, exact="loosely" not in how)
    except EdgekitError as error:
        stage = "run" if stage == "answer" and isinstance(error, EngineError) else stage
        apart = {name: getattr(error, name, None) for name in ("steps", "cosine")}
        print(json.dumps({"failed": stage, "what": error.what, **apart}))
        return 1
    told = {
        "steps": found.worst_steps,
        "cosine": found.worst_cosine,
        "examples": found.examples,
        "same": found.same_engine,
    }
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
