"""The pictures in README and the guides: pages of the demos, photographed by Chromium.

make demo; .venv/bin/pip install -e '.[fleet]' selenium     # and chromium, chromium-driver
.venv/bin/python benchmarks/fleet/picture.py --size 1400 1040 -o docs/images/fleet.png
.venv/bin/python benchmarks/fleet/picture.py --report --size 1200 1560 -o docs/images/report.png
.venv/bin/python benchmarks/fleet/picture.py --fallback --page device/porch-1 --size 1200 1250 -o docs/images/host.png
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from edgekit.cli.demo import run_step
from edgekit.demo.fallback import fallback_demo, fleet_demo

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="the demo's")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long the boards report after the story")
    parser.add_argument(
        "--fallback", action="store_true", help="the device of `edgekit demo --fallback`, after one walk"
    )
    parser.add_argument("--report", action="store_true", help="the page of the demo's build")
    parser.add_argument("--page", default="", help="which page: '' or device/this-machine")
    parser.add_argument("--size", type=int, nargs=2, default=(1400, 800), help="of the window")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/images/fleet.png"))
    options = parser.parse_args()
    with contextlib.ExitStack() as running:
        if options.report:
            url = (options.folder / "bundles" / "efficientnet_lite0-build.html").absolute().as_uri()
        elif options.fallback:
            fallback = running.enter_context(fallback_demo(options.folder))
            fallback.walk(print)
            url = fallback.url
        else:
            bundle = options.folder / "bundles" / "efficientnet_lite0-raspberry-pi-4.ekb"
            photos = [options.folder / "chelsea.png", options.folder / "coffee.png"]
            fleet = running.enter_context(fleet_demo(bundle, photos, options.folder))
            url = fleet.server.url
            for check in fleet.story(run_step, print):
                print(check)
            time.sleep(options.seconds)
        picture = photograph(url + options.page, options.size)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    picture.quantize(128, dither=Image.Dither.NONE).save(options.output, optimize=True)
    print(f"{options.output}: {options.output.stat().st_size // 1024} KiB")


def photograph(url: str, size: tuple[int, int]) -> Image.Image:
    with browser(size) as running:
        running.get(url)
        time.sleep(3)
        return Image.open(io.BytesIO(running.get_screenshot_as_png())).convert("RGB")


@contextlib.contextmanager
def browser(size: tuple[int, int]) -> Iterator[webdriver.Chrome]:
    """A headless Chromium with a window of that width and height."""
    with tempfile.TemporaryDirectory() as profile:
        chrome = webdriver.ChromeOptions()
        chrome.binary_location = shutil.which("chromium") or "google-chrome"
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            chrome.add_argument(flag)
        running = webdriver.Chrome(options=chrome, service=Service(shutil.which("chromedriver")))
        try:
            resize(running, *size)
            yield running
        finally:
            running.quit()


def resize(running: webdriver.Chrome, width: int, height: int) -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    running.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


if __name__ == "__main__":
    main()
