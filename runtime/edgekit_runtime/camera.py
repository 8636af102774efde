"""`stream`: answers to the frames of a camera, a clip or an iterable, one by one.

    for result in stream("rtsp://porch.local/main", model, budget_ms=100):
        print(result.answer, result.dropped)

Rules:
- a thread reads the source and holds one frame: with "newest" a newer one replaces it, with "all" the thread waits;
- a refused frame (no answer within the budget, a full queue, a failure of an engine that lives on) is a result with an
  `error`; every other error ends the stream and is raised;
- a camera that stops after its first frame is opened again, after 1, 2, 4, ... 30 s, which is logged and counted;
- any end frees camera and thread: the last frame, `close`, Ctrl-C, an exception, or losing the Stream;
- a library is imported when a source needs it. Of a URL messages have only scheme, host and port: no password.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from edgekit_runtime.contract.decode import copy_in
from edgekit_runtime.contract.frame import Frame, FrameFormat
from edgekit_runtime.policy.options import check_number, check_path
from edgekit_runtime.system.errors import (
    BudgetExceeded,
    CameraError,
    EdgekitError,
    EngineError,
    MissingExtraError,
    OptionError,
    QueueFull,
)
from edgekit_runtime.system.threads import begin

if TYPE_CHECKING:
    from edgekit_runtime.serving.model import Model
    from edgekit_runtime.serving.request import Answer
    from edgekit_runtime.serving.session import Session

_LOG = logging.getLogger(__name__)
_LONGEST_PAUSE_S = 30.0
_PICAMERA2: dict[str, FrameFormat] = {"RGB888": "bgr", "BGR888": "rgb", "XRGB8888": "bgra", "XBGR8888": "rgba"}
"""libcamera's name, which counts from the last byte -> the order in memory."""
_Frames = Generator[tuple[Any, "float | None"], None, None]
"""Of each frame: a Frame, or what the application's iterable gave; and its time in a clip, seconds."""


@dataclass(frozen=True, slots=True)
class StreamResult:
    """number: which frame of the source, from 1.
    frame: a Frame with its order of colours, or what the iterable gave.
    answer: None if the frame was refused; `answer.met_budget` says whether it was in time.
    error: why there is no answer.
    seconds: the frame's time in a clip; None if unknown.
    dropped: frames so far that a newer one replaced.
    stopped: times so far that the camera stopped.
    """

    number: int
    frame: Any
    answer: Answer | None
    error: EdgekitError | None
    seconds: float | None
    dropped: int
    stopped: int


def stream(
    source: Any,
    model: Model | Session,
    *,
    keep: Literal["newest", "all"] | None = None,
    budget_ms: float | None = None,
    timeout_s: float = 10.0,
) -> Stream:
    """Run a model on the frames of a camera, clip or iterable; iterate its StreamResults.

    source: a camera's number, "picamera2" or a Picamera2, a URL, a clip's path; an iterable of inputs of `predict`
    (uint8 [H, W, 3] arrays of RGB, or a `Frame`); or a function that returns one, which counts as a camera. OpenCV
    reads numbered cameras, PyAV URLs and clips.
    keep: "newest" drops a frame when a newer one arrives, "all" answers every frame. None: "newest" for cameras and
    URLs, else "all". A clip with "newest" plays at its own speed.
    budget_ms: for each frame, as for `predict`.
    timeout_s: longest silence of a URL.
    A thread reads the source from now on. Raises MissingExtraError, OptionError; while iterating CameraError,
    what the iterable raises, and what `predict` raises except BudgetExceeded and QueueFull.
    """
    check_number("timeout_s", timeout_s)
    if keep not in (None, "newest", "all"):
        raise OptionError("keep", f"must be 'newest' or 'all', not {keep!r:.40}", "stream")
    if not callable(getattr(model, "predict", None)):
        raise OptionError("model", f"must be what open_bundle returns, not {model!r:.40}", "stream")
    found = _find_source(source, timeout_s)
    return Stream(found, model, found.live if keep is None else keep == "newest", budget_ms)


class Stream(Iterator[StreamResult]):
    """Made by `stream`: an iterator of StreamResult. Any thread may close it.

    where: the source, for messages.
    newest: whether older frames are dropped.
    """

    def __init__(self, source: _Source, model: Model | Session, newest: bool, budget_ms: float | None) -> None:
        self.where, self.newest = source.where, newest
        self._model, self._budget_ms = model, budget_ms
        self._reader = _FrameReader(source, newest, model.count_dropped)
        weakref.finalize(self, self._reader.close)  # before the interpreter ends, too
        begin(self._reader.thread)

    def __next__(self) -> StreamResult:
        reader, answer, error = self._reader, None, None
        try:
            number, frame, seconds = reader.take()
            try:
                answer = self._model.predict(frame, budget_ms=self._budget_ms)
            except (BudgetExceeded, QueueFull, EngineError) as refusal:
                health = getattr(self._model, "health", None)  # a Session has none: a failure costs its state
                if isinstance(refusal, EngineError) and (health is None or not health().ok):
                    raise
                error = refusal
            return StreamResult(number, frame, answer, error, seconds, reader.dropped, reader.stopped)
        except BaseException:
            self.close()
            raise

    def close(self, timeout_s: float = 5.0) -> None:
        """Free camera and thread; a silent source is left behind until its time-out."""
        self._reader.close(timeout_s)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class _Source:
    """frames: opens it; closing the generator frees it.
    live: a camera, which is opened again when it stops; others end.
    own: the application's iterable, which may be empty, or overwrite a frame that it gave.
    """

    where: str
    frames: Callable[[], _Frames]
    live: bool = True
    own: bool = False


class _FrameReader:
    """Reads a source in a thread and holds one frame. lost: called for each that is dropped."""

    def __init__(self, source: _Source, newest: bool, lost: Callable[[int], object]) -> None:
        self._source, self._newest, self._lost = source, newest, lost
        self._changed, self._ended = threading.Condition(), threading.Event()
        self._held: tuple[int, Any, float | None] | None = None
        self._error: BaseException = StopIteration()
        self.seen = self.dropped = self.stopped = 0
        self.thread = threading.Thread(target=self._read, name="edgekit-camera", daemon=True)

    def take(self) -> tuple[int, Any, float | None]:
        """The held frame, waiting for it. Raises what ended the source, or StopIteration."""
        with self._changed:
            self._changed.wait_for(lambda: self._held is not None or self._ended.is_set())
            if self._held is None:
                raise self._error
            taken, self._held = self._held, None
            self._changed.notify_all()
            return taken

    def close(self, timeout_s: float = 5.0) -> None:
        self._end()
        self._held = None
        if self.thread.ident is not None and self.thread is not threading.current_thread():
            self.thread.join(timeout_s)

    def _end(self) -> None:
        with self._changed:
            self._ended.set()
            self._changed.notify_all()

    def _read(self) -> None:
        try:
            with closing(self._frames()) as frames:
                for frame in frames:
                    with self._changed:
                        if not self._newest:
                            self._changed.wait_for(lambda: self._held is None or self._ended.is_set())
                        if self._ended.is_set():
                            return
                        if self._held is not None:
                            self.dropped += 1
                            self._lost(1)
                        self.seen += 1
                        self._held = self.seen, *frame
                        self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - it belongs to the one who iterates
            self._error = error
        finally:
            self._end()

    def _frames(self) -> _Frames:
        """The source's frames; a camera is opened again and again."""
        source, tries, began = self._source, 0, None
        while not self._ended.is_set():
            why: object = "it ended"
            try:
                with closing(source.frames()) as frames:
                    for frame, seconds in frames:
                        if tries:
                            _LOG.warning("%s is back", source.where)
                            tries = 0
                        if self._newest and not source.live and seconds is not None:  # as fast as it was filmed
                            began = monotonic() - seconds if began is None else began
                            self._ended.wait(max(0.0, began + seconds - monotonic()))
                        yield copy_in(frame) if source.own else frame, seconds
            except Exception as error:
                if not source.live or not self.seen:
                    raise
                why = error.what if isinstance(error, EdgekitError) else repr(error)
            if not self.seen and (source.live or not source.own):
                raise CameraError("gave no frame", where=source.where, do="Check that it shows a picture elsewhere")
            if not source.live:
                return
            pause_s = min(_LONGEST_PAUSE_S, 2.0**tries)
            self.stopped += not tries
            level = logging.INFO if tries else logging.WARNING
            _LOG.log(level, "%s stopped: %s; it is opened again in %g s", source.where, why, pause_s)
            tries += 1
            self._ended.wait(pause_s)


def _find_source(source: Any, timeout_s: float) -> _Source:
    if hasattr(source, "capture_array"):
        return _Source("picamera2", partial(_picamera2, lambda: source))
    if isinstance(source, (str, os.PathLike, int, np.integer)) and not isinstance(source, bool):
        name = str(source)
        if name == "picamera2":
            return _Source(name, partial(_picamera2, _imported(name, name, name).Picamera2))
        if number := re.fullmatch(r"(?:/dev/video)?(\d{1,4})", name):
            where = f"camera {number[1]}"
            return _Source(where, partial(_opencv, _imported("cv2", "camera", where), where, int(number[1])))
        check_path("source", source, "stream")
        scheme, separator, rest = name.partition("://")
        where = f"{scheme}://{_host(rest)}" if separator else name
        frames = partial(_pyav, _imported("av", "video", where), where, name, timeout_s)
        return _Source(where, frames, live=separator != "" and scheme != "file")
    if isinstance(source, Iterable):
        return _Source("the source", lambda: ((frame, None) for frame in source), live=False, own=True)
    if callable(source):
        return _Source("the source", lambda: ((frame, None) for frame in source()), own=True)
    must = "a camera's number, a URL, a path, a Picamera2, frames, or a function that returns frames"
    raise OptionError("source", f"must be {must}, not {source!r:.40}", "stream")


def _host(rest: str) -> str:
    """Host and port of a URL without its scheme; "***" if a password may hide them."""
    place = re.split(r"[/?#]", rest, maxsplit=1)[0]
    return place.rpartition("@")[2] if "@" in place or "@" not in rest else "***"


def _imported(module: str, extra: str, where: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(extra, "reading frames", where=where) from error


def _unreadable(why: str, where: str) -> CameraError:
    return CameraError(why, where=where, do="Check its name, address and password, and that no other program uses it")


def _pyav(av: Any, where: str, name: str, timeout_s: float) -> _Frames:
    since, rtsp = monotonic(), name.startswith("rtsp")
    try:  # over UDP, FFmpeg's first choice for RTSP, a busy network costs parts of pictures
        with av.open(name, options={"rtsp_flags": "prefer_tcp"} if rtsp else {}, timeout=timeout_s) as container:
            if not container.streams.video:
                raise _unreadable("has no pictures", where)
            for picture in container.decode(container.streams.video[0]):
                turns = round(getattr(picture, "rotation", 0) / 90) % 4  # as a phone was held
                yield Frame(np.rot90(picture.to_ndarray(format="rgb24"), turns), "rgb"), picture.time
                since = monotonic()
    except av.error.FFmpegError as error:  # its own text has the whole URL
        late = monotonic() - since >= timeout_s
        why = f"gave nothing for {timeout_s:g} s" if late else f"cannot be read: {error.strerror}"
        raise _unreadable(why, where) from None


def _opencv(cv2: Any, where: str, number: int) -> _Frames:
    capture = cv2.VideoCapture(number)
    try:
        if not capture.isOpened():
            raise _unreadable("cannot be opened", where)
        while (read := capture.read())[0]:
            yield Frame(read[1], "bgr"), None
    finally:
        capture.release()


def _picamera2(make: Callable[[], Any]) -> _Frames:
    camera = make()
    camera.start()
    try:
        main = camera.camera_configuration()["main"]
        order = _PICAMERA2.get(main["format"], main["format"])
        while True:
            yield Frame(camera.capture_array("main"), order, *main["size"]), None
    finally:
        camera.stop()
