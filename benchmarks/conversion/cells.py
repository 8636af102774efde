"""One cell of the fidelity table: an artifact made, run and scored, each in a process with a time limit, and kept.

    cell = Bench(cache).cell(CASES["fer"], "tf-int8")     # {"agreement": 0.933, ...} or {"reason": "does not run: ..."}

Rules: what fails, crashes or takes too long is a cell with the reason; a cell is made once and read from the cache
after that, so that a run that was cut short goes on where it was.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from environment import peers_python
from models import Case, prepared
from peers import PEERS
from scoring import score

HERE = Path(__file__).resolve().parent
OURS: dict[str, str] = {
    "edgekit-tflite": "tflite",
    "edgekit-onnx": "onnx",
    "edgekit-tflite-repaired": "tflite",
    "edgekit-onnx-repaired": "onnx",
}
"""Our own columns -> format; `ours.py` makes them."""


@dataclass
class Bench:
    """cache: where everything is kept. ours: the Python that has edgekit (and its onnx-tflite extra). limit_s: for
    making one artifact, and again for running it."""

    cache: Path
    ours: Path = Path(sys.executable)
    limit_s: float = 420

    def folder(self, case: Case) -> Path:
        """The case with its data and its forms."""
        folder = prepared(case, self.cache).resolve()
        if not list(folder.glob("reference_*.npy")):
            done = self._child([str(peers_python(self.cache)), "-m", "peers.forms", str(folder)])
            if not list(folder.glob("reference_*.npy")):
                raise RuntimeError(f"the original {case.name} does not run: {done}")
        return folder

    def cell(self, case: Case, tool: str) -> dict[str, Any]:
        kept = self.cache / "cells" / case.name / f"{tool}.json"
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            start = time.monotonic()
            values = {tool: self._made(case, tool)} if tool in PEERS else self._ours(case, OURS[tool])
            took = time.monotonic() - start
            for name, value in values.items():
                kept.with_name(f"{name}.json").write_text(json.dumps(value, indent=1))
                print(f"{case.name:20} {name:26} {summary(value)}  ({took:.0f} s)", file=sys.stderr, flush=True)
        loaded: dict[str, Any] = json.loads(kept.read_text())
        return loaded

    def artifact(self, case: Case, tool: str) -> Path:
        suffix = PEERS[tool].format if tool in PEERS else OURS[tool]
        return (self.cache / "artifacts" / case.name / f"{tool}.{suffix}").resolve()

    def _made(self, case: Case, tool: str) -> dict[str, Any]:
        folder, out = self.folder(case), self._empty(case, tool)
        peer = PEERS[tool]
        if not (folder / peer.form).exists():
            return {"reason": f"no {peer.form}: {(folder / f'{peer.form}.why').read_text()}"}
        command = [str(peers_python(self.cache)), "-m", "peers.child", peer.entry, str(folder), str(out)]
        return self._scored(case, folder, out, self._child(command))

    def _ours(self, case: Case, form: str) -> dict[str, dict[str, Any]]:
        """Both of our columns of a format, which share nearly all of the work."""
        folder = self.folder(case)
        plain, repaired = names = f"edgekit-{form}", f"edgekit-{form}-repaired"
        outs = [self._empty(case, name) for name in names]
        done = self._child([str(self.ours), str(HERE / "ours.py"), form, str(folder), *map(str, outs)])
        made = [{"reason": done["reason"]}] * 2 if "reason" in done else [done["plain"], done["repaired"]]
        first = self._scored(case, folder, outs[0], made[0])
        if "reason" not in made[1] and outs[0].read_bytes() == outs[1].read_bytes():
            return {plain: first, repaired: first | {"made": made[1]}}
        return {plain: first, repaired: self._scored(case, folder, outs[1], made[1])}

    def _empty(self, case: Case, tool: str) -> Path:
        out = self.artifact(case, tool)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.unlink(missing_ok=True)
        return out

    def _scored(self, case: Case, folder: Path, out: Path, made: dict[str, Any]) -> dict[str, Any]:
        """The cell of an artifact: run and compared."""
        if "reason" in made:
            return {"reason": made["reason"]}
        ran = self._child([sys.executable, str(HERE / "answers.py"), str(out), str(folder), f"{out}.npz"])
        if "reason" in ran:
            return {"made": made, "reason": f"does not run: {ran['reason']}"}
        try:
            with np.load(f"{out}.npz") as stored:
                scored = score(case.task, folder, [stored[name] for name in stored.files])
        except ValueError as error:
            return {"made": made, "reason": f"cannot be compared: {error}"}
        finally:
            Path(f"{out}.npz").unlink(missing_ok=True)
        notes = [*([made["note"]] if "note" in made else []), *ran.get("notes", ())]
        return {"made": made} | _left_in_float(out) | ran | scored | {"notes": notes}

    def _child(self, command: list[str]) -> dict[str, Any]:
        """The JSON on its last line, or a reason."""
        surroundings = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        try:
            done = subprocess.run(
                command, cwd=HERE, capture_output=True, text=True, errors="replace", timeout=self.limit_s,
                stdin=subprocess.DEVNULL, env=surroundings, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"reason": f"stopped after {self.limit_s:.0f} s"}
        lines = done.stdout.strip().splitlines()
        if done.returncode == 0 and lines and lines[-1].startswith("{"):
            said: dict[str, Any] = json.loads(lines[-1])
            return said
        if done.returncode < 0:
            return {"reason": f"died of signal {-done.returncode}"}
        words = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        return {"reason": words[-1][:240] if words else f"left with {done.returncode}"}


def summary(value: dict[str, Any]) -> str:
    if "reason" in value:
        return str(value["reason"])[:100]
    metric = f" ({100 * value['artifact']:.1f})" if "artifact" in value else ""
    speed = f", {value['ratio']:.2f}x" if "ratio" in value else ""
    return f"{100 * value['agreement']:.1f} %{metric}, cosine {value['cosine']:.4f}{speed}"


def _left_in_float(artifact: Path) -> dict[str, Any]:
    from edgekit_converters.formats.workload import quantized_fraction
    from edgekit_converters.recipe.conversion_errors import ConversionError

    try:
        macs, weights = quantized_fraction(artifact.suffix[1:], artifact.read_bytes())
    except ConversionError as error:
        return {"float_macs": None, "float_macs_why": str(error)}
    return {"float_macs": 1 - macs, "float_weights": 1 - weights}
