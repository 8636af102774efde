"""An ingestor in a process of its own, for tests that kill it: `python one_ingestor.py BROKER STORE`.

It says "subscribed" on a line once the broker sends it what boards report."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from edgekit.fleet.ingest import Ingest, Pace, collect_rarely
from edgekit.fleet.store.databases import SqliteStore
from edgekit_runtime.telemetry.link import Broker


def main(broker: str, store: str) -> None:
    collect_rarely()
    ingest = Ingest(Broker.parse(broker), SqliteStore.open(Path(store)), Pace(most_wait_s=1.0))
    ingest.start()
    while not ingest.link.subscribed:
        time.sleep(0.01)
    print("subscribed", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
