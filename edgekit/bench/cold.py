"""What a start costs: a process of its own that imports the runtime, opens the bundle and is ready.

    cold = cold_start(Path("digits.ekb"), {"threads": 1})
    cold.start_ms, cold.first_ms, cold.rss_mb       # 420.0, None, 61.2

Rules:
- it counts from the moment at which the process is asked for to the one at which its model is ready: Python's own start
  and the imports are in it, as they are on a board that boots;
- the first open of a bundle on a machine also tests and tunes it, and keeps the verdicts; where that has happened it is told
  by itself, and the start is measured again;
- where no process can be started, as under emulation, nothing is told, and nothing fails.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from edgekit_runtime.board import state_dir
from edgekit_runtime.bundle.secret_key import Secret
from edgekit_runtime.children import environment, python_code

__all__ = ["Cold", "cold_start"]

LONGEST_S = 120.0

_CHILD = """
import json, sys
from edgekit_runtime import open_bundle
path, options, key = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.stdin.readline())
if key:
    from edgekit_runtime.bundle.secret_key import Secret
    options["secret"] = Secret.received(key)
model = open_bundle(path, **options)
try:
    lines = open("/proc/self/status").read().splitlines()
except OSError:
    lines = []
kib = [int(line.split()[1]) for line in lines if line.startswith("VmRSS:")]
print(json.dumps(kib[0] * 1024 / 1e6 if kib else None), flush=True)
model.close()
"""


@dataclass(frozen=True)
class Cold:
    """Milliseconds from nothing to ready; first_ms: of the first open on this machine, None where it was none.

    rss_mb: resident when ready, megabytes; what an application pays besides its own. None where it is not told.
    """

    start_ms: float | None = None
    first_ms: float | None = None
    rss_mb: float | None = None


def cold_start(path: Path, options: Mapping[str, Any], secret: Secret | None = None) -> Cold:
    """options: of `open_bundle`. secret: of an encrypted bundle. Never raises: a bundle that does not open says so when it is opened here."""
    before = _kept()
    took = _started(path, options, secret)
    if took is None:
        return Cold()
    if _kept() == before:
        return Cold(took[0], None, took[1])
    again = _started(path, options, secret)
    return Cold(again[0] if again else None, took[0], again[1] if again else took[1])


def _started(path: Path, options: Mapping[str, Any], secret: Secret | None = None) -> tuple[float, float | None] | None:
    command = python_code(_CHILD, str(path), json.dumps(dict(options)))
    key = json.dumps(secret.handed() if secret is not None else None)
    start = perf_counter()
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(),
        ) as child:
            try:
                assert child.stdin is not None
                assert child.stdout is not None
                child.stdin.write(f"{key}\n")
                child.stdin.close()
                line = child.stdout.readline()
                took_ms = (perf_counter() - start) * 1e3
                child.wait(LONGEST_S)
            except BaseException:
                child.kill()
                raise
        rss_mb = json.loads(line)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return took_ms, rss_mb


def _kept() -> set[str]:
    """Names of the verdicts that the runtime keeps between opens."""
    return {str(file) for kind in ("selftest", "tuning") for file in (state_dir() / kind).glob("*.json")}
