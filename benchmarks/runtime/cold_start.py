"""Where a cold start goes: from nothing to a model that is ready, stage by stage, in fresh processes.

    .venv/bin/python benchmarks/runtime/cold_start.py demo/bundles/efficientnet_lite0-raspberry-pi-4.ekb

- first open: nothing is known of the bundle on this machine: its choice answers, and the candidates race beside it;
- first, untuned: the same with EDGEKIT_TUNE=off, without that race;
- later opens: the verdict is read.

A second table is against raw: by hand, the artifact, engine and threads that the later openings run, from process start
to the first answer. There stand each round's ratios, and the processor time of a request at 10 a second.

Each figure is the median over the rounds, in which all ways take turns. `python` is the interpreter's own start, seen
from outside. Processor time holds that of child processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, time
from typing import Any

import numpy as np

from edgekit.bench.conditions import conditions
from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.contract.adapt import Adapter

STAGES = ("python", "numpy", "runtime", "verify", "choose", "load", "warm", "rest", "first request", "total")
_PROGRAM = """
import sys, json
from time import perf_counter
at = [perf_counter()]
def lap():
    at.append(perf_counter())
    return (at[-1] - at[-2]) * 1e3
took = {}
import numpy
took["numpy"] = lap()
from edgekit_runtime import open_bundle
took["runtime"] = lap()
from edgekit_runtime.bundle.reader import read_bundle
lap()
bundle = read_bundle(sys.argv[1])
took["verify"] = lap()
model = open_bundle(sys.argv[1])
opened = lap()
ready = model.describe()["ready"]
took |= {"choose": ready["choose_ms"], "load": ready["load_ms"], "warm": ready["warm_ms"]}
took["rest"] = max(0.0, opened - took["verify"] - took["choose"] - took["load"] - took["warm"])
inputs = bundle.golden_items(bundle.manifest.golden[0])
lap()
model.predict(inputs)
took["first request"] = lap()
lines = open("/proc/self/status").read().splitlines() if sys.platform == "linux" else []
took["rss_mb"] = next((int(l.split()[1]) * 1024 / 1e6 for l in lines if l.startswith("VmRSS:")), None)
model.close()
print(json.dumps(took))
"""
_RAW = """
def opened():
    global items
    engine, threads = sys.argv[3], int(sys.argv[4])
    if engine == "onnxruntime":
        import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", sys.argv[5])
        session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
        feed = {one.name: items[one.name] for one in session.get_inputs()}
        return lambda: session.run(None, feed)
    from ai_edge_litert.interpreter import Interpreter
    interpreter = Interpreter(sys.argv[1], num_threads=threads)
    interpreter.allocate_tensors()
    given = [(one["index"], items[one["name"]]) for one in interpreter.get_input_details()]
    wanted = [one["index"] for one in interpreter.get_output_details()]
    def ask():
        for index, array in given:
            interpreter.set_tensor(index, array)
        interpreter.invoke()
        return [interpreter.get_tensor(index) for index in wanted]
    return ask
"""
_OURS = """
def opened():
    from edgekit_runtime import open_bundle
    wanted = {"engine": sys.argv[3] or None, "threads": int(sys.argv[4]) if sys.argv[4] else None}
    model = open_bundle(sys.argv[1], allow_unsigned=True, cache=False, **wanted)
    return lambda: model.predict(items)
"""
_ASKED = """
import json, resource, sys, time
def used(*whose):
    found = [resource.getrusage(who) for who in whose]
    return sum(one.ru_utime + one.ru_stime for one in found) * 1e3
import numpy
items = dict(numpy.load(sys.argv[2]))
ask = opened()
ask()
took = {"wall": (time.time() - float(sys.argv[-1])) * 1e3}
took["processor"] = used(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
lines = open("/proc/self/status").read().splitlines()
took["rss_mb"] = next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmRSS:"))
before = used(resource.RUSAGE_SELF)
for _ in range(20):
    time.sleep(0.1)
    ask()
took["request at 10/s"] = (used(resource.RUSAGE_SELF) - before) / 20
print(json.dumps(took))
"""
WAYS: dict[str, dict[str, Any]] = {
    "first open": {"fresh": True},
    "first, untuned": {"fresh": True, "EDGEKIT_TUNE": "off"},
    "later opens": {"fresh": False},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("bundles", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--engine", nargs="*", default=[""], help="those compared with raw, by default the fastest")
    parser.add_argument("--threads", type=int, help="of those compared with raw, by default as tuning chooses")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/runtime_cold_start.json"))
    options = parser.parse_args()
    tables = {path.name: table(path.absolute(), options.rounds) for path in options.bundles}
    for name, ways in tables.items():
        print(f"\n{name}, ms\n  {'':<16}" + "".join(f"{stage:>14}" for stage in (*STAGES, "rss MB")))
        for way, row in ways.items():
            print(f"  {way:<16}" + "".join(f"{row[stage]:>14.1f}" for stage in (*STAGES, "rss_mb")))
    raw = {
        f"{path.stem} {engine}".strip(): against_raw(path.absolute(), options.rounds, engine or None, options.threads)
        for path in options.bundles
        for engine in options.engine
    }
    for name, rows in raw.items():
        print(f"\n{name}, to the first answer\n  {'':<36}" + "".join(f"{key:>20}" for key in next(iter(rows.values()))))
        for way, row in rows.items():
            print(f"  {way:<36}" + "".join(f"{figure:>20.2f}" for figure in row.values()))
    value = {"conditions": conditions(), "rounds": options.rounds, "tables": tables, "against_raw": raw}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(value, indent=2) + "\n")
    print(f"\nwritten to {options.output}", file=sys.stderr)


def table(path: Path, rounds: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as known:
        start(path, Path(known), {})  # .pyc files
        os.environ["EDGEKIT_STATE_DIR"] = known
        open_bundle(path, settled=True).close()
        del os.environ["EDGEKIT_STATE_DIR"]
        found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way, how in WAYS.items():
                settings = {name: value for name, value in how.items() if name != "fresh"}
                if how["fresh"]:
                    with tempfile.TemporaryDirectory() as unknown:
                        found[way].append(start(path, Path(unknown), settings))
                else:
                    found[way].append(start(path, Path(known), settings))
    return {way: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for way, rows in found.items()}


def against_raw(path: Path, rounds: int, engine: str | None, threads: int | None) -> dict[str, dict[str, float]]:
    """Way -> medians, in ms and MB, then the medians of the ratios to raw."""
    bundle = read_bundle(path)
    contract = bundle.manifest.contract
    with tempfile.TemporaryDirectory() as folder:
        known, file, ready, given = (str(Path(folder) / name) for name in ("known", "model", "ready.npz", "given.npz"))
        os.environ["EDGEKIT_STATE_DIR"] = known
        with open_bundle(path, allow_unsigned=True, engine=engine, threads=threads, settled=True) as model:
            chosen = model._journey.opened.prepared
        del os.environ["EDGEKIT_STATE_DIR"]
        Path(file).write_bytes(bundle.blob(chosen.entry.blob))
        items = bundle.golden_items(bundle.manifest.golden[0])
        np.savez(given, **items)
        tensors = {one.tensor: Adapter(contract.input(one.name), one)(items[one.name]) for one in chosen.entry.inputs}
        np.savez(ready, **tensors)
        raw = [file, ready, chosen.engine.info.name, str(chosen.engine.info.threads)]
        ways = {"raw": (_RAW, [*raw, "0"]), "later open": (_OURS, [str(path), given, engine or "", str(threads or "")])}
        ways["first open"] = ways["later open"]
        if chosen.engine.info.name == "onnxruntime":
            ways["raw, spinning as by default"] = (_RAW, [*raw, "1"])
        found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for number in range(rounds + 1):
            for way, (opened, arguments) in ways.items():
                with tempfile.TemporaryDirectory() as unknown:
                    state = unknown if way == "first open" else known
                    program = [sys.executable, "-c", opened + _ASKED, *arguments, repr(time())]
                    done = subprocess.run(
                        program,
                        capture_output=True,
                        text=True,
                        check=True,
                        env=_environment({"EDGEKIT_STATE_DIR": state}),
                    )
                if number:  # the first writes .pyc files
                    found[way].append(json.loads(done.stdout))
    rows = {}
    for way, figures in found.items():
        pairs = list(zip(figures, found["raw"], strict=True))
        row = {key: statistics.median(one[key] for one in figures) for key in figures[0]}
        ratios = {f"{key}, x": statistics.median(a[key] / b[key] for a, b in pairs) for key in ("wall", "processor")}
        rows[way] = row | ratios | {"MB over raw": statistics.median(a["rss_mb"] - b["rss_mb"] for a, b in pairs)}
    return rows


def start(path: Path, state: Path, settings: dict[str, str]) -> dict[str, float]:
    environment = _environment({"EDGEKIT_STATE_DIR": str(state), **settings})
    bare, begun = perf_counter(), 0.0
    subprocess.run([sys.executable, "-c", "pass"], check=True, env=environment)
    begun = perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(path)], capture_output=True, text=True, check=True, env=environment
    )
    took: dict[str, float] = json.loads(done.stdout)
    took["python"] = (begun - bare) * 1e3
    took["total"] = sum(took[stage] for stage in STAGES if stage not in ("total", "first request"))
    return took


def _environment(more: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | more


if __name__ == "__main__":
    main()
