"""How many windows a second one ingestor takes in: from a real mosquitto, roll-ups and acknowledgements included.

    .venv/bin/python benchmarks/fleet/ingest.py --devices 1000 --windows 40

All windows are made before the clock starts. One socket publishes them as fast as the broker takes them; the broker's
queue is unbounded here, so the ingestor alone sets the pace. Its processor time is the kernel's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

from mosquitto import Mosquitto

from edgekit.bench.conditions import conditions
from edgekit.fleet.store.databases import SqliteStore
from edgekit_runtime.telemetry.histogram import CountedWindow, Histogram
from edgekit_runtime.telemetry.window import About, Report, Seal, System, encode, sealed_payload

_PATIENCE_S = 60.0
TICK = os.sysconf("SC_CLK_TCK")


def windows(devices: int, each: int) -> list[tuple[str, bytes]]:
    """One minute each, as boards send them that answer ten times a second: device and cache, four stages."""
    draw, made = random.Random(0), []
    began = int(time.time() * 1e3) - each * 60_000
    for seq in range(1, each + 1):
        for number in range(devices):
            device, cache = Histogram(), Histogram()
            for _ in range(30):
                device.record(20.0 * draw.lognormvariate(0.0, 0.2))
            for _ in range(8):
                cache.record(0.02 * draw.lognormvariate(0.0, 0.4))
            name = f"board-{number:05}"
            about = About(name, "digits", "1", "0" * 12, "raspberry-pi-4", 40.0, site=f"site-{number % 20}")
            report = Report(
                about, 1, began + 60_000 * seq, 60_000, True,
                CountedWindow({"device": device, "cache": cache}, over_budget=1,
                    stages=dict.fromkeys(("prepare", "infer", "finish"), device)),
                System(30.0, 40.0, 55.0, 0, 10_000),
            )  # fmt: skip
            seal = Seal(f"{number:016x}", seq, seq, 0, 1, 600)
            made.append((f"ek/v1/{name}/m", sealed_payload(encode(report), seal)))
    return made


def packet(kind: int, body: bytes) -> bytes:
    length, left = bytearray(), len(body)
    while True:
        left, digit = divmod(left, 128)
        length.append(digit | (128 if left else 0))
        if not left:
            return bytes([kind]) + bytes(length) + body


def text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


def publish(port: int, messages: list[tuple[str, bytes]]) -> None:
    """MQTT 3.1.1, QoS 1; receipts are read and thrown away."""
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(packet(0x10, text("MQTT") + b"\x04\x02\x00\x00" + text("publisher")))
        link.recv(4)
        threading.Thread(target=lambda: [None for _ in iter(lambda: link.recv(65536), b"")], daemon=True).start()
        for start in range(0, len(messages), 100):
            link.sendall(
                b"".join(
                    packet(0x32, text(topic) + (1 + place % 60_000).to_bytes(2, "big") + payload)
                    for place, (topic, payload) in enumerate(messages[start : start + 100], start)
                )
            )
        link.shutdown(socket.SHUT_WR)
        time.sleep(1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    messages = windows(options.devices, options.windows)
    with tempfile.TemporaryDirectory() as name:
        folder, load = Path(name), os.getloadavg()[0]
        with Mosquitto(folder, "max_queued_messages 1000000") as broker:
            script = str(ROOT / "tests/fleet/one_ingestor.py")
            command = [sys.executable, script, broker.url, str(folder / "fleet.db")]
            ingestor = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert ingestor.stdout is not None
            assert ingestor.stdout.readline() == "subscribed\n"
            store = SqliteStore.open(folder / "fleet.db")
            fields = Path(f"/proc/{ingestor.pid}/stat")
            began, before = time.monotonic(), used(fields)
            threading.Thread(target=publish, args=(broker.port, messages), daemon=True).start()
            stored, moved = 0, began
            while (now := store.totals().windows) < len(messages):
                stored, moved = now, moved if now == stored else time.monotonic()
                if time.monotonic() - moved > _PATIENCE_S:
                    ingestor.kill()
                    sys.exit(f"{now:,} of {len(messages):,} windows came: see why the broker ended the publisher")
                time.sleep(0.05)
            took, busy = time.monotonic() - began, used(fields) - before
            store.close()
            ingestor.kill()
            ingestor.wait()
    value = {
        "title": "windows a second that one ingestor takes in",
        "conditions": conditions() | {"load_before": round(load, 1), "load_after": round(os.getloadavg()[0], 1)},
        "devices": options.devices,
        "windows": len(messages),
        "bytes_a_window": round(sum(len(payload) for _, payload in messages) / len(messages)),
        "seconds": round(took, 2),
        "windows_a_second": round(len(messages) / took),
        "us_of_the_processor_a_window": round(1e6 * busy / len(messages)),
        "windows_a_second_of_the_processor": round(len(messages) / busy),
    }
    print(json.dumps({key: entry for key, entry in value.items() if key != "conditions"}, indent=2))
    if options.output is not None:
        options.output.write_text(json.dumps(value, indent=2) + "\n")


def used(stat: Path) -> float:
    fields = stat.read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


if __name__ == "__main__":
    main()
