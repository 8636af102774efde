"""How long a build takes, against the bare calls.

MobileNetV2 for three boards, both formats, 200 photos to calibrate with.

    python benchmarks/conversion/build_time.py --cache FOLDER

The bare calls are those that a person would write for the same five files and no more: TFLiteConverter for float32,
dynamic range and full INT8, tf2onnx for float32 and quantize_static for INT8; nothing is compared, chosen, packed or
checked. Both start as processes of their own with an empty cache, in turns; the least of the rounds counts, of the time
and of the processor time. The build runs again unchanged, and once more with a fourth board.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from cells import Bench
from environment import peers_python
from speed import MOBILENET

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from wanted import put_between

from edgekit.bench.conditions import conditions

PROFILES = ("raspberry-pi-4", "raspberry-pi-5", "host-cpu")
ANOTHER = "x86-64"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--docs", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/build_time.json"))
    options = parser.parse_args()
    folder = Bench(options.cache).folder(MOBILENET)
    found: dict[str, list[Took]] = {"bare": [], "build": [], "again": [], "another": []}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        model, calibration = scratch / "mobilenet_v2.keras", scratch / "c.npz"
        shutil.copy(folder / model.name, model)
        np.savez(calibration, x=np.load(folder / "calibrate.npy"))
        for _ in range(options.rounds):
            found["bare"].append(_bare(options.cache, folder))
            kept = scratch / "kept"
            shutil.rmtree(kept, ignore_errors=True)
            for step, profiles in (("build", PROFILES), ("again", PROFILES), ("another", (*PROFILES, ANOTHER))):
                found[step].append(_built(model, calibration, profiles, scratch))
                print({step: seconds[-1] for step, seconds in found.items() if seconds}, file=sys.stderr, flush=True)
    least = {step: round(min(took[0] for took in all_took), 2) for step, all_took in found.items()}
    processor = {step: round(min(took[1] for took in all_took), 1) for step, all_took in found.items()}
    figures = {
        "bare calls, s": least["bare"],
        "build, s": least["build"],
        "build / bare calls": round(least["build"] / least["bare"], 2),
        "bare calls, processor s": processor["bare"],
        "build, processor s": processor["build"],
        "build / bare calls, by processor time": round(processor["build"] / processor["bare"], 2),
        "unchanged rebuild, s": least["again"],
        "one board more, s": least["another"],
    }
    for caption, figure in figures.items():
        print(f"{caption:24} {figure}")
    title = f"build of MobileNetV2 for {', '.join(PROFILES)}; 200 calibration images"
    value = {"title": title, "conditions": conditions(), "figures": figures, "rounds": found}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(value, indent=2) + "\n")
    if options.docs:
        rows = [f"| {caption} | {figure} |" for caption, figure in figures.items()]
        said = f"{title}, on {conditions()['cores']} cores, processes started anew."
        put_between(options.docs, "build", "\n".join([said[0].upper() + said[1:], "", "| | |", "|---|---|", *rows]))


Took = tuple[float, float]
"""Seconds, and processor seconds with those of child processes."""


def _ran(command: list[str], check: bool, **how: Any) -> tuple[Any, Took]:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    surroundings = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | how.pop("env", {})
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings, timeout=500, check=check, **how)
    took, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, (took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _built(model: Path, calibration: Path, profiles: tuple[str, ...], scratch: Path) -> Took:
    named = [argument for profile in profiles for argument in ("--profile", profile)]
    code = "from edgekit.cli import main; main()"
    command = [sys.executable, "-c", code, "build", str(model), *named, "--calibration", str(calibration)]
    command += ["-o", str(scratch / "bundles"), "--json"]
    done, took = _ran(command, env={"XDG_CACHE_HOME": str(scratch / "kept")}, check=False)
    said: dict[str, Any] = json.loads(done.stdout or "{}")
    missing = [bundle for bundle in said.get("bundles", [{"path": None}]) if bundle["path"] is None]
    if missing:
        print(f"not every board got a bundle: {done.stdout[-400:]} {done.stderr[-400:]}", file=sys.stderr)
    return took


def _bare(cache: Path, folder: Path) -> Took:
    with tempfile.TemporaryDirectory() as target:
        command = [str(peers_python(cache)), "-m", "peers.bare", str(folder), target]
        return _ran(command, cwd=Path(__file__).resolve().parent, check=True)[1]


if __name__ == "__main__":
    main()
