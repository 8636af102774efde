"""The stages of a request to `edgekit host serve` on loopback: input, queue, transfer, inference, output.

    python benchmarks/tutorial_table/chain.py net.ekb --calls 50      # prints one JSON object, milliseconds

Of the fastest request, whose stages add up; a busy machine slows the others.

- input: a JPEG of 1280 x 720 decoded, and resized to the network's size with Pillow, as a float32 array;
- transfer: there and back on loopback with both codecs, which is what is left of the call;
- queue, inference: as the host says in `Server-Timing`;
- output: the five best of the scores.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.remote.client import HostClient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--calls", type=int, default=50)
    options = parser.parse_args()
    manifest = read_bundle(options.bundle).manifest
    [spec], [scores] = manifest.contract.inputs, manifest.contract.outputs
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", "host", "serve", str(options.bundle)]
    with subprocess.Popen([*command, "--listen", "127.0.0.1:0", "--json"], stdout=subprocess.PIPE, text=True) as host:
        try:
            assert host.stdout is not None
            url = json.loads(host.stdout.readline())["listening"]
            client = HostClient(url, model=manifest.name)
            rows = [_request(client, spec.name, spec.shape, scores.name, _jpeg(n)) for n in range(options.calls + 3)]
        finally:
            host.terminate()
            host.wait(30)
    print(json.dumps(min(rows[3:], key=lambda row: row["total"])))


def _jpeg(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (45, 80, 3), dtype=np.uint8))
    stream = io.BytesIO()
    small.resize((1280, 720), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def _request(client: HostClient, name: str, shape: tuple[int, ...], scores: str, jpeg: bytes) -> dict[str, float]:
    began = time.perf_counter()
    picture = Image.open(io.BytesIO(jpeg)).convert("RGB").resize((shape[1], shape[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture, np.float32)[None] / 127.5 - 1.0
    read = time.perf_counter()
    answer = client.infer({name: pixels}, 30.0)
    answered = time.perf_counter()
    np.argsort(answer.outputs[scores][0])[:-6:-1]
    ended = time.perf_counter()
    return {
        "input": (read - began) * 1e3,
        "queue": answer.queue_ms or 0.0,
        "transfer": answer.network_ms,
        "inference": answer.infer_ms or 0.0,
        "output": (ended - answered) * 1e3,
        "total": (ended - began) * 1e3,
    }


if __name__ == "__main__":
    main()
