"""What it costs to be sure of a bundle before it answers, beside what loading its engine costs.

    .venv/bin/python benchmarks/bundles/verify.py MODEL.tflite MODEL.onnx [--rounds 20]

Each model is packed with four golden examples (seeded noise) and signed with a key made for the purpose. Then, in one
process and in turns, so that a busy machine is busy for all of them:

    read+SHA-256     the file from the page cache, and the digest of every blob
    Ed25519          one signature over the manifest, by a trust store of one key
    whole reading    `read_bundle` with trust: both, the head, the manifest, the golden answers
    structure        `check_model` of the model file
    engine load      as an application loads it, one thread
    self-test        every golden example replayed in this process

and, apart from them, a fresh process that does all of it once, with every import but NumPy's, which any engine needs;
and `first_open`, which starts a child. Over the load is what reading, structure and self-test take together; 150 ms are
allowed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "bundles_verify.json"
LIMIT_MS = 150.0
EXAMPLES = 4
_OVER = "over the load"
COLD = """
import json, sys
from time import perf_counter
import numpy
import edgekit_runtime
at = [perf_counter()]
lap = lambda: (at.append(perf_counter()), (at[-1] - at[-2]) * 1e3)[1]
from edgekit_runtime.bundle.reader import read_bundle
bundle = read_bundle(sys.argv[1], trust=sys.argv[2])
found = {"reading": lap()}
from edgekit_runtime.modelfile.check import check_artifact
entry = bundle.artifact()
check_artifact(bundle, entry)
found["structure"] = lap()
from edgekit_runtime.engines.registry import load_engine
engine = load_engine(entry.format, bundle.blob(entry.blob))
found["load"] = lap()
from edgekit_runtime.loading.replay import replay
replay(bundle, entry, engine)
found["selftest"] = lap()
print(json.dumps(found))
"""


def packed(model: Path, folder: Path) -> tuple[Path, Path]:
    """A signed bundle of the model, and the public key that must have signed it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from edgekit.packaging.assemble import BundleContent, assemble
    from edgekit.packaging.writer import SigningKey, write_bundle
    from edgekit_converters.recipe.artifact import Artifact, Recipe
    from edgekit_runtime.bundle.manifest import Target
    from edgekit_runtime.contract.spec import Contract, InputContract, OutputContract
    from edgekit_runtime.engines.registry import load_engine

    kind, data = model.suffix[1:], model.read_bytes()
    with load_engine(kind, data) as engine:
        inputs, outputs = engine.inputs, engine.outputs
    contract = Contract(
        task="raw",
        inputs=tuple(InputContract(one.name, tuple(map(abs, one.shape[1:])), "float32") for one in inputs),
        outputs=tuple(OutputContract(one.name, tuple(map(abs, one.shape[1:])), "float32") for one in outputs),
    )
    dice = np.random.default_rng(1)
    golden = [{one.name: dice.random(one.shape, dtype=np.float32) for one in contract.inputs} for _ in range(EXAMPLES)]
    artifact = Artifact(Recipe(f"{kind}-int8", kind, "int8"), data, inputs, outputs, 1.0, 1.0, {})
    target = Target("x86-64", "x86_64", threads=1)
    draft, manifest = assemble(BundleContent(model.stem, "1", "0" * 64, contract, target, artifact, golden))
    private = Ed25519PrivateKey.generate()
    path, key = folder / f"{model.stem}-{kind}.ekb", folder / f"{model.stem}-{kind}.pem"
    write_bundle(path, draft, manifest, [SigningKey(private)])
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    key.write_bytes(private.public_key().public_bytes(*form))
    return path, key


def stages(path: Path, key: Path) -> dict[str, Callable[[], object]]:
    """Each does one thing, on its own."""
    from edgekit_runtime.bundle.header import read_header
    from edgekit_runtime.bundle.reader import read_bundle
    from edgekit_runtime.bundle.trust_finding import load_trust
    from edgekit_runtime.engines.registry import load_engine
    from edgekit_runtime.loading.replay import replay
    from edgekit_runtime.modelfile.check import check_model

    store = load_trust(key)
    assert store is not None
    bundle = read_bundle(path, trust=key)
    entry = bundle.artifact()
    data = bundle.blob(entry.blob)
    header = read_header(path.read_bytes(), str(path))
    engine = load_engine(entry.format, data)
    blobs = [bundle.blob(one.sha256) for one in bundle.manifest.blobs]

    def read_and_digest() -> None:
        path.read_bytes()
        for blob in blobs:
            hashlib.sha256(blob).digest()

    return {
        "read+SHA-256": read_and_digest,
        "Ed25519": lambda: store.check(header.manifest_bytes, header.signatures),
        "whole reading": lambda: read_bundle(path, trust=key),
        "structure": lambda: check_model(entry.format, data, ops=entry.ops),
        "engine load": lambda: load_engine(entry.format, data).close(),
        "self-test": lambda: replay(bundle, entry, engine),
    }


def figures(taken: list[float]) -> dict[str, float]:
    return {
        "min_ms": round(min(taken), 3),
        "median_ms": round(statistics.median(taken), 3),
        "max_ms": round(max(taken), 3),
    }


def in_turns(work: dict[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, float]]:
    """cpu_ms: median of the processor time, which a busy machine leaves nearly as it is."""
    taken: dict[str, list[float]] = {name: [] for name in (*work, _OVER)}
    spent: dict[str, list[float]] = {name: [] for name in (*work, _OVER)}
    for _ in range(rounds):
        for name, do in work.items():
            began, cpu = perf_counter(), process_time()
            do()
            taken[name].append((perf_counter() - began) * 1e3)
            spent[name].append((process_time() - cpu) * 1e3)
        for times in (taken, spent):
            times[_OVER].append(sum(times[name][-1] for name in ("whole reading", "structure", "self-test")))
    return {name: {**figures(taken[name]), "cpu_ms": round(statistics.median(spent[name]), 3)} for name in taken}


def cold(path: Path, key: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Fresh processes: the first time everything is done."""
    found = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", COLD, str(path), str(key)],
                capture_output=True,
                text=True,
                check=True,
                timeout=120,
            ).stdout
        )
        for _ in range(rounds)
    ]
    for one in found:
        one["over the load"] = one["reading"] + one["structure"] + one["selftest"]
    return {name: figures([one[name] for one in found]) for name in found[0]}


def child(path: Path, key: Path, rounds: int) -> dict[str, float]:
    """Starting a process, reading and walking the file there, loading and replaying: the first open ever."""
    from edgekit_runtime.bundle.reader import read_bundle
    from edgekit_runtime.engines.registry import EngineSetup, expected_info, pick
    from edgekit_runtime.loading.selftest import first_open

    bundle = read_bundle(path, trust=key)
    entry = bundle.artifact()
    info, taken = expected_info(pick(entry.format), EngineSetup()), []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            began = perf_counter()
            assert first_open(bundle, entry, info, folder=Path(folder))
            taken.append((perf_counter() - began) * 1e3)
    return figures(taken)


def measured(model: Path, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path, key = packed(model, Path(folder))
        few = max(3, rounds // 4)
        load = os.getloadavg()[0]
        return {
            "model": model.name,
            "model_bytes": model.stat().st_size,
            "bundle_bytes": path.stat().st_size,
            "examples": EXAMPLES,
            "load_before": round(load, 2),
            "in turns": in_turns(stages(path, key), rounds),
            "a fresh process": cold(path, key, few),
            "first open, with its child": child(path, key, few),
        }


def table(rows: list[dict[str, Any]]) -> str:
    """Milliseconds, medians; in brackets the processor time, or the least where children take it."""

    def cell(one: dict[str, float]) -> str:
        return f"{one['median_ms']:.1f} ({one.get('cpu_ms', one['min_ms']):.1f})"

    names = list(rows[0]["in turns"])
    lines = [
        "| ms, median (processor) | "
        + " | ".join(f"{row['model']}, {row['model_bytes'] / 1e6:.1f} MB" for row in rows)
        + " |"
    ]
    lines.append("|---|" + "---|" * len(rows))
    lines += [f"| {name} | " + " | ".join(cell(row["in turns"][name]) for row in rows) + " |" for name in names]
    fresh = [cell(row["a fresh process"]["over the load"]) for row in rows]
    lines.append("| over the load, in a fresh process, with its imports (least) | " + " | ".join(fresh) + " |")
    apart = [cell(row["first open, with its child"]) for row in rows]
    lines.append("| apart: the child of the first open (least) | " + " | ".join(apart) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    from edgekit_runtime.engines.registry import available

    rows = [measured(model, asked.rounds) for model in asked.models]
    print(table(rows))
    RESULT.write_text(
        json.dumps({"limit_ms": LIMIT_MS, "engines": available(), "cores": os.cpu_count(), "bundles": rows}, indent=1)
        + "\n",
        encoding="utf-8",
    )
    late = [row["model"] for row in rows if row["in turns"]["over the load"]["median_ms"] > LIMIT_MS]
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
