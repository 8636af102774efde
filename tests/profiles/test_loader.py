"""A profile is data that is checked to the last key; adding a board is adding a file."""

from __future__ import annotations

import importlib.resources
import tomllib
from pathlib import Path

import pytest

from edgekit_profiles import ProfileError, UnknownProfileError, load, names, parse
from edgekit_profiles.catalogue import _spelt

PI4 = (importlib.resources.files("edgekit_profiles") / "boards" / "raspberry-pi-4.toml").read_text(encoding="utf-8")


def test_every_profile_loads_under_its_own_name():
    assert {"host-cpu", "jetson-nano", "raspberry-pi-4", "raspberry-pi-5", "x86-64"} <= set(names())
    for name in names():
        assert load(name).name == name


def test_a_profile_carries_what_its_file_says():
    profile = load("raspberry-pi-4")
    assert (profile.core.type, profile.core.count, profile.core.clock_ghz) == ("cortex-a72", 4, 1.5)
    assert (profile.os.python, profile.os.glibc, profile.arch) == ("3.11", "2.36", "aarch64")
    assert profile.anchors[0].ms == {"float32": 77.0, "int8": 24.0}
    assert load("raspberry-pi-5").core.simd == ("neon", "fp16", "dotprod")


@pytest.mark.parametrize("name", ["rasberry_pi4", "my-pi-4", "raspberry-pi-4c"])
def test_an_unknown_name_gives_the_near_misses_and_the_list(name):
    with pytest.raises(UnknownProfileError) as caught:
        load(name)
    assert name in caught.value.what
    assert caught.value.do.startswith("Did you mean raspberry-pi-4")
    assert caught.value.do.endswith("`edgekit profiles list` shows them all")


@pytest.mark.parametrize(
    ("called", "name"),
    [
        *((called, "raspberry-pi-4") for called in ("rpi4", "pi4", "Pi-4", "raspi4", "rpi4b", "Raspberry Pi 4B")),
        *((called, "raspberry-pi-5") for called in ("pi5", "rpi-5", "raspberry_pi_5")),
        ("rpi4-32bit", "raspberry-pi-4-32bit"),
        ("rpi4@1.8ghz", "raspberry-pi-4@1.8ghz"),
        ("rpi3b+", "raspberry-pi-3b-plus"),
        ("pi-zero-2w", "raspberry-pi-zero-2-w"),
        ("orin-nano", "jetson-orin-nano"),
        ("jetson_orin_nano", "jetson-orin-nano"),
        ("Rock 5B", "rock-5b"),
    ],
)
def test_a_board_is_found_by_what_people_call_it(called, name):
    assert load(called).name == name


def test_no_two_profiles_are_one_but_for_spelling():
    assert len({_spelt(name) for name in names()}) == len(names())


def test_a_short_name_of_several_boards_gives_them():
    with pytest.raises(UnknownProfileError, match=r"Did you mean raspberry-pi-3b or raspberry-pi-3b-plus\?"):
        load("rpi3")


def test_boards_come_before_their_other_images_among_the_near_misses():
    with pytest.raises(UnknownProfileError, match=r"Did you mean raspberry-pi-zero-2-w or raspberry-pi-zero-w\?"):
        load("zero")


def test_a_name_like_no_other_gives_the_list_alone():
    with pytest.raises(UnknownProfileError) as caught:
        load("toaster")
    assert caught.value.do == "`edgekit profiles list` shows them all"


def test_a_name_never_leaves_the_folder_of_boards():
    with pytest.raises(UnknownProfileError):
        load("../wheels")


def test_a_users_own_file_is_loaded_by_path(tmp_path: Path):
    own = tmp_path / "gateway.toml"
    own.write_text(PI4.replace('name = "raspberry-pi-4"', 'name = "gateway"', 1), encoding="utf-8")
    assert load(str(own)).core == load("raspberry-pi-4").core


def test_only_the_generic_profiles_that_come_along_are_measured_on_the_machine_that_builds(tmp_path: Path):
    assert {name for name in names() if load(name).measured_here} == {"host-cpu", "x86-64"}
    copied = (importlib.resources.files("edgekit_profiles") / "boards" / "x86-64.toml").read_text(encoding="utf-8")
    own = tmp_path / "atom.toml"
    own.write_text(copied.replace('name = "x86-64"', 'name = "atom"', 1), encoding="utf-8")
    with pytest.raises(ProfileError, match=r"atom\.toml: 'measured_here' is for the profiles that come with edgekit"):
        load(str(own))


def test_a_missing_file_says_so():
    with pytest.raises(ProfileError, match=r"nowhere/none\.toml: there is no such file"):
        load("nowhere/none.toml")


def test_a_folder_or_binary_file_is_a_profile_error(tmp_path: Path):
    (tmp_path / "a.toml").mkdir()
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
    for name in ("a.toml", "b.toml"):
        with pytest.raises(ProfileError, match="cannot be read"):
            load(str(tmp_path / name))


BROKEN = {
    "not TOML": ("[core]", "[core", "is not TOML"),
    "another name": ('name = "raspberry-pi-4"', 'name = "pi"', "'name' is 'pi', and the file is called 'board.toml'"),
    "unknown key at the top": ("threads = 4", "threads = 4\nthread = 4",
        "'thread' is not a key of the format. Did you mean"),
    "unknown key in a table": ("count = 4", "count = 4\ncuont = 4", "'core.cuont' is not a key of the format"),
    "unknown key in an anchor": ("int8_ms = 24", "int8_ms = 24\nint4_ms = 9", "'anchors[0].int4_ms' is not a key"),
    "missing key": ("clock_ghz = 1.5\nsimd", "simd", "'core.clock_ghz' is missing"),
    "missing table": ("[thermal]", "[thermic]", "'thermic' is not a key of the format"),
    "text for a number": ("clock_ghz = 1.5\nsimd", 'clock_ghz = "1.5"\nsimd',
        "'core.clock_ghz' is a string, not a number"),
    "boolean for a number": ("count = 4", "count = true", "'core.count' is a boolean, not a whole number"),
    "text for a truth value": ("threads = 4", 'threads = 4\nmeasured_here = "yes"',
        "'measured_here' is a string, not true or false"),
    "fraction for a count": ("count = 4", "count = 4.5", "'core.count' is a number, not a whole number"),
    "number for text": ('soc = "Broadcom BCM2711"', "soc = 2711", "'soc' is a whole number, not a string"),
    "list of numbers": ('simd = ["neon"]', "simd = [1]", "'core.simd' is not a list of strings"),
    "nothing": ("ram_mb = 1024", "ram_mb = 0", "'memory.ram_mb' is 0, and must be above zero"),
    "not finite": ("bandwidth_gbps = 12.8", "bandwidth_gbps = inf", "must be above zero"),
    "more digits than a float has": ("bandwidth_gbps = 12.8", "bandwidth_gbps = " + "9" * 400, "is beyond any board"),
    "more digits than are read": ("bandwidth_gbps = 12.8", "bandwidth_gbps = " + "9" * 5000, "is not TOML"),
    "not a number": ("bandwidth_gbps = 12.8", "bandwidth_gbps = nan", "must be above zero"),
    "another word for the machine": ('arch = "aarch64"', 'arch = "arm64"',
        "'arch' is 'arm64', not one of aarch64"),
    "more threads than cores": ("threads = 4", "threads = 8", "'threads' is 8, more than the 4 cores"),
    "a python that is no version": ('python = "3.11"', 'python = "three"', "'os.python' is 'three', not a version"),
    "an anchor without a time": ("float32_ms = 77\nint8_ms = 24\n", "", "'anchors[0].float32_ms' is missing"),
    "an anchor of another grade": ('grade = "published"', 'grade = "guess"',
        "'anchors[0].grade' is 'guess', not one of"),
    "a figure without a source": ('"memory.copy_gbps" =', '#"memory.copy_gbps" =', "'memory.copy_gbps' has no source"),
    "a source without a figure": ("[sources]", '[sources]\n"core.cache" = "x"',
        "'sources.core.cache' is the source of no figure"),
    "a pin by the distribution's name": ("[os]", '[pins]\nai-edge-litert = "2.1.1"\n[os]',
        "'pins.ai-edge-litert' is not an engine of edgekit. Did you mean 'litert'?"),
    "a pin with an underscore": ("[os]", '[pins]\ntflite_runtime = "2.14.0"\n[os]', "Did you mean 'tflite-runtime'?"),
    "a pin of something else": ("[os]", '[pins]\nnumpy = "1.26.4"\n[os]',
        "Engines: litert, tflite-runtime, onnxruntime"),
    "a pin that is a range": ("[os]", '[pins]\ntflite-runtime = ">=2.14"\n[os]',
        "'pins.tflite-runtime' is '>=2.14', not an exact version. Name one of 2.14.0"),
    "a pin that is half a version": ("[os]", '[pins]\ntflite-runtime = "2.14"\n[os]',
        "is '2.14', of which edgekit knows no wheel. Name one of 2.14.0"),
    "a pin that is a number": ("[os]", "[pins]\ntflite-runtime = 2.14\n[os]",
        "'pins.tflite-runtime' is a number, not a string"),
    "a source that is no text": ("[sources]", '[sources]\n"core.count" = 4', "'sources.core.count' is a whole number"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_an_error_that_names_file_and_key(old: str, new: str, message: str):
    text = PI4 if old == 'name = "raspberry-pi-4"' else PI4.replace('name = "raspberry-pi-4"', 'name = "board"', 1)
    assert old in text
    with pytest.raises(ProfileError) as caught:
        parse(text.replace(old, new, 1), "boards/board.toml", "board")
    assert str(caught.value).startswith("boards/board.toml: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", names())
def test_no_figure_of_a_shipped_profile_is_without_a_source(name: str):
    profile = load(name)
    assert profile.sources
    assert all(anchor.source for anchor in profile.anchors)


def test_the_data_files_are_valid_toml():
    for file in ("wheels.toml", "roofline.toml", "engines.toml"):
        tomllib.loads((importlib.resources.files("edgekit_profiles") / file).read_text(encoding="utf-8"))


def test_keys_and_choices_are_listed_once():
    from edgekit_profiles.schema import Table

    table = Table({"xx": 1, "yy": 2, "scores": "foo"}, "net.contract.toml")
    table.text("scores", "", ("probabilities", "logits"))
    table.done(("task",))
    with pytest.raises(ProfileError) as caught:
        table.refuse()
    assert (str(caught.value).count("Known: "), str(caught.value).count("logits")) == (1, 1)
