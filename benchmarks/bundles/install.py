"""What installing a bundle of 100 MB takes, beside copying the same file and hashing it.

    python benchmarks/bundles/install.py --folder /var/tmp

`cp and fsync` is what the disk asks for; `sha256sum` what looking at every byte once asks for. An install copies once
and hashes three times: the file as it comes, and the blobs in it as they are verified and as the child of the self-test
reads them. The self-test and the trial load the model, in processes of their own, and are rows of their own. Each round
does all of it in turn, on a fresh root; medians are shown. On a busy machine the times hold its neighbours' work too,
processor time does not. The peak is of the installing process itself.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.bench.conditions import conditions

_SIDE = 5000
"""Of the square matrix of float32 that makes the file 100 MB."""
_PROGRAM = """
import json, sys, time
from edgekit_runtime.install import InstallOptions, BoardIdentity, FetchOptions, TrialOptions, install
bundle, root = sys.argv[1:]
marks = [("begin", time.perf_counter(), time.process_time())]
def progress(stage, done, total):
    if stage != marks[-1][0]:
        marks.append((stage, time.perf_counter(), time.process_time()))
asked = InstallOptions(
    allow_unsigned=True,
    board=BoardIdentity(),
    fetching=FetchOptions(progress=progress),
    proving=TrialOptions(answers=20),
)
install(bundle, root, asked)
marks.append(("end", time.perf_counter(), time.process_time()))
stages = {name: (after - at) * 1e3 for (name, at, _), (_, after, _) in zip(marks, marks[1:])}
own = {name: (after - at) * 1e3 for (name, _, at), (_, _, after) in zip(marks, marks[1:])}
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(json.dumps({"stages_ms": stages, "cpu_ms": own, "peak_mb": int(peak.split()[1]) * 1024 / 1e6}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="On the disk that is meant.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/bundles_install.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = measured(Path(folder), options.rounds)
    found["conditions"] = conditions()
    size = found["bytes"]
    print(f"{size / 1e6:.1f} MB, {options.rounds} rounds, median ms")
    for name, ms in found["median_ms"].items():
        print(f"{name:<42} {ms:>9.0f}   {size / 1e3 / ms:>7.0f} MB/s")
    print(f"{'peak of the installing process':<42} {found['peak_mb']:>9.0f} MB")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measured(folder: Path, rounds: int) -> dict[str, Any]:
    bundle = large_bundle(folder / "large.ekb")
    rows: dict[str, list[float]] = {}
    peaks = []
    for number in range(rounds + 1):
        times = {
            "cp and fsync": timed(lambda: copy(bundle, folder / "copy")),
            "sha256sum": timed(lambda: subprocess.run(["sha256sum", bundle], check=True, capture_output=True)),
        }
        done = installed(bundle, folder / "root")
        stages, peak = done["stages_ms"], done["peak_mb"]
        times["install: fetch (copy, SHA-256, fsync)"] = stages["begin"] + stages["fetch"]
        times["install: verify (read, blobs, structure)"] = stages["verify"]
        times["install: fetch and verify"] = stages["begin"] + stages["fetch"] + stages["verify"]
        times["  of that, this process's own processor time"] = sum(
            done["cpu_ms"][one] for one in ("begin", "fetch", "verify")
        )
        times["install: self-test in a child"] = stages["selftest"]
        times["install: trial in a child, 20 inferences"] = stages["trial"]
        (folder / "copy").unlink()
        shutil.rmtree(folder / "root")
        if number:  # the first warms the page cache
            peaks.append(peak)
            for name, ms in times.items():
                rows.setdefault(name, []).append(ms)
    return {
        "bytes": bundle.stat().st_size,
        "rounds": rounds,
        "median_ms": {name: round(statistics.median(values), 1) for name, values in rows.items()},
        "least_ms": {name: round(min(values), 1) for name, values in rows.items()},
        "peak_mb": round(statistics.median(peaks), 1),
    }


def timed(what: Callable[[], object]) -> float:
    start = time.perf_counter()
    what()
    return (time.perf_counter() - start) * 1e3


def copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())


def installed(bundle: Path, root: Path) -> dict[str, Any]:
    environment = {**os.environ, "EDGEKIT_TUNE": "off", "EDGEKIT_STATE_DIR": str(root.with_name("state"))}
    shutil.rmtree(root.with_name("state"), ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, bundle, root], capture_output=True, text=True, check=True, env=environment
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def large_bundle(path: Path) -> Path:
    """One product with a square matrix, as ONNX."""
    from onnx import TensorProto, helper, numpy_helper

    from edgekit.packaging.assemble import BundleContent, assemble
    from edgekit.packaging.writer import write_bundle
    from edgekit_converters.recipe.artifact import Artifact, Recipe
    from edgekit_runtime.bundle.manifest import Target
    from edgekit_runtime.contract.spec import Contract, InputContract, OutputContract, TensorSpec

    weights = np.random.default_rng(0).normal(size=(_SIDE, _SIDE)).astype(np.float32) / _SIDE
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weights"], ["y"])],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", _SIDE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", _SIDE])],
        [numpy_helper.from_array(weights, "weights")],
    )
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10).SerializeToString()
    inputs = (TensorSpec("x", "x", "float32", (-1, _SIDE)),)
    outputs = (TensorSpec("y", "y", "float32", (-1, _SIDE)),)
    artifact = Artifact(Recipe("onnx-f32", "onnx", "float32"), data, inputs, outputs, 0.0, 0.0, {})
    contract = Contract(
        task="raw",
        inputs=(InputContract("x", (_SIDE,), "float32"),),
        outputs=(OutputContract("y", (_SIDE,), "float32"),),
    )
    golden = [{"x": np.random.default_rng(1).normal(size=_SIDE).astype(np.float32)}]
    target = Target("x86-64", "x86_64", threads=1)
    content = BundleContent(
        name="large",
        version="1",
        model_id="0" * 64,
        contract=contract,
        target=target,
        artifact=artifact,
        golden=golden,
    )
    draft, manifest = assemble(content)
    write_bundle(path, draft, manifest, [])
    return path


if __name__ == "__main__":
    main()
