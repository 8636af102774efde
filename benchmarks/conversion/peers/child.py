"""One peer in a process of its own: python -m peers.child MODULE:FUNCTION FOLDER OUT, from benchmarks/conversion.

Its last line on stdout is JSON: seconds and peak memory, or the reason why there is no artifact.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path


def main(entry: str, folder: Path, out: Path) -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    module, function = entry.split(":")
    start = time.monotonic()
    try:
        note = getattr(importlib.import_module(f"peers.{module}"), function)(folder, out)
        if not out.exists():
            raise RuntimeError("it wrote nothing")
        said: dict[str, object] = {"seconds": round(time.monotonic() - start, 2)} | ({"note": note} if note else {})
        said["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    except Exception as error:  # noqa: BLE001 - whatever a peer does, the table has a cell for it
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = {"reason": f"{type(error).__name__}: {lines[0] if lines else ''}"[:240]}
    print("\n" + json.dumps(said), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
