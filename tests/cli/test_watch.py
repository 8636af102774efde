"""edgekit run --watch: files answered as they come, one JSON object a line, until somebody says that it is enough."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import tiny
from PIL import Image

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")

NOTE = "note: its signature was not checked: no trusted keys are configured on this machine\n"


class Watching:
    """A running `edgekit run`, its lines as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> str:
        return self.process.stdout.readline()

    def answer(self) -> dict:
        return json.loads(self.line())

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@contextmanager
def watching(folder, *arguments):
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", "run", *map(str, arguments)]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    guard = threading.Timer(60, process.kill)
    guard.start()
    try:
        while (told := process.stderr.readline()) and not told.startswith("watching"):
            pass
        assert told == "watching inbox; Ctrl-C stops it\n"
        yield Watching(process)
    finally:
        guard.cancel()
        process.kill()
        process.communicate()


@pytest.fixture
def bundle(tmp_path):
    (tmp_path / "inbox").mkdir()
    Image.fromarray(tiny.RED).save(tmp_path / "red.png")
    return tiny.bundle(tmp_path)


def test_each_new_file_is_answered_as_it_comes(tmp_path, bundle):
    np.save(tmp_path / "inbox" / "before.npy", tiny.GREEN)
    with watching(tmp_path, bundle, "red.png", "--watch", "inbox", "--json", "--budget-ms", "60000") as run:
        assert run.answer()["top"][0]["label"] == "red"
        np.save(tmp_path / "inbox" / "blue.npy", tiny.BLUE)
        first = run.answer()
        assert (first["input"], first["top"][0]["label"], first["met_budget"]) == ("inbox/blue.npy", "blue", True)
        (tmp_path / "inbox" / "bad.png").write_bytes(b"no picture")
        assert run.answer()["error"]["code"] == "input"
        (tmp_path / "inbox" / "note.txt").write_text("not looked at")
        (tmp_path / "red.png").rename(tmp_path / "inbox" / "red.png")
        assert run.answer()["top"][0]["label"] == "red"
        assert run.end() == 0
        assert run.process.stdout.read() == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_person_reads_lines_and_either_signal_ends_it_without_a_word(tmp_path, bundle, number):
    with watching(tmp_path, bundle, "--watch", "inbox", "--top", "1") as run:
        np.save(tmp_path / "inbox" / "blue.npy", tiny.BLUE)
        assert run.line().startswith("inbox/blue.npy   ")
        assert run.line().split()[-1] == "blue"
        assert run.end(number) == 0
        assert run.process.stderr.read() == NOTE


def test_a_folder_that_goes_away_ends_it_with_one_sentence(tmp_path, bundle):
    with watching(tmp_path, bundle, "--watch", "inbox") as run:
        (tmp_path / "inbox").rmdir()
        assert run.process.wait(30) == 1
        assert run.process.stderr.read().startswith(
            "error: inbox: cannot be watched: No such file or directory. Pass a"
        )


def test_a_folder_that_is_not_there_costs_no_opening(edgekit, bundle):
    ran = edgekit("run", bundle, "--watch", "nowhere", "--json")
    assert ran.code == 1
    assert ran.json["error"]["code"] == "inputs"


def test_a_folder_among_the_inputs_stands_for_its_files(edgekit, bundle, tmp_path):
    np.save(tmp_path / "inbox" / "blue.npy", tiny.BLUE)
    ran = edgekit("run", bundle, "inbox", "red.png", "--json", "--use", "mobile")
    assert [a["input"] for a in ran.json["answers"]] == ["inbox/blue.npy", "red.png"]
    assert all(a["met_budget"] is not None for a in ran.json["answers"] if "error" not in a)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "Name INPUTS"),
        (("red.png", "--use", "voice", "--budget-ms", "3"), "either --use or --budget-ms"),
    ],
)
def test_contradictions_are_a_usage_error(edgekit, bundle, arguments, told):
    ran = edgekit("run", bundle, *arguments)
    assert ran.code == 2
    assert told in ran.err
