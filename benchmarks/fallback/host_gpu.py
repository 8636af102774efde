"""`edgekit host serve` on this machine's GPU: answers a second and latency by the number of callers and of instances.

    edgekit build net.keras --profile host-gpu --calibration PHOTOS -o bundles
    python benchmarks/fallback/host_gpu.py bundles/net-host-gpu.ekb --json host_gpu.json

The callers of host_load.py run beside the server, in a closed loop, with the bundle's first golden example. `--cpu`
serves where no GPU is, to try the script. Processor time is the server's, with its children.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

from host_load import closed, cpu_s, encoded

from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines import cuda
from edgekit_runtime.remote.oip import encode_request

SERVE = [sys.executable, "-c", "from edgekit.cli import main; main()", "host", "serve"]
READY_S = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--instances", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--cpu", action="store_true", help="do not ask for a GPU")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    device = None if options.cpu else cuda.identity()
    request = golden_request(options.bundle)
    rows = [row for count in options.instances for row in measured(options, request, count)]
    told = {"device": device, "cores": os.cpu_count(), "request_bytes": len(request), "rows": rows}
    print(f"{device or 'on the processor'}\n\n{table(rows)}")
    if options.json is not None:
        options.json.write_text(json.dumps(told, indent=1) + "\n")


def golden_request(path: Path) -> bytes:
    bundle = read_bundle(path)
    items = bundle.golden_items(bundle.manifest.golden[0])
    wire = encode_request({name: item[None] for name, item in items.items()})
    return encoded(f"/v2/models/{bundle.manifest.name}/infer", wire.headers, wire.body())


def measured(options: argparse.Namespace, request: bytes, instances: int) -> list[dict[str, Any]]:
    command = [*SERVE, str(options.bundle), "--listen", "127.0.0.1:0", "--cache-mb", "0", "--json"]
    command += ["--instances", str(instances), *([] if options.cpu else ["--require-gpu"])]
    begun, rows = perf_counter(), []
    with ExitStack() as stack:
        server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(server.terminate)
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline() or "{}")
        if not ready:
            raise SystemExit(f"the server ended with {server.wait(READY_S)}")
        ready_s = perf_counter() - begun
        host, port = ready["listening"].removeprefix("http://").split(":")
        for callers in options.callers:
            before = cpu_s(server.pid)
            outcome = closed((host, int(port)), request, callers=callers, seconds=options.seconds)
            used, answered = cpu_s(server.pid) - before, len(outcome.latencies_ms.get(200, ()))
            row = {
                "instances": instances,
                "callers": callers,
                "a_second": outcome.rate(),
                "p50_ms": outcome.quantile(200, 0.5),
                "p99_ms": outcome.quantile(200, 0.99),
                "processor_ms": used * 1e3 / max(answered, 1),
                "others": {str(status): len(times) for status, times in outcome.latencies_ms.items() if status != 200},
                "broken": dict(outcome.broken),
                "ready_s": ready_s,
            }
            print(row, file=sys.stderr, flush=True)
            rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| instances | callers | answers a second | p50 ms | p99 ms |", "|---|---|---|---|---|"]
    for row in rows:
        times = " | ".join("" if row[key] is None else f"{row[key]:.1f}" for key in ("p50_ms", "p99_ms"))
        lines.append(f"| {row['instances']} | {row['callers']} | {row['a_second']:,.0f} | {times} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
