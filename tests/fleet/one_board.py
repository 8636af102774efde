"""A board in a process of its own, for tests that kill it: `python one_board.py BROKER DEVICE SPOOL WINDOW_S`."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from edgekit_runtime.telemetry.meter import Meter
from edgekit_runtime.telemetry.reporter import Reporter, TelemetryOptions
from edgekit_runtime.telemetry.window import About


def main(broker: str, device: str, spool: str, window_s: str) -> None:
    meter, draw = Meter(), random.Random(device)
    about = About(device, "digits", "1", "0" * 12, "raspberry-pi-4", 40.0)
    reporter = Reporter(meter, about, TelemetryOptions(broker, device, float(window_s), Path(spool), most_wait_s=2.0))
    reporter.start()
    while True:
        time.sleep(0.05)
        meter.record("device", draw.lognormvariate(3.0, 0.2), True)


if __name__ == "__main__":
    main(*sys.argv[1:])
