"""The fleet's pages at 10, 500 and 10,000 boards: server time, what a viewer costs, first paint, and pictures.

.venv/bin/python benchmarks/fleet/pages.py --boards 10000 --json benchmarks/results/fleet_pages.json
.venv/bin/python benchmarks/fleet/pages.py --boards 500 --pictures /tmp/pictures --no-figures

Boards are filled into the store with windows that the boards' own code made. While a viewer is measured they go on
reporting: `--per-s` windows a second, as 10,000 boards make with one a minute.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import random
import statistics
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any

from edgekit.fleet.pages.live import Live
from edgekit.fleet.rollouts.rollout_tables import RolloutBundle, RolloutTables
from edgekit.fleet.rollouts.waves import RolloutPlan
from edgekit.fleet.serve import FleetServer, Settings
from edgekit.fleet.store.databases import SqliteStore
from edgekit.fleet.store.messages import parse_window
from edgekit.fleet.store.records import Arrival, Change, parse_state
from edgekit_runtime.install.orders import OrderReport
from edgekit_runtime.telemetry.histogram import CountedWindow, Histogram
from edgekit_runtime.telemetry.window import About, Report, Seal, System, encode, sealed_payload

MINUTE_MS = 60_000
PAGES = (
    "", "?state=late&sort=-p99", "?by=model", "?by=site", "models", "model?name=efficientnet_lite0", "events", "health",
    "device/site-1-00000", "device/site-1-00000/charts", "?q=nothing-like-that", "rollouts", "rollouts/1", "?by=build",
    "alerts",
)  # fmt: skip
SIZES = {"desk": (1280, 900), "phone": (390, 844)}


class Board:
    """One that is not there: its habits are drawn once, its windows by the code of boards."""

    def __init__(self, number: int, draw: random.Random) -> None:
        self.id = f"site-{number % 23 + 1}-{number:05d}"
        self.version = "1.1" if draw.random() < 0.3 else "1.0"
        model = "efficientnet_lite0" if draw.random() < 0.9 else "person-detector"
        profile = draw.choice(["raspberry-pi-4", "raspberry-pi-4", "raspberry-pi-5", "jetson-orin-nano"])
        self.median_ms = {"raspberry-pi-4": 22.0, "raspberry-pi-5": 9.0}.get(profile, 4.0) * draw.uniform(0.8, 1.2)
        if self.version == "1.1" and draw.random() < 0.2:
            self.median_ms *= 2.2
        self.temp = 84.0 if draw.random() < 0.01 else draw.uniform(45, 68)
        self.psi = 0.34 if draw.random() < 0.01 else draw.uniform(0.0, 0.1)
        self.errors = 0.1 if draw.random() < 0.01 else 0.0
        self.spooled = 300 if draw.random() < 0.005 else 1
        self.offline = draw.random() < 0.03
        self.about = About(
            self.id, model, self.version, "9f3c01ab77de", profile, 40.0, True, f"site-{number % 23 + 1}",
            draw.choice(["cameras", "gates"]),
        )  # fmt: skip
        self.seq = 0
        self.draw = draw

    def birth(self, now_ms: int, *, on: bool = True) -> Change:
        about = self.about
        value: dict[str, object] = {"on": int(on), "epoch": "00112233445566aa", "boot": 1}
        if on:
            value |= {
                "sw": "edgekit 0.1.0", "model": about.model, "ver": about.version, "sha": about.sha,
                "profile": about.profile, "hw": "Raspberry Pi 4 Model B Rev 1.4", "sla": about.budget_ms, "win": 60.0,
                "site": about.site, "group": about.group,
            }  # fmt: skip
        return Change(self.id, now_ms, parse_state(json.dumps(value).encode()))

    def window(self, at_ms: int) -> Arrival:
        self.seq += 1
        device, cache, wait, output = Histogram(), Histogram(), Histogram(), Histogram()
        for _ in range(60):
            device.record(self.draw.lognormvariate(0, 0.2) * self.median_ms)
            wait.record(self.draw.uniform(0.2, 1.5))
            output.record(self.draw.uniform(0.1, 0.4))
        for _ in range(self.draw.randrange(10, 60)):
            cache.record(0.03)
        late = 60 if self.median_ms > 40 else 0
        errors = int(60 * self.errors)
        report = Report(
            self.about, 1, at_ms - MINUTE_MS, MINUTE_MS, True,
            CountedWindow(
                {"device": device, "cache": cache}, {"engine": errors} if errors else {}, late,
                stages={"queue": wait, "infer": device, "finish": output}, compared=20,
                differed=self.draw.randrange(2), clipped=self.draw.randrange(90), values=9000,
            ),
            System(31.0, 44.0, self.temp + self.draw.uniform(-1, 1), 0, 20_000), psi=self.psi,
        )  # fmt: skip
        seal = Seal("00112233445566aa", self.seq, self.seq, 0, self.spooled, 400)
        data = sealed_payload(encode(report), seal)
        return Arrival(self.id, seal, at_ms, data, parse_window(data, self.id))


def fill(store: SqliteStore, number: int, windows: int, now_ms: int) -> list[Board]:
    boards = [Board(i, random.Random(i)) for i in range(number)]
    for i in range(0, number, 500):
        part = boards[i : i + 500]
        start = now_ms - (windows - 1) * MINUTE_MS
        store.commit([], [board.birth(start) for board in part])
        for k in range(windows):
            at = start + k * MINUTE_MS
            store.commit([board.window(at - board.draw.randrange(20_000)) for board in part], [])
        store.commit([], [board.birth(now_ms, on=False) for board in part if board.offline])
    roll_out(store, [board.id for board in boards if board.version == "1.0"], now_ms)
    return boards


def roll_out(store: SqliteStore, ids: list[str], now_ms: int) -> None:
    """One that is in its first wave: some boards committed, one refused."""
    tables = RolloutTables(store)
    bundle = RolloutBundle(
        "efficientnet_lite0", "1.2", "raspberry-pi-4", ("raspberry-pi-4",), "a" * 64, "a" * 12, 5_000_000
    )
    made = tables.make(bundle, "https://fleet.example/bundles/x.ekb", RolloutPlan(), ids, now_ms)
    first = [row.device for row in tables.boards(made.id) if row.wave == 0]
    done = [(name, OrderReport(made.rev, "committed", "1.2", "", "")) for name in first[1::2]]
    tables.report(
        [*done, (first[0], OrderReport(made.rev, "refused", "1.0", "the bundle has expired", "expired"))], now_ms
    )


def server_times(url: str, paths: list[str], runs: int = 15) -> tuple[dict[str, float], dict[str, float]]:
    """Median milliseconds until a page is there, over one kept connection on loopback; and of the processor alone,
    which a busy machine changes less (of the whole process: the client's few calls are in it).
    """
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    found, worked = {}, {}
    for path in paths:
        times, busy = [], []
        for _ in range(runs):
            start, busy_before = time.perf_counter(), time.process_time()
            connection.request("GET", "/" + path)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, path
            times.append((time.perf_counter() - start) * 1000)
            busy.append((time.process_time() - busy_before) * 1000)
        found["/" + path] = round(statistics.median(times), 1)
        worked["/" + path] = round(statistics.median(busy), 1)
    return found, worked


class Viewer(threading.Thread):
    """One open page: reads its stream and counts the bytes."""

    def __init__(self, url: str, path: str) -> None:
        super().__init__(daemon=True)
        parts = urllib.parse.urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        self._path = path
        self.bytes = 0
        self.ended = threading.Event()

    def run(self) -> None:
        self._connection.request("GET", self._path)
        answer = self._connection.getresponse()
        while not self.ended.is_set() and (data := answer.read1(65536)):
            self.bytes += len(data)


def viewers_cost(
    server: FleetServer, boards: list[Board], per_s: float, viewers: int, seconds: float
) -> dict[str, float]:
    """Processor time and bytes a second. polls: what all viewers' reads and rows cost, in the thread that makes them;
    the whole process also takes reports in and looks for alerts, now and then.
    """
    stop = threading.Event()

    def report() -> None:
        draw = random.Random(7)
        online = [board for board in boards if not board.offline]
        ready = [draw.choice(online).window(int(time.time() * 1000)) for _ in range(int(per_s * (2 * seconds + 12)))]
        begun.set()
        for i in range(0, len(ready), max(1, int(per_s / 4))):
            if stop.is_set():
                return
            server.store.commit(ready[i : i + max(1, int(per_s / 4))], [])
            time.sleep(0.25)

    worked = [0.0]
    look = Live._look

    def timed(*given: Any) -> Any:
        start = time.thread_time()
        try:
            return look(*given)
        finally:
            worked[0] += time.thread_time() - start

    Live._look = timed  # type: ignore[method-assign]
    begun = threading.Event()
    reporting = threading.Thread(target=report, daemon=True)
    reporting.start()
    begun.wait()
    time.sleep(1)
    alone = busy_share(seconds)
    after = server.store.totals().changed
    paths = ["/stream?after=%d", "/stream?state=late&sort=-p99&after=%d"]
    open_pages = [Viewer(server.url, paths[i % 2] % after) for i in range(viewers)]
    for viewer in open_pages:
        viewer.start()
    time.sleep(2)
    before, polled = sum(viewer.bytes for viewer in open_pages), worked[0]
    with_them = busy_share(seconds)
    sent = sum(viewer.bytes for viewer in open_pages) - before
    stop.set()
    for viewer in open_pages:
        viewer.ended.set()
    reporting.join()
    return {
        "viewers": viewers, "reports_core_percent": round(alone, 2), "with_viewers_core_percent": round(with_them, 2),
        "polls_core_percent": round(100 * (worked[0] - polled) / seconds, 3),
        "a_viewer_kB_per_s": round(sent / viewers / seconds / 1000, 2),
    }  # fmt: skip


def busy_share(seconds: float) -> float:
    start, busy = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    return 100 * (time.process_time() - busy) / (time.perf_counter() - start)


def paint_ms(url: str, runs: int = 5) -> float:
    """Median of the browser's own first contentful paint."""
    from picture import browser

    times = []
    with browser(SIZES["desk"]) as running:
        for _ in range(runs + 1):
            running.get("about:blank")
            running.get(url)
            until = time.monotonic() + 20
            script = "return performance.getEntriesByName('first-contentful-paint').map((e) => e.startTime)"
            while not (found := running.execute_script(script)) and time.monotonic() < until:
                time.sleep(0.05)
            times += found[:1]
    return round(statistics.median(times[1:]), 0)


def photograph(url: str, folder: Path, dark: bool) -> None:
    from picture import browser, resize
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for name, size in SIZES.items():
        with browser(size) as running:
            if dark:
                feature = {"name": "prefers-color-scheme", "value": "dark"}
                running.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
            for path in PAGES:
                running.get(url + path)
                time.sleep(1.5 if "device" in path or "model?" in path else 0.5)
                wide = running.execute_script("return document.documentElement.scrollWidth")
                high = running.execute_script("return document.documentElement.scrollHeight")
                plain = "".join(letter if letter.isalnum() else "-" for letter in path) or "fleet"
                file = folder / f"{name}{'-dark' if dark else ''}-{plain}.png"
                resize(running, size[0], max(min(high, 2400), size[1]))
                time.sleep(0.3)
                Image.open(io.BytesIO(running.get_screenshot_as_png())).save(file)
                resize(running, *size)
                said = [entry["message"] for entry in running.get_log("browser")]
                print(file, f"WIDER THAN {size[0]}: {wide}" if wide > size[0] else "", *said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--boards", type=int, default=500)
    parser.add_argument("--windows", type=int, default=20, help="of each board, a minute apart")
    parser.add_argument("--per-s", type=float, default=167.0, help="windows a second while viewers are measured")
    parser.add_argument("--viewers", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--pictures", type=Path, metavar="DIR")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--no-figures", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/fleet.db"
        with FleetServer(Settings("mqtt://127.0.0.1:1", store=url, listen="127.0.0.1:0")) as server:
            start = time.perf_counter()
            boards = fill(server.store, options.boards, options.windows, int(time.time() * 1000))
            print(f"{options.boards} boards, {options.windows} windows each, in {time.perf_counter() - start:.0f} s")
            if options.pictures is not None:
                photograph(server.url, options.pictures, options.dark)
            if not options.no_figures:
                load = os.getloadavg()[0]
                taken, worked = server_times(server.url, list(PAGES))
                figures = {
                    "boards": options.boards, "windows_a_board": options.windows, "processors": os.cpu_count(),
                    "load_before": load, "page_ms": taken, "page_processor_ms": worked,
                    **viewers_cost(server, boards, options.per_s, options.viewers, options.seconds),
                    "first_paint_ms": paint_ms(server.url), "load_after": os.getloadavg()[0],
                }  # fmt: skip
                print(json.dumps(figures, indent=1))
                if options.json is not None:
                    before = json.loads(options.json.read_text()) if options.json.exists() else {}
                    before[str(options.boards)] = figures
                    options.json.write_text(json.dumps(before, indent=1) + "\n")


if __name__ == "__main__":
    main()
