"""The programs of examples/, each run as a person runs it."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import wave
from pathlib import Path

import clips
import memory
import numpy as np
import pytest
import tiny
from PIL import Image

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return tiny.bundle(tmp_path_factory.mktemp("bundle"))


def start(name, *arguments, cwd, **more):
    command = [sys.executable, "-u", str(EXAMPLES / name), *map(str, arguments)]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def ran(name, *arguments, cwd):
    out, err = start(name, *arguments, cwd=cwd).communicate(timeout=120)
    assert "Traceback" not in err, err
    return out


def pictures(folder: Path, count: int) -> Path:
    folder.mkdir()
    for number in range(count):
        pixels = np.full((24, 32, 3), 20, np.uint8)
        pixels[..., number % 3] = 200
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def test_a_folder_becomes_a_table_and_a_second_run_computes_nothing(bundle, tmp_path):
    photos = pictures(tmp_path / "photos", 6)
    (photos / "broken.png").write_bytes(b"no picture")
    first = ran("batch_folder.py", bundle, photos, "answers.csv", cwd=tmp_path)
    assert re.search(r"\d from the device", first)
    assert "1 without an answer" in first
    again = ran("batch_folder.py", bundle, photos, "answers.csv", cwd=tmp_path)
    assert "6 from the cache" in again
    rows = list(csv.reader((tmp_path / "answers.csv").open()))
    assert len(rows) == 8
    assert len({label for _, label, score in rows[1:] if score}) == 3


def test_a_clip_is_answered_to_its_end(bundle, tmp_path):
    clips.write(tmp_path / "clip.mp4", [clips.plain(48, 64, 10 * number, 20, 20) for number in range(20)])
    said = ran("camera_loop.py", bundle, "clip.mp4", cwd=tmp_path).splitlines()
    assert [line.split()[0] for line in said] == [str(number) for number in range(1, 21)]
    assert {line.split()[-1] for line in said} == {"0"}


def test_a_word_is_heard_where_the_mean_of_the_last_scores_says_so(tmp_path):
    samples = np.round(np.random.default_rng(1).normal(0, 8000, 600)).clip(-32768, 32767).astype("<i2")
    with wave.open(str(tmp_path / "speech.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(300)
        file.writeframes(samples.tobytes())
    with (tmp_path / "speech.raw").open("wb") as raw:
        raw.write(samples.tobytes())
    told = ("--threshold", 0.04, "--mean-of", 3, "--rate", 300)
    said = ran("wake_word.py", memory.bundle(tmp_path, "onnx"), "speech.wav", *told, cwd=tmp_path).splitlines()
    frames, begun, wanted = samples.astype(np.float32).reshape(-1, 3) / 32768, 0, []
    for place in range(len(frames)):
        scores = memory.worked_out(frames[begun : place + 1])[:, -1][-3:]
        if len(scores) == 3 and scores.mean() >= 0.04:
            wanted.append(f"{place * 3 / 300:.2f}")
            begun = place + 1
    assert len(wanted) > 2
    assert [line.split()[2] for line in said] == wanted
    with (tmp_path / "speech.raw").open("rb") as raw:
        heard = start("wake_word.py", memory.bundle(tmp_path, "onnx"), "-", *told, cwd=tmp_path, stdin=raw)
    assert [line.split()[2] for line in heard.communicate(timeout=120)[0].splitlines()] == wanted


def test_a_service_answers_pictures_and_refuses_what_is_none(bundle, tmp_path):
    service = start("web_service.py", bundle, "--port", 0, cwd=tmp_path)
    try:
        url = service.stdout.readline().strip()
        picture = (pictures(tmp_path / "photos", 1) / "0.png").read_bytes()
        with urllib.request.urlopen(urllib.request.Request(url, picture), timeout=60) as answer:
            found = json.load(answer)
        assert found["top"][0]["score"] > 0.3
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(url, b"no picture"), timeout=60)
        assert refused.value.code == 400
        assert json.load(refused.value)["code"] == "input"
    finally:
        service.send_signal(signal.SIGINT)
        out, err = service.communicate(timeout=60)
    assert "Stats(" in out
    assert "Traceback" not in err


def test_what_an_application_did_reaches_the_fleet(bundle, tmp_path):
    from edgekit.fleet.serve import FleetServer, Settings

    photo = pictures(tmp_path / "photos", 1) / "0.png"
    with FleetServer(Settings(None, 0, f"sqlite:///{tmp_path / 'fleet.db'}", "127.0.0.1:0")) as server:
        told = ("--broker", server.broker_url, "--device", "porch-1", "--window-s", 1)
        reporting = start("report_to_broker.py", bundle, photo, *told, cwd=tmp_path)
        counted, until = None, time.monotonic() + 120
        while not counted and time.monotonic() < until:
            time.sleep(0.1)
            counted = {row.id: row.n for row in server.store.fleet()}.get("porch-1")
        reporting.send_signal(signal.SIGINT)
        assert "Traceback" not in reporting.communicate(timeout=60)[1]
    assert counted


def test_the_deployment_names_options_that_are_there():
    import yaml
    from click.testing import CliRunner

    from edgekit.cli.main import cli

    deployment, service = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"][:2] == ["host", "serve"]
    shown = CliRunner().invoke(cli, ["host", "serve", "--help"]).output
    assert all(word in shown for word in container["args"] if word.startswith("--"))
    assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["containerPort"]


def test_every_example_is_on_the_list():
    listed = set(re.findall(r"\]\((\w+\.\w+)\)", (EXAMPLES / "README.md").read_text()))
    assert listed == {file.name for file in EXAMPLES.iterdir() if file.name not in ("README.md", "__pycache__")}
    assert all(os.access(EXAMPLES / name, os.R_OK) for name in listed)
