"""Cameras, clips and network streams as sources of frames, each by the library that is named for it."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from types import SimpleNamespace

import clips
import cv2
import numpy as np
import pytest
import tiny

from edgekit_runtime import camera as camera_module
from edgekit_runtime import open_bundle, stream
from edgekit_runtime.camera import _host
from edgekit_runtime.system.errors import CameraError, MissingExtraError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with open_bundle(tiny.bundle(tmp_path_factory.mktemp("bundle"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    pictures = [clips.plain(48, 64, *colour) for colour in ((220, 20, 20), (20, 220, 20), (20, 20, 220))]
    return clips.write(tmp_path_factory.mktemp("clip") / "clip.mp4", [p for p in pictures for _ in range(5)])


def label(result):
    return result.answer.top(1)[0].label


def test_a_clip_is_answered_frame_by_frame_to_its_end(model, clip):
    results = list(stream(clip, model))
    assert [label(result) for result in results] == ["red"] * 5 + ["green"] * 5 + ["blue"] * 5
    assert [result.seconds for result in results] == pytest.approx(np.arange(15) / 20)
    assert {result.frame.format for result in results} == {"rgb"}


def test_a_clip_may_run_as_if_it_were_filmed_now(model, clip):
    *_, last = stream(str(clip), model, keep="newest")
    assert (last.number, label(last), last.stopped) == (15, "blue", 0)


@pytest.mark.parametrize("turn", [90, 180, 270])
def test_a_phones_clip_is_upright(model, tmp_path, turn):
    picture = clips.plain(48, 64, 20, 20, 20)
    picture[:24, :32] = 230
    data = bytearray(clips.write(tmp_path / "clip.mp4", [picture] * 3).read_bytes())
    cosine, sine = {90: (0, 1), 180: (-1, 0), 270: (0, -1)}[turn]
    matrix = np.array([cosine, sine, 0, -sine, cosine, 0, 0, 0, 1 << 14]) << 16  # a phone's, in the track's head
    place = data.index(b"tkhd") + 44
    data[place : place + 36] = matrix.astype(">i4").tobytes()  # a shift gives the machine's own order
    (tmp_path / "turned.mp4").write_bytes(data)
    wanted = np.rot90(picture, -turn // 90)  # clockwise; how OpenCV turns it differs with its version
    shown = next(stream(tmp_path / "turned.mp4", model)).frame.parts[0]
    assert shown.shape == wanted.shape
    assert np.abs(shown.astype(int) - wanted).mean() < 3


@pytest.mark.parametrize("kind", ["nothing", "a folder", "a text", "a cut clip", "sound alone"])
def test_a_file_that_is_no_clip_is_one_error_that_names_it(model, clip, tmp_path, kind):
    file = tmp_path / "x.mp4"
    if kind == "a folder":
        file.mkdir()
    elif kind == "a text":
        file.write_text("no clip")
    elif kind == "a cut clip":
        file.write_bytes(clip.read_bytes()[:900])
    elif kind == "sound alone":
        import av

        with av.open(str(file), "w") as sound:
            track = sound.add_stream("aac", rate=8000)
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            silence.sample_rate = 8000
            sound.mux(track.encode(silence))
            sound.mux(track.encode())
    with pytest.raises(CameraError) as raised:
        list(stream(file, model))
    assert raised.value.where == str(file)


def test_a_camera_that_is_not_there_is_one_error(model):
    with pytest.raises(CameraError) as raised:
        list(stream(987, model))
    assert raised.value.where == "camera 987"
    with pytest.raises(CameraError):
        list(stream("/dev/video987", model))


@pytest.mark.parametrize(
    ("source", "module", "extra"),
    [
        (0, "cv2", "camera"),
        ("clip.mp4", "av", "video"),
        ("rtsp://a:b@c/d", "av", "video"),
        ("picamera2", "picamera2", "picamera2"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(model, monkeypatch, source, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as raised:
        stream(source, model)
    assert raised.value.extra == extra
    assert "b@c" not in str(raised.value)


@pytest.mark.parametrize(
    ("rest", "shown"),
    [
        ("porch.local/main", "porch.local"),
        ("10.0.0.5:8554/main?channel=1", "10.0.0.5:8554"),
        ("anna:s3cret@porch.local:554/main", "porch.local:554"),
        ("anna:s3@cret@porch.local/main", "porch.local"),
        ("anna:s3/cret@porch.local/main", "***"),
        ("porch.local/user=anna&password=s3@cret", "***"),
        ("porch.local?password=s3cret", "porch.local"),
        ("[fe80::1]:554/x", "[fe80::1]:554"),
    ],
)
def test_a_url_is_shown_without_what_may_be_a_password(rest, shown):
    assert _host(rest) == shown


@pytest.fixture
def rtsp():
    with clips.RtspCamera() as camera:
        yield camera


def test_a_network_camera_is_answered_lost_and_found_again(model, rtsp, monkeypatch, caplog):
    monkeypatch.setattr(camera_module, "_LONGEST_PAUSE_S", 0.05)
    with stream(rtsp.url, model, timeout_s=5.0) as frames:
        assert (frames.newest, frames.where) == (True, f"rtsp://127.0.0.1:{rtsp.port}")
        assert [label(next(frames)) for _ in range(5)] == ["red"] * 5
        rtsp.kill()
        rtsp.start()
        while (result := next(frames)).stopped == 0:
            pass
        assert label(result) == "red"
    assert "s3cret" not in caplog.text


def test_a_network_camera_that_falls_silent_is_a_stop_after_its_time_out(model, rtsp, monkeypatch, caplog):
    monkeypatch.setattr(camera_module, "_LONGEST_PAUSE_S", 0.05)
    stopped, handler = threading.Event(), logging.Handler(logging.WARNING)
    handler.emit = lambda record: stopped.set()
    logging.getLogger("edgekit_runtime.camera").addHandler(handler)
    try:
        with stream(rtsp.url, model, timeout_s=1.0) as frames:
            next(frames)
            rtsp.hold()
            assert stopped.wait(60)
            rtsp.go_on()
            while next(frames).stopped == 0:
                pass
    finally:
        logging.getLogger("edgekit_runtime.camera").removeHandler(handler)
    assert "s3cret" not in caplog.text


def test_a_network_camera_that_refuses_the_password_is_an_error_without_it(model, rtsp):
    with pytest.raises(CameraError) as raised:
        list(stream(rtsp.url.replace("s3cret", "gu3ss"), model))
    assert raised.value.where == f"rtsp://127.0.0.1:{rtsp.port}"
    assert "gu3ss" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_network_camera_that_never_answers_is_an_error_after_its_time_out(model):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"rtsp://anna:s3cret@127.0.0.1:{silent.getsockname()[1]}/main"
        with pytest.raises(CameraError) as raised:
            list(stream(url, model, timeout_s=0.5))
    assert "s3cret" not in str(raised.value)


class Picamera2:
    """As the Raspberry Pi's library, which exists there alone: formats count from the last byte."""

    def __init__(self, name="XBGR8888", order=(0, 1, 2, 3)):
        self.name, self.order, self.running = name, order, False

    def start(self):
        self.running = True

    def stop(self):
        self.running = False

    def camera_configuration(self):
        return {"main": {"format": self.name, "size": (8, 8)}}

    def capture_array(self, which):
        assert self.running
        assert which == "main"
        alpha = np.full((8, 8, 1), 255, np.uint8)
        return np.ascontiguousarray(np.concatenate([tiny.RED, alpha], 2)[:, :, list(self.order)])


@pytest.mark.parametrize(
    ("name", "order"),
    [("XBGR8888", (0, 1, 2, 3)), ("XRGB8888", (2, 1, 0, 3)), ("BGR888", (0, 1, 2)), ("RGB888", (2, 1, 0))],
)
def test_the_raspberry_pis_camera_keeps_its_colours(model, name, order):
    camera = Picamera2(name, order)
    with stream(camera, model) as frames:
        assert label(next(frames)) == "red"
        assert frames.newest
    assert not camera.running


def test_the_raspberry_pis_camera_is_made_by_name(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "picamera2", SimpleNamespace(Picamera2=Picamera2))
    with stream("picamera2", model) as frames:
        assert label(next(frames)) == "red"


def test_a_numbered_camera_gives_bgr_until_it_stops(model, clip, monkeypatch):
    """OpenCV's own reader on a clip: this machine has no camera."""
    real, monkey = cv2.VideoCapture, str(clip)
    monkeypatch.setattr(cv2, "VideoCapture", lambda number: real(monkey))
    monkeypatch.setattr(camera_module, "_LONGEST_PAUSE_S", 0.0)
    with stream(0, model, keep="all") as frames:
        results = [next(frames) for _ in range(16)]
    assert [label(result) for result in results[::5]] == ["red", "green", "blue", "red"]
    assert {result.frame.format for result in results} == {"bgr"}
    assert results[-1].stopped == 1
