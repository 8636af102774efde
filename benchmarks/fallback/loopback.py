"""A real device and a real host with a fault proxy between them: who is kept beyond the budget, and who is met.

    .venv/bin/python benchmarks/fallback/loopback.py            # writes loopback.json beside it; about two minutes

The host is `edgekit host serve` in a process of its own, the proxy another one. The device takes longer than the budget
for every request, so that each needs the host. Wall-clock times: another load of this machine makes them worse.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from edgekit_runtime import BudgetExceeded, QueueFull, open_bundle

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "tests")]

import tiny

BUDGET_MS, FAR_BUDGET_MS, DEVICE_MS, ALLOWED_MS = 200.0, 1000.0, 1250.0, 5.0
FAULTS = ("near", "hang", "near", "cut", "near", "503", "near", "slow", "near", "trickle", "near", "kill")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--rate", type=float, default=60.0)
    parser.add_argument("--proxy", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path, default=HERE / "loopback.json")
    options = parser.parse_args()
    if options.proxy:
        asyncio.run(Proxy(options.proxy).serve())
        return
    with tempfile.TemporaryDirectory() as folder:
        bundle = tiny.bundle(Path(folder))
        host, url = started("-c", "from edgekit.cli import main; main()", "host", "serve", bundle,
                            "--listen", "127.0.0.1:0", "--json")  # fmt: skip
        proxy, near = started(__file__, "--proxy", url)
        try:
            with open_bundle(bundle, hosts=[near], cache=False, settled=True) as model:
                while model.describe()["hosts"][0]["p90_ms"] is None:
                    time.sleep(0.01)
                model.throttle(DEVICE_MS)
                while model.stats().device_p90_ms < FAR_BUDGET_MS:
                    model.predict(tiny.RED, budget_ms=1e6)
                found = {
                    "faults": faults(model, proxy, options.requests, options.rate),
                    "64_in_flight_100_ms_away": far(model, proxy),
                }
        finally:
            for process in (proxy, host):
                process.kill()
                process.wait()
    found["load_average"] = os.getloadavg()
    options.output.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def started(*command: object) -> tuple[subprocess.Popen, str]:
    process = subprocess.Popen(
        [sys.executable, *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return process, json.loads(process.stdout.readline())["listening"]


class Ends:
    """What became of the requests: source -> count, and how long each took."""

    def __init__(self, budget_ms: float = BUDGET_MS) -> None:
        self.sources, self.ms, self.budget_ms = Counter(), [], budget_ms
        self.late, self.met, self.asked = Counter(), Counter(), Counter()
        self._lock = threading.Lock()

    def ask(self, model, mode: str = "") -> None:
        began = time.perf_counter()

        def ended(source: str) -> None:
            took_ms = (time.perf_counter() - began) * 1e3
            with self._lock:
                self.sources[source] += 1
                self.ms.append(took_ms)
                self.asked[mode] += 1
                self.met[mode] += source in ("device", "host")
                self.late[mode] += took_ms > self.budget_ms + ALLOWED_MS

        try:
            future = model.submit(tiny.RED, budget_ms=self.budget_ms)
        except (BudgetExceeded, QueueFull) as error:
            ended(type(error).__name__)
            return
        future.add_done_callback(
            lambda done: ended(type(done.exception()).__name__ if done.exception() else done.result().source)
        )

    def wait(self, count: int) -> dict:
        until = time.monotonic() + 30
        while len(self.ms) < count and time.monotonic() < until:
            time.sleep(0.01)
        ms = np.array(self.ms)
        return {
            "requests": count,
            "budget_ms": self.budget_ms,
            "ended": len(ms),
            "sources": dict(self.sources),
            "later_than_budget_and_5_ms": float(np.mean(ms > self.budget_ms + ALLOWED_MS)),
            "by_fault": {
                mode: {"asked": asked, "met": self.met[mode], "late": self.late[mode]}
                for mode, asked in self.asked.items()
            },
            "met": float(self.sources["host"] + self.sources["device"]) / count,
            "p50_ms": float(np.median(ms)),
            "p999_ms": float(np.quantile(ms, 0.999)),
            "longest_ms": float(ms.max()),
        }


def faults(model, proxy, count: int, rate: float) -> dict:
    """Two seconds of each fault in turn."""
    ends, began, last = Ends(), time.perf_counter(), ""
    for number in range(count):
        due = began + number / rate
        time.sleep(max(0.0, due - time.perf_counter()))
        mode = FAULTS[int(number / rate / 2.0) % len(FAULTS)]
        if mode != last:
            say(proxy, mode)
            last = mode
        ends.ask(model, mode)
    say(proxy, "near")
    return ends.wait(count)


def far(model, proxy, rounds: int = 40) -> dict:
    """64 requests at once, every half second, with a second each."""
    say(proxy, "far")
    time.sleep(2.0)
    warm = Ends(FAR_BUDGET_MS)
    for _ in range(5):
        for _ in range(64):
            warm.ask(model)
        time.sleep(0.5)
    ends = Ends(FAR_BUDGET_MS)
    for _ in range(rounds):
        for _ in range(64):
            ends.ask(model)
        time.sleep(0.5)
    return ends.wait(64 * rounds)


def say(proxy, mode: str) -> None:
    proxy.stdin.write(f"{mode}\n")
    proxy.stdin.flush()


class Proxy:
    """Passes bytes on, or does not. mode: from stdin, a word a line."""

    def __init__(self, url: str) -> None:
        self.where = url.removeprefix("http://").split(":")
        self.mode = "near"
        self.open: set[asyncio.StreamWriter] = set()

    async def serve(self) -> None:
        server = await asyncio.start_server(self.connected, "127.0.0.1", 0)
        print(json.dumps({"listening": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}), flush=True)
        loop = asyncio.get_running_loop()
        while mode := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
            self.mode = mode
            if mode == "kill":
                for writer in list(self.open):
                    writer.transport.abort()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.mode == "kill":
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection(self.where[0], int(self.where[1]))
        except OSError:
            writer.transport.abort()
            return
        self.open.add(writer)
        up = asyncio.create_task(self.pump(reader, back))
        try:
            await self.answers(there, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            up.cancel()
            self.open.discard(writer)
            writer.transport.abort()
            back.transport.abort()

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except OSError:
            pass
        writer.close()

    async def answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            mode = self.mode
            if writer.transport.is_closing() or mode == "cut":
                return
            if mode == "503":
                writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                await writer.drain()
                return
            if mode == "hang":
                await asyncio.sleep(10)
            if mode == "trickle":
                for byte in data:
                    if writer.transport.is_closing():
                        return
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.02)
                continue
            await asyncio.sleep({"slow": 1.0, "far": 0.1}.get(mode, 0.0))
            writer.write(data)
            await writer.drain()


if __name__ == "__main__":
    main()
