"""edgekit deploy as a person runs it: one JSON object, and errors that say what to do."""

from __future__ import annotations

import pytest
import tiny
from shipping.shelf import Shelf


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path / "state"))
    shelf = Shelf(tmp_path / "shelf", monkeypatch)
    shelf.stock()
    return shelf


@pytest.fixture
def packed(edgekit, shelf, tmp_path):
    bundle, wheel = tiny.bundle(tmp_path), shelf.edgekit()
    return lambda *given: edgekit("deploy", bundle, "-o", "usb", "--wheel", wheel, *given)


def test_json_is_one_object_with_what_was_packed(packed, tmp_path):
    ran = packed("--profile", "raspberry-pi-4", "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["path"], ran.json["profile"], ran.json["engine"]) == ("usb", "raspberry-pi-4", "litert")
    assert (tmp_path / "usb" / "install.sh").is_file()


def test_the_board_is_the_bundle_s_own_where_none_is_named(packed):
    assert packed("--engine", "tflite-runtime", "--json").json["profile"] == "x86-64"


def test_text_says_what_to_do_next(packed):
    ran = packed("--profile", "raspberry-pi-4-32bit", "--service", "app {bundle}")
    assert "  Debian     brings python3-cryptography, python3-numpy, python3-pil, python3-xxhash" in ran.out
    assert "  service    edgekit-tiny.service" in ran.out
    assert ran.out.splitlines()[-1] == "copy the folder to the board and run there: sh install.sh"


@pytest.mark.parametrize("command", [("deploy", "-o", "usb"), ("deploy", "pi@board")])
def test_an_engine_that_there_is_not_is_a_usage_error(in_process, tmp_path, command):
    name, *rest = command
    ran = in_process(name, tiny.bundle(tmp_path), *rest, "--engine", "tensorflow")
    assert ran.code == 2
    assert "'litert', 'tflite-runtime', 'onnxruntime'" in ran.err


def test_a_push_whose_anchors_cannot_be_written_does_not_begin(edgekit, tmp_path):
    ran = edgekit("deploy", tiny.bundle(tmp_path), "pi@board", "--measure", "nowhere/pi.json", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (1, "output")
    assert ran.json["error"]["do"] == "Name another file with --measure"


@pytest.mark.parametrize("command", [("deploy", "-o", "usb"), ("deploy", "pi@board")])
def test_two_boards_are_a_usage_error(in_process, tmp_path, command):
    name, *rest = command
    ran = in_process(name, tiny.bundle(tmp_path), *rest, "--profile", "raspberry-pi-4", "--profile", "raspberry-pi-5")
    assert ran.code == 2
    assert "a package is for one board, and this names 2" in ran.err
    assert not (tmp_path / "usb").exists()


REFUSED = {
    "no such board": (("--profile", "raspberry-pi-9"), "profile-unknown"),
    "an engine without a wheel there": (("--profile", "raspberry-pi-4-32bit", "--engine", "litert"), "no-wheel"),
    "a board that runs no edgekit": (("--profile", "jetson-nano"), "no-wheel"),
    "no command": (("--profile", "raspberry-pi-4", "--service", "app 'open"), "shipping"),
    "a place that there is not": (("--profile", "raspberry-pi-4", "--service", "app {nope}"), "shipping"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_packed_is_one_error(packed, tmp_path, case):
    given, code = REFUSED[case]
    ran = packed(*given, "--json")
    assert (ran.code, ran.json["error"]["code"]) == (1, code)
    assert not (tmp_path / "usb").exists()


IMPOSSIBLE = {
    "nowhere": ((), "Pass either USER@HOST"),
    "two places": (("pi@board", "-o", "usb"), "Pass either USER@HOST"),
    "a .deb over ssh": (("pi@board", "--deb"), "--deb is for a package"),
    "anchors over ssh": (("pi@board", "--anchors"), "--anchors is for a package"),
    "a port of a folder": (("-o", "usb", "--port", "22"), "leave out --port"),
    "a package that is timed": (("-o", "usb", "--measure", "pi.json"), "leave out --measure"),
    "a prefix of a .deb": (("-o", "usb", "--deb", "--prefix", "/opt"), "leave out --prefix"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_an_impossible_combination_is_a_usage_error(in_process, tmp_path, case):
    given, words = IMPOSSIBLE[case]
    ran = in_process("deploy", tiny.bundle(tmp_path), *given)
    assert ran.code == 2
    assert words in " ".join(ran.err.split())
    assert not (tmp_path / "usb").exists()
