"""An application that reports its latencies over MQTT, for `edgekit fleet serve --embedded-broker`.

    python examples/report_to_broker.py net.ekb photo.png --broker mqtt://127.0.0.1:1883 --device porch-1

Reports wait on disk while the broker is unreachable, and survive a power cut.
"""

from __future__ import annotations

import argparse
import contextlib
import time

from edgekit_runtime import BudgetExceeded, TelemetryOptions, open_bundle


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("bundle")
    asked.add_argument("picture")
    asked.add_argument("--broker", required=True)
    asked.add_argument("--device", required=True)
    asked.add_argument("--spool", default="spool.db")
    asked.add_argument("--window-s", type=float, default=60.0)
    asked.add_argument("--seconds", type=float, default=float("inf"))
    options = asked.parse_args()
    telemetry = TelemetryOptions(options.broker, options.device, options.window_s, options.spool)
    until = time.monotonic() + options.seconds
    with open_bundle(options.bundle, telemetry=telemetry) as model, contextlib.suppress(KeyboardInterrupt):
        while time.monotonic() < until:
            with contextlib.suppress(BudgetExceeded):  # counted and reported by the runtime
                model.predict(options.picture, budget_ms=100)
            time.sleep(0.1)


if __name__ == "__main__":
    main()
