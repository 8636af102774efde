"""`edgekit run BUNDLE --camera SOURCE`: frames answered, shown where --view says, counted.

Rules:
- a page is on 127.0.0.1 only. Each viewer gets the newest frame; without one nothing is drawn;
- a clip has the times of its source; frames of a camera have the times of their answers.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from edgekit.cli.printing import print_result, refuse_unwritable
from edgekit.cli.progress import until_signalled
from edgekit.packaging.output_errors import OutputError
from edgekit.report import words
from edgekit_runtime.telemetry.metrics import Pages, PageServer

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

    from edgekit_runtime import Answer, Box, EdgekitError, Model, Prediction
    from edgekit_runtime.camera import Stream, StreamResult

    Show = Callable[[StreamResult], None]
    Tell = Callable[[str, "Answer | EdgekitError"], None]

PORT = 8080
_PAGE = """<!doctype html><meta charset=utf-8><title>edgekit</title><body style="margin:0;background:#111">
<img src=/frames alt="the newest answered frame" style="display:block;width:100vw;height:100vh;object-fit:contain">"""


def follow(frames: Stream, model: Model, tell: Tell | None, show: Show | None, as_json: bool) -> bool:
    """Answer frames until they end or a signal comes. False if each was refused."""
    refused = stopped = 0
    click.echo(f"{frames.where}: {'the newest' if frames.newest else 'every'} frame is answered", err=True)
    with contextlib.suppress(KeyboardInterrupt), until_signalled(_interrupt), frames:
        for result in frames:
            stopped, outcome = result.stopped, result.answer or result.error
            refused += result.answer is None
            if show is not None:
                show(result)
            if tell is not None and outcome is not None:
                tell(f"frame {result.number}", outcome)
    meter = model.stats().meter
    latency, answered = meter.latency_ms, sum(meter.answers.values())
    counts = {"seen": answered + refused + meter.dropped, "answered": answered, "refused": refused}
    counts |= {"dropped": meter.dropped, "stopped": stopped}
    more = {"answers": meter.answers, "p50_ms": latency.p50, "p99_ms": latency.p99}
    by = ", ".join(f"{n:,} {source}" for source, n in meter.answers.items())
    times = f"; p50 {latency.p50:.1f} ms, p99 {latency.p99:.1f} ms" if latency.p50 and latency.p99 else ""
    line = f"{', '.join(f'{n:,} {name}' for name, n in counts.items())}{times}; answers: {by or 'none'}"
    print_result({"summary": counts | more}, [line], as_json)
    return answered > 0 or not refused


def _interrupt() -> None:
    raise KeyboardInterrupt


def open_view(where: str | None) -> AbstractContextManager[Show | None]:
    """Show answers on a page (":PORT", or "" for one in the browser) or in a clip (its path).

    Raises MetricsError, OutputError.
    """
    if where is None:
        return contextlib.nullcontext()
    if where and not (where[0] == ":" and where[1:].isdecimal()):
        return _clip(Path(where))
    return _page(int(where[1:] or PORT), browse=where == "")


def draw(result: StreamResult) -> Image.Image:
    """The frame in RGB, with a detector's boxes or a classifier's best class."""
    from PIL import Image, ImageDraw

    pixels, answer = result.frame.parts[0], result.answer
    pixels = pixels[:, :, 2::-1] if result.frame.format.startswith("bgr") else pixels[:, :, :3]
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    pen = ImageDraw.Draw(picture)
    if answer is not None and answer.contract.task == "classification":
        _write(pen, picture.height, 0, 0, answer.top(1)[0])
    for box in answer.boxes if answer is not None and answer.contract.detection is not None else ():
        corners = (box.left, box.top, box.right, box.bottom)
        pen.rectangle(corners, outline=_colour(box.index), width=max(2, picture.height // 200))
        _write(pen, picture.height, box.left, box.top, box)
    return picture


def _colour(index: int) -> str:
    return f"hsl({index * 67 % 360}, 90%, 40%)"


def _write(pen: ImageDraw.ImageDraw, height: int, left: float, bottom: float, what: Prediction | Box) -> None:
    """Label and score in white on the class's colour, above `bottom` if there is room."""
    from PIL import ImageFont

    size, colour = max(12, height // 30), _colour(what.index)
    try:
        font: Any = ImageFont.load_default(size)
    except TypeError:  # Pillow before 10.1 has one size
        font = ImageFont.load_default()
    place, text = (left, max(0.0, bottom - size * 1.3)), f"{what.label} {words.confidence(what.score)}"
    pen.rectangle(pen.textbbox(place, text, font=font), fill=colour, outline=colour, width=2)
    pen.text(place, text, fill="white", font=font)


@contextmanager
def _clip(file: Path) -> Iterator[Show]:
    """Write a clip in the format that its name says."""
    import av

    refuse_unwritable(file, "--view")
    try:
        clip: Any = av.open(str(file), "w")
    except ValueError as error:
        do = "Name a clip, as answers.mp4, or a port of this machine, as :8080"
        raise OutputError("its name is not that of a clip", where=str(file), do=do) from error
    began, last, written, frame_type = monotonic(), -1, None, av.VideoFrame  # type: Any, int, Any, Any

    def show(result: StreamResult) -> None:
        nonlocal last, written
        picture = frame_type.from_image(draw(result))
        if written is None:
            written = clip.add_stream(clip.default_video_codec, rate=1000)  # its times are in milliseconds
            written.width, written.height = picture.width // 2 * 2, picture.height // 2 * 2
            written.pix_fmt = "yuv420p"
        seconds = monotonic() - began if result.seconds is None else result.seconds
        picture = picture.reformat(written.width, written.height, "yuv420p")
        picture.pts = last = max(last + 1, round(seconds * 1000))
        clip.mux(written.encode(picture))

    click.echo(f"view: {file}", err=True)
    with clip:
        yield show
        if written is not None:
            clip.mux(written.encode())


@contextmanager
def _page(port: int, browse: bool) -> Iterator[Show]:
    """Serve a page with the newest frame, as motion JPEG."""
    changed, newest = threading.Condition(), None

    def show(result: StreamResult | None) -> None:
        nonlocal newest
        with changed:
            newest = result
            changed.notify_all()

    def pictures() -> Iterator[bytes]:
        yield b"--frame\r\n"
        shown = None
        while True:
            with changed:
                changed.wait_for(lambda: newest is not shown)  # noqa: B023 - called here alone
                shown = newest
            if shown is None:
                return
            draw(shown).save(file := io.BytesIO(), "JPEG", quality=80)
            # a browser shows a picture once the boundary after it is there
            yield b"Content-Type: image/jpeg\r\n\r\n%b\r\n--frame\r\n" % file.getvalue()

    pages: Pages = {
        "/": ("text/html", lambda: _PAGE),
        "/frames": ("multipart/x-mixed-replace; boundary=frame", pictures),
    }
    with PageServer(pages, port, local=True) as server:
        graphic = sys.platform in ("darwin", "win32") or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
        opened = browse and graphic and click.launch(server.url) == 0
        click.echo(f"view: {server.url}{' in your browser' if opened else ''}", err=True)
        yield show
        show(None)
