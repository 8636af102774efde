"""Clips made of arrays, and a real RTSP server on a loopback port that a test may stop, hold and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import av
import numpy as np
from parts import missing
from ports import free_port

SERVER = Path(__file__).with_name("rtsp_camera.py")
PYTHON = "/usr/bin/python3"  # Debian's GObject introspection is for Debian's Python
_PACKAGES = "gir1.2-gst-rtsp-server-1.0 python3-gi gstreamer1.0-plugins-good"


def write(file: Path, pictures: Iterable[np.ndarray], rate: int = 20) -> Path:
    """A clip of uint8 [H, W, 3] pictures in RGB."""
    pictures = list(pictures)
    with av.open(str(file), "w") as clip:
        stream = clip.add_stream("mpeg4", rate=rate)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt, stream.bit_rate = "yuv420p", 2_000_000
        for picture in pictures:
            clip.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        clip.mux(stream.encode())
    return file


def read(file: Path) -> list[tuple[float, np.ndarray]]:
    """(seconds, picture in RGB) of each frame."""
    with av.open(str(file)) as clip:
        return [(float(frame.time), frame.to_ndarray(format="rgb24")) for frame in clip.decode(video=0)]


def plain(height: int, width: int, *colour: int) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


class RtspCamera:
    """`with RtspCamera() as camera:` 64 x 48 pixels, red, twenty a second, at camera.url.

    GStreamer's server, for the user anna with the password s3cret.
    """

    def __init__(self) -> None:
        if sys.platform != "linux":
            missing("GStreamer's RTSP server", "a Linux with apt-get")
        self.port = free_port()
        self.url = f"rtsp://anna:s3cret@127.0.0.1:{self.port}/camera"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [PYTHON, str(SERVER), str(self.port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            missing("GStreamer's RTSP server", f"sudo apt-get install {_PACKAGES}")

    def hold(self) -> None:
        """It keeps its connections and sends nothing."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> RtspCamera:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
