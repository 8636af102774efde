"""The picture in docs/operator.md: the fleet page of `edgekit demo --fleet`, photographed by Chromium.

make demo
.venv/bin/python benchmarks/fleet_picture.py -o docs/images/fleet.png       # needs chromium and chromium-driver
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
import time
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from edgekit.demo.fleet import FleetDemo

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="the demo's")
    parser.add_argument("--seconds", type=float, default=75.0, help="how long the boards report first")
    parser.add_argument("--page", default="", help="which page: '' or device/this-machine")
    parser.add_argument("--size", type=int, nargs=2, default=(1400, 800), help="of the window")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/images/fleet.png"))
    options = parser.parse_args()
    bundle = options.folder / "bundles" / "efficientnet_lite0-raspberry-pi-4.ekb"
    photos = [options.folder / "chelsea.png", options.folder / "coffee.png"]
    with FleetDemo(bundle, photos, options.folder) as demo, tempfile.TemporaryDirectory() as profile:
        time.sleep(options.seconds)
        chrome = webdriver.ChromeOptions()
        chrome.binary_location = shutil.which("chromium") or "google-chrome"
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            chrome.add_argument(flag)
        browser = webdriver.Chrome(options=chrome, service=Service(shutil.which("chromedriver")))
        try:
            width, height = options.size
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            browser.get(demo.server.url + options.page)
            time.sleep(3)
            picture = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
        finally:
            browser.quit()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    picture.quantize(128, dither=Image.Dither.NONE).save(options.output, optimize=True)
    print(f"{options.output}: {options.output.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
