"""What a start costs: a process of its own that imports the runtime, opens the bundle and is ready.

    cold = cold_start(Path("digits.ekb"), {"threads": 1})
    cold.start_ms, cold.first_ms, cold.rss_mb       # 420.0, None, 61.2

Rules:
- it counts from the moment at which the process is asked for to the one at which its model is ready: Python's own start
  and the imports are in it, as they are on a board that boots;
- the first open of a bundle on a machine also tests and tunes it, and keeps the verdicts; where that has happened it is
  told by itself, and the start is measured again;
- where no process can be started, as under emulation, nothing is told, and nothing fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from edgekit_runtime.board import state_dir
from edgekit_runtime.bundle.secrets import Secret
from edgekit_runtime.children import python_code
from edgekit_runtime.jobs import ask

__all__ = ["Cold", "cold_start"]

LONGEST_S = 120.0

_CHILD = """
import sys
from edgekit_runtime.jobs import serve
def work(job, say):
    from time import perf_counter
    from edgekit_runtime import ModelLimits, open_bundle
    options = job["options"]
    if job["key"]:
        from edgekit_runtime.bundle.secrets import Secret
        options["secret"] = Secret.received(job["key"])
    with open_bundle(job["path"], limits=ModelLimits(batching=job["batching"]), **options):
        try:
            lines = open("/proc/self/status").read().splitlines()
        except OSError:
            lines = []
        kib = [int(line.split()[1]) for line in lines if line.startswith("VmRSS:")]
        return {"ready": perf_counter(), "rss_mb": kib[0] * 1024 / 1e6 if kib else None}
sys.exit(serve(work))
"""


@dataclass(frozen=True)
class Cold:
    """Milliseconds from nothing to ready; first_ms: of the first open on this machine, None where it was none.

    rss_mb: resident when ready, megabytes; what an application pays besides its own. None where it is not told.
    """

    start_ms: float | None = None
    first_ms: float | None = None
    rss_mb: float | None = None


def cold_start(
    path: Path, options: Mapping[str, Any], secret: Secret | None = None, *, batching: bool | None = None
) -> Cold:
    """options: of `open_bundle`.

    secret: of an encrypted bundle.
    Never raises: opening the bundle here shows its error.
    """
    job = {
        "path": str(path),
        "options": dict(options),
        "batching": batching,
        "key": secret.handed() if secret is not None else None,
    }
    before = _kept()
    took = _started(job)
    if took is None:
        return Cold()
    if _kept() == before:
        return Cold(took[0], None, took[1])
    again = _started(job)
    return Cold(again[0] if again else None, took[0], again[1] if again else took[1])


def _started(job: dict[str, Any]) -> tuple[float, float | None] | None:
    start = perf_counter()
    try:
        came = ask(python_code(_CHILD), job, silence_s=LONGEST_S)
    except OSError:
        return None
    if came.result is None:
        return None
    # The clock counts from the machine's start, in every process.
    return (came.result["ready"] - start) * 1e3, came.result["rss_mb"]


def _kept() -> set[str]:
    """Names of the verdicts that the runtime keeps between opens."""
    return {str(file) for kind in ("selftest", "tuning") for file in (state_dir() / kind).glob("*.json")}
