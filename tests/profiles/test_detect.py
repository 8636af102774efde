"""A board is known by what it says of itself, and every difference from its profile is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import captured
import pytest

from edgekit_profiles import Catalogue, open_catalogue
from edgekit_profiles.detect import DetectedBoard, detect, starting_name
from edgekit_profiles.facts import BoardFacts, Cluster, read_facts
from edgekit_profiles.reading import read


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return open_catalogue(environ={}, plugins=())


def found(name: str, catalogue: Catalogue, root: Path) -> DetectedBoard:
    return detect(read_facts(captured.lay_out(name, root)), catalogue)


# capture -> the profile, how sure, and what differs
EXPECTED = {
    "beaglebone-ai-64": ("beaglebone-ai-64-bullseye", "certain", set()),
    "coral-dev-board": ("coral-dev-board", "certain", set()),
    "intel-n100": ("x86-64", "likely", {"memory"}),
    "jetson-nano": ("jetson-nano", "certain", set()),
    "jetson-nano-5w": ("jetson-nano@5w", "certain", set()),
    "jetson-orin-nano": ("jetson-orin-nano", "certain", set()),
    "khadas-vim3": ("cortex-a72", "guess", {"memory", "cores", "clock"}),
    "nanopc-t4": ("rk3399", "likely", {"memory"}),
    "orange-pi-5": ("orange-pi-5", "certain", {"memory", "clock"}),
    "orange-pi-5-plus": ("rock-5b-trixie", "likely", {"memory"}),
    "radxa-zero-3w": ("rk3566", "likely", {"clock"}),
    "raspberry-pi-2": ("raspberry-pi-2", "certain", set()),
    "raspberry-pi-3b": ("raspberry-pi-3b", "certain", set()),
    "raspberry-pi-3b-plus": ("raspberry-pi-3b-plus-trixie-32bit", "certain", set()),
    "raspberry-pi-4": ("raspberry-pi-4", "certain", {"memory"}),
    "raspberry-pi-4-32bit": ("raspberry-pi-4-32bit@1.8ghz", "certain", {"memory"}),
    "raspberry-pi-5": ("raspberry-pi-5-trixie", "certain", {"memory"}),
    "raspberry-pi-cm4": ("raspberry-pi-4", "certain", set()),
    "raspberry-pi-zero-2-w": ("raspberry-pi-zero-2-w", "certain", set()),
    "raspberry-pi-zero-w": ("raspberry-pi-zero-w", "certain", set()),
    "rock-5b": ("rock-5b", "certain", set()),
    "visionfive-2": (None, "unknown", set()),
}


@pytest.mark.parametrize("name", captured.names())
def test_a_capture_is_known_for_what_it_is(name: str, catalogue: Catalogue, tmp_path: Path):
    got = found(name, catalogue, tmp_path)
    answer = (got.profile.name if got.profile else None, got.sure, {item.what for item in got.differences})
    assert answer == EXPECTED[name], got.why


def test_every_board_that_can_say_who_it_is_has_a_capture(catalogue: Catalogue):
    marked = {board for board in catalogue.boards() if catalogue.of(board)[0].marks.compatible}
    assert marked <= {str(profile).split("@")[0] for profile, _, _ in EXPECTED.values()} | {
        profile.board for name, _, _ in EXPECTED.values() if name and (profile := catalogue.load(name))
    }


@pytest.mark.parametrize("name", sorted(set(captured.names()) - {"visionfive-2"}))
def test_the_profile_to_begin_with_is_a_profile(name: str, catalogue: Catalogue, tmp_path: Path):
    got = found(name, catalogue, tmp_path)
    assert read(got.toml, "my.toml", starting_name(got.facts))


def test_a_profile_begun_on_a_board_is_found_on_that_board_again(tmp_path: Path):
    empty = open_catalogue(environ={}, plugins=())
    first = found("khadas-vim3", empty, tmp_path / "board")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "khadas-vim3.toml").write_text(first.toml, encoding="utf-8")
    again = detect(first.facts, open_catalogue([tmp_path / "mine"], environ={}, plugins=()))
    assert again.profile is not None
    assert (again.profile.name, again.sure, [item.what for item in again.differences]) == (
        "khadas-vim3", "certain", ["memory"])  # fmt: skip


def test_the_user_land_decides_and_not_the_kernel(catalogue: Catalogue, tmp_path: Path):
    """A 32-bit Raspberry Pi OS runs on a 64-bit kernel, whose processor has 64-bit features."""
    facts = read_facts(captured.lay_out("raspberry-pi-4-32bit", tmp_path))
    assert facts.machine == "armv7l"
    assert facts.simd == ("neon",)
    assert "asimd" in (tmp_path / "proc/cpuinfo").read_text()


def test_a_machine_that_no_engine_is_built_for_gets_no_profile_to_begin_with(catalogue: Catalogue, tmp_path: Path):
    got = found("visionfive-2", catalogue, tmp_path)
    assert (got.toml, got.why) == (
        "",
        "no profile matches 'StarFive VisionFive 2 v1.3B', and no engine has a wheel for riscv64",
    )


def test_the_fast_cores_come_first_and_cores_that_are_off_do_not_count(tmp_path: Path):
    rock = read_facts(captured.lay_out("rock-5b", tmp_path / "rock"))
    assert [(c.type, c.count, c.clock_ghz) for c in rock.clusters] == [("cortex-a76", 4, 2.4), ("cortex-a55", 4, 1.8)]
    root = captured.lay_out("rock-5b", tmp_path / "half")
    (root / "sys/devices/system/cpu/online").write_text("0-3,6\n")
    assert [(c.type, c.count) for c in read_facts(root).clusters] == [("cortex-a76", 1), ("cortex-a55", 4)]


def test_less_memory_than_the_profile_counts_on_is_a_warning(catalogue: Catalogue, tmp_path: Path):
    facts = replace(read_facts(captured.lay_out("raspberry-pi-3b", tmp_path)), ram_mb=430)
    (memory,) = detect(facts, catalogue).differences
    assert (memory.here, memory.profile) == ("430 MB", "1,024 MB")
    assert "may not fit here" in memory.means


def test_another_python_says_what_installs_then(catalogue: Catalogue, tmp_path: Path):
    facts = read_facts(captured.lay_out("jetson-orin-nano", tmp_path))
    (python,) = detect(replace(facts, python="3.9.2"), catalogue).differences
    assert python.means.startswith(
        "no engine installs here: Python 3.9 is supported by no current wheel of ai-edge-litert"
    )
    (newer,) = detect(replace(facts, python="3.12.3"), catalogue).differences
    assert newer.means == "engines that install here: litert, onnxruntime, ncnn, llama.cpp"


def test_missing_features_are_told(catalogue: Catalogue, tmp_path: Path):
    facts = replace(read_facts(captured.lay_out("raspberry-pi-5", tmp_path)), simd=("neon", "fp16"), ram_mb=2000)
    (features,) = detect(facts, catalogue).differences
    assert (features.what, features.here) == ("features", "no dotprod")


HOSTILE = {
    "nothing at all": {},
    "bytes that are no text": {"proc/cpuinfo": b"\xff\xfe\x00processor\t: 0\n", "etc/os-release": b"\x80=\x80\n"},
    "numbers that are none": {
        "proc/meminfo": b"MemTotal: lots kB\n",
        "proc/cpuinfo": b"processor\t: x\n\nprocessor\t: 0\nCPU part\t: 0xzz\n",
        "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq": b"fast\n",
    },
    "a list of cores without end": {"sys/devices/system/cpu/online": b"0-99999999999\n",
        "proc/cpuinfo": b"processor\t: 0\n"},
    "a name with quotes": {"proc/device-tree/model": b'My "board"\\\n[core]\0'},
    "half an ELF file": {"usr/bin/python3.11": b"\x7fELF\x02"},
}  # fmt: skip


@pytest.mark.parametrize("files", HOSTILE.values(), ids=HOSTILE)
def test_whatever_the_files_hold_there_is_an_answer(files: dict[str, bytes], catalogue: Catalogue, tmp_path: Path):
    for path, data in files.items():
        captured.written(tmp_path / path, data)
    got = detect(read_facts(tmp_path), catalogue)
    assert (got.profile, got.sure) == (None, "unknown")
    assert read(got.toml, "my.toml", starting_name(got.facts))


def test_a_core_that_nobody_knows_is_shown_by_its_numbers(catalogue: Catalogue, tmp_path: Path):
    captured.written(tmp_path / "proc/cpuinfo", b"processor\t: 0\nCPU implementer\t: 0x61\nCPU part\t: 0x022\n")
    got = detect(read_facts(tmp_path), catalogue)
    assert got.facts.clusters == (Cluster("0x61:0x22", 1, None),)
    assert got.why == "the board has no name, and no profile stands for 0x61:0x22"


def test_this_machine_is_read_without_an_error(catalogue: Catalogue):
    facts = read_facts()
    assert facts.python
    assert isinstance(detect(facts, catalogue), DetectedBoard)


def test_an_empty_machine_has_empty_facts(tmp_path: Path):
    assert read_facts(tmp_path) == BoardFacts()
