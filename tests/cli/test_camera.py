"""edgekit run --camera: frames of a clip or a network camera answered, shown and counted."""

from __future__ import annotations

import io
import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import clips
import numpy as np
import pytest
import spots
import tiny
from PIL import Image

RED, GREEN = (220, 20, 20), (20, 220, 20)
LONG = 60


@pytest.fixture
def clip(tmp_path):
    return clips.write(
        tmp_path / "clip.mp4", [clips.plain(48, 64, *colour) for colour in (RED, GREEN) for _ in range(4)]
    )


@pytest.fixture
def bundle(tmp_path):
    return tiny.bundle(tmp_path)


def started(folder, *arguments):
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", "run", *map(str, arguments)]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    threading.Timer(LONG, process.kill).start()
    return process


def test_every_frame_of_a_clip_is_answered_and_counted(edgekit, bundle, clip):
    ran = edgekit("run", bundle, "--camera", clip)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert [line.split()[-1] for line in lines[1:16:2]] == ["red"] * 4 + ["green"] * 4
    assert lines[-1].startswith("8 seen, 8 answered, 0 refused, 0 dropped, 0 stopped; p50 ")


def test_a_program_gets_an_object_a_frame_and_the_summary_last(edgekit, bundle, clip):
    ran = edgekit("run", bundle, "--camera", clip, "--json", "--top", "2")
    *frames, last = map(json.loads, ran.out.splitlines())
    assert [frame["input"] for frame in frames] == [f"frame {at}" for at in range(1, 9)]
    assert [len(frame["top"]) for frame in frames] == [2] * 8
    summary = last["summary"]
    assert summary["seen"] == summary["answered"] == sum(summary["answers"].values()) == 8
    assert summary["p50_ms"] <= summary["p99_ms"]


def test_a_budget_that_is_never_met_exits_with_1(edgekit, bundle, clip):
    ran = edgekit("run", bundle, "--camera", clip, "--budget-ms", "0.000001", "--json")
    assert ran.code == 1
    *frames, last = map(json.loads, ran.out.splitlines())
    assert {frame["error"]["code"] for frame in frames} == {"budget"}
    assert (last["summary"]["answered"], last["summary"]["refused"]) == (0, 8)


def test_a_classifiers_best_class_is_written_on_the_clip(edgekit, bundle, clip, tmp_path):
    ran = edgekit("run", bundle, "--camera", clip, "--view", "drawn.mp4")
    assert ran.code == 0
    assert len(ran.out.splitlines()) == 1  # the summary: the answers are in the clip
    drawn = clips.read(tmp_path / "drawn.mp4")
    assert [seconds for seconds, _ in drawn] == pytest.approx(np.arange(8) / 20, abs=2e-3)
    for _, picture in drawn:
        assert picture[:14, :30].std() > 20  # white on a colour
        assert picture[30:].std(axis=(0, 1)).max() < 12


def test_a_detectors_boxes_are_drawn_where_the_answer_has_them(edgekit, tmp_path):
    picture = np.repeat(spots.spot(320, 160, 80, 60, 80)[:, :, None], 3, axis=2)
    clips.write(tmp_path / "spots.mp4", [picture] * 3)
    ran = edgekit("run", spots.bundle(tmp_path), "--camera", "spots.mp4", "--view", "drawn.mp4", "--json")
    box = json.loads(ran.out.splitlines()[0])["boxes"][0]
    (_, drawn), *_ = clips.read(tmp_path / "drawn.mp4")
    red = drawn[round((box["top"] + box["bottom"]) / 2)].astype(int) @ (1, -1, 0)
    for edge in (round(box["left"]), round(box["right"])):
        assert red[edge - 2 : edge + 3].max() > 60
        red[edge - 4 : edge + 5] = 0
    assert red.max() < 20


@pytest.fixture
def rtsp():
    with clips.RtspCamera() as camera:
        yield camera


def test_a_network_camera_is_shown_on_a_page_until_ctrl_c(bundle, rtsp, tmp_path):
    running = started(tmp_path, bundle, "--camera", rtsp.url, "--view", ":0")
    url = running.stderr.readline().split()[1]
    with urllib.request.urlopen(url, timeout=LONG) as page:
        assert b"<img src=/frames" in page.read()
    with urllib.request.urlopen(f"{url}frames", timeout=LONG) as frames:
        assert frames.headers.get_content_type() == "multipart/x-mixed-replace"
        assert frames.readline() == b"--frame\r\n"
        assert frames.readline() == b"Content-Type: image/jpeg\r\n"
        data = b"".join(iter(frames.readline, b"--frame\r\n"))
    picture = np.asarray(Image.open(io.BytesIO(data.strip())))
    assert picture.shape == (48, 64, 3)
    assert picture[40, 32, 0] > 180 > picture[40, 32, 1]
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(url, headers={"Host": "rebound.example:80"}), timeout=LONG)
    assert refused.value.code == 421
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=LONG)
    assert running.returncode == 0
    assert "answered, 0 refused" in out
    assert "s3cret" not in out + err
    assert "Traceback" not in err


def test_either_signal_ends_a_camera_with_its_summary(bundle, rtsp, tmp_path):
    running = started(tmp_path, bundle, "--camera", rtsp.url, "--json")
    assert json.loads(running.stdout.readline())["top"][0]["label"] == "red"
    running.send_signal(signal.SIGTERM)
    *_, last = running.communicate(timeout=LONG)[0].splitlines()
    assert json.loads(last)["summary"]["answered"] > 0
    assert running.returncode == 0


def test_a_camera_that_is_not_there_is_one_line(edgekit, bundle):
    ran = edgekit("run", bundle, "--camera", "nowhere.mp4", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (1, "camera")


def test_a_page_on_a_taken_port_and_a_clip_without_a_format_cost_no_opening(edgekit, clip):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = edgekit("run", "nowhere.ekb", "--camera", clip, "--view", f":{taken.getsockname()[1]}", "--json")
    assert ran.json["error"]["code"] == "metrics"
    assert (
        edgekit("run", "nowhere.ekb", "--camera", clip, "--view", "x.txt", "--json").json["error"]["code"] == "output"
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("red.png", "--camera", "0"), "leave out INPUTS"),
        (("--camera", "0", "--watch", "inbox"), "leave out INPUTS"),
        (("--camera", "0", "--fill-cache", "a.db"), "leave out INPUTS"),
        (("red.png", "--view"), "--view goes with --camera"),
    ],
)
def test_contradictions_are_a_usage_error(in_process, arguments, told):
    ran = in_process("run", "net.ekb", *arguments)
    assert ran.code == 2
    assert told in ran.err
