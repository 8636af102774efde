"""The child of a first open: the job as JSON on its standard input, the verdict as the last line of its standard output.

It walks the model file's structure, then loads it within limits of memory and time (`rlimits`), and says after every run that
there was one. What it refuses, and what failed, is one line of standard error each, told apart by how it begins.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from numpy.typing import NDArray

from edgekit_runtime.children import die_with_parent
from edgekit_runtime.engines import Setup, load_with
from edgekit_runtime.engines.recording import Recording
from edgekit_runtime.errors import BundleError, EdgekitError, SelfTestError, errno_of
from edgekit_runtime.modelfile import check_artifact
from edgekit_runtime.rlimits import limit_this_process
from edgekit_runtime.selftest.opening import REFUSAL, VERDICT
from edgekit_runtime.selftest.replaying import replay

__all__ = ["main"]


class _Telling(Recording):
    """Says after every run that there was one: a slow engine is not a hung one."""

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        outputs = super().run(inputs)
        print("ran", flush=True)
        return outputs


def main() -> int:
    """The child: the job on stdin, the verdict as the last line of stdout."""
    from edgekit_runtime.bundle import read_bundle
    from edgekit_runtime.bundle.secret_key import Secret
    from edgekit_runtime.readiness import check_fits

    die_with_parent()
    job = json.load(sys.stdin)
    try:
        bundle = read_bundle(job["path"], secret=Secret.received(job["key"]))
        if bundle.digest != job["digest"]:
            raise BundleError("the file was replaced while it was opened", where=job["path"], do="Open it again")
        entry = next(one for one in bundle.manifest.artifacts if (one.recipe, one.blob) == (job["recipe"], job["blob"]))
        check_artifact(bundle, entry)
        setup = Setup(**job["setup"])
        limit_this_process(entry.bytes, setup.threads)
        with load_with(job["engine"], entry.format, bundle.blob(entry.blob), setup) as engine:
            check_fits(bundle, entry, engine)
            print(json.dumps(asdict(replay(bundle, entry, _Telling(engine)))))
    except SelfTestError as error:
        print(f"{VERDICT}{error}", file=sys.stderr)
        return 1
    except EdgekitError as error:
        print(f"{REFUSAL}{json.dumps({**error.as_json(), 'errno': errno_of(error)})}", file=sys.stderr)
        return 1
    except MemoryError:
        print(f"{VERDICT}it takes more memory than a model of its size may", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
