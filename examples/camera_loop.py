"""Classify a camera's newest frame and drop older ones.

    python examples/camera_loop.py demo/bundles/efficientnet_lite0-raspberry-pi-4.ekb 0
    python examples/camera_loop.py net.ekb rtsp://porch.local/main
    python examples/camera_loop.py net.ekb clip.mp4

A numbered camera needs the extra `camera`; a URL or a clip needs `video`. Ctrl-C ends the loop.
"""

import sys

from edgekit_runtime import CacheOptions, open_bundle, stream

if len(sys.argv) != 3:
    sys.exit(__doc__)

with open_bundle(sys.argv[1], cache=CacheOptions(similar=2.0)) as model:
    for result in stream(sys.argv[2], model, budget_ms=1000):
        print(result.number, result.error or f"{result.answer.timings['total']:.1f} ms", result.dropped)
