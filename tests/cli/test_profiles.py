"""`edgekit profiles`: what is printed of boards, in words and as one JSON object."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import captured
import pytest
from conftest import Ran

from edgekit.cli.main import main
from edgekit_profiles import names
from edgekit_profiles.catalogue import built_in


@pytest.fixture
def edgekit(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """`edgekit ARGUMENTS` in this process: nothing here depends on how one starts."""

    def run(*arguments: str | Path) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main([*map(str, arguments)])
        said = capsys.readouterr()
        return Ran(int(ended.value.code or 0), said.out, said.err)

    return run


def own(folder: Path, name: str = "gateway") -> Path:
    folder.mkdir(exist_ok=True)
    text = built_in().text("raspberry-pi-4").replace('name = "raspberry-pi-4"', f'name = "{name}"', 1)
    (folder / f"{name}.toml").write_text(text)
    return folder


def test_the_list_names_every_profile_and_what_installs_there(edgekit):
    ran = edgekit("profiles", "list", "--json")
    listed = {item["name"]: item for item in ran.json["profiles"]}
    assert tuple(listed) == names()
    assert listed["raspberry-pi-4-trixie-32bit"]["engines"] == ["onnxruntime", "ncnn"]
    assert listed["jetson-nano"]["modes"] == ["10w", "5w"]
    assert {item["origin"] for item in listed.values()} == {"edgekit"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("raspberry", "pi4", "trixie"), {"raspberry-pi-4-trixie", "raspberry-pi-4-trixie-32bit"}),
        (("jetson",), {"jetson-nano", "jetson-orin-nano"}),
        (("rk3588",), {"orange-pi-5", "orange-pi-5-trixie", "rock-5b", "rock-5b-trixie"}),
    ],
)
def test_words_narrow_the_list(in_process, words: tuple[str, ...], expected: set[str]):
    ran = in_process("profiles", "list", *words)
    assert {line.split()[0] for line in ran.out.splitlines()} == expected
    assert ran.code == 0


def test_words_that_nothing_has_say_so(edgekit):
    ran = edgekit("profiles", "list", "toaster")
    assert (ran.code, ran.out) == (1, "")
    assert "no profile matches all of these words" in ran.err
    as_json = edgekit("profiles", "list", "toaster", "--json")
    assert (as_json.code, as_json.json["profiles"]) == (1, [])


def test_a_folder_of_ones_own_is_listed_shown_and_compared(edgekit, tmp_path: Path):
    folder = own(tmp_path / "mine")
    (folder / "broken.toml").write_text("name = 'broken'\n")
    ran = edgekit("profiles", "list", "--profile-path", folder)
    assert ran.code == 1
    assert "gateway-trixie-32bit" in ran.out
    assert ran.err.startswith(f"broken: {folder / 'broken.toml'}: 7 mistakes: 'title' is missing")
    broken = edgekit("profiles", "show", folder / "broken.toml").err.splitlines()
    assert len(broken) == 7
    assert all(
        line.startswith(f"error: {folder / 'broken.toml'}: '") and line.endswith(" [profile]") for line in broken
    )
    shown = edgekit("profiles", "show", "gateway@1.8ghz", "--profile-path", folder)
    assert shown.out.startswith("gateway@1.8ghz: Raspberry Pi 4 Model B")
    assert "1.8ghz: 4 cores at 1.8 GHz, set" in shown.out
    same = edgekit("profiles", "diff", "gateway", "raspberry-pi-4", "--profile-path", folder)
    assert same.out == "gateway and raspberry-pi-4 are identical\n"


def test_show_says_whether_an_accelerator_is_tried_on_that_image(edgekit, tmp_path: Path):
    text = built_in().text("raspberry-pi-4").replace('name = "raspberry-pi-4"', 'name = "ours"', 1)
    npu = "[[accelerators]]\nname = 'NPU'\nkind = 'npu'\nsource = '-'\ndelegate = 'libteflon.so'\n"
    text = text.replace("[caches]", f"{npu}debian = {{ trixie = 'mesa-teflon-delegate' }}\n\n[caches]", 1)
    (tmp_path / "ours.toml").write_text(text, encoding="utf-8")
    there = edgekit("profiles", "show", "ours-trixie", "--profile-path", tmp_path).out
    assert "npu      NPU; tried first, through libteflon.so of mesa-teflon-delegate\n" in there
    here = edgekit("profiles", "show", "ours", "--profile-path", tmp_path).out
    assert "npu      NPU; libteflon.so is packaged for Debian trixie, and this is Raspberry Pi OS bookworm" in here


def test_a_file_that_is_no_text_is_told_alike_by_the_list_and_by_validate(edgekit, tmp_path: Path):
    (tmp_path / "odd.toml").write_bytes(b"\xff\xfe")
    listed = edgekit("profiles", "list", "--profile-path", tmp_path)
    assert listed.code == 1
    assert "odd.toml: cannot be read: it is not UTF-8" in listed.err
    assert "odd.toml: cannot be read: it is not UTF-8" in edgekit("profiles", "validate", tmp_path).out


def test_the_file_of_a_profile_can_be_begun_from(edgekit, tmp_path: Path):
    ran = edgekit("profiles", "show", "cortex-a76", "--toml")
    assert tomllib.loads(ran.out)["core"]["type"] == "cortex-a76"
    assert edgekit("profiles", "show", "cortex-a76", "--toml", "--json").code == 2


def test_differences_carry_both_sources(edgekit):
    found = edgekit("profiles", "diff", "raspberry-pi-4", "raspberry-pi-5", "--json").json["differences"]
    by_key = {item["key"]: item for item in found}
    assert (by_key["core.clock_ghz"]["first"], by_key["core.clock_ghz"]["second"]) == (1.5, 2.4)
    assert "BCM2712" in by_key["core.clock_ghz"]["second_source"]
    assert "os.python" not in by_key
    assert by_key["caches.l3_kb"]["first"] is None


def test_what_is_the_same_is_left_out_and_a_source_said_once(edgekit):
    ran = edgekit("profiles", "diff", "raspberry-pi-4", "raspberry-pi-4-trixie")
    assert ran.out.count("Debian 13, on which") == 1
    assert ran.out.splitlines()[-1].split() == ["engines.tflite-runtime", "2.14.0", "->", "nothing"]


def test_every_mistake_of_every_file_is_printed_with_its_key(edgekit, tmp_path: Path):
    own(tmp_path, "good")
    (tmp_path / "bad.toml").write_text('name = "bed"\nthreds = 4\n[core]\ntype = "cortex-a72"\ncount = "4"\n')
    ran = edgekit("profiles", "validate", tmp_path)
    assert ran.code == 1
    for mistake in (
        "bad.toml: 'name' is 'bed', and the file is called 'bad.toml'. Write name = \"bad\" in it, or call the file "
        "bed.toml",
        "bad.toml: 'threds' is not a key of the format. Did you mean 'threads'?",
        "bad.toml: 'core.count' is a string, not a whole number",
        "bad.toml: 'os' is missing. Add it: it is a table",
        "good.toml: a profile (good, good-32bit, good-trixie, good-trixie-32bit)",
    ):
        assert mistake in ran.out
    told = edgekit("profiles", "validate", tmp_path, "--json").json
    assert told["ok"] is False
    assert {error["key"] for error in told["files"][0]["errors"]} >= {"name", "threds", "core.count", "os", "memory"}
    assert told["files"][1]["errors"] == []
    assert edgekit("profiles", "validate", tmp_path / "good.toml").code == 0


def test_a_board_is_detected_from_copies_of_its_files(edgekit, tmp_path: Path):
    root = captured.lay_out("raspberry-pi-5", tmp_path / "pi")
    ran = edgekit("profiles", "detect", "--files", root)
    assert ran.code == 0
    assert ran.out.startswith(
        "raspberry-pi-5-trixie: Raspberry Pi 5, Raspberry Pi OS trixie, 64-bit\n  sure     certain: "
    )
    assert "next     edgekit build MODEL --profile raspberry-pi-5-trixie" in ran.out
    told = edgekit("profiles", "detect", "--files", root, "--json").json
    assert (told["profile"], told["sure"]) == ("raspberry-pi-5-trixie", "certain")
    assert told["facts"]["simd"] == ["neon", "fp16", "dotprod", "aes", "sha2"]


def test_an_unknown_board_gets_the_nearest_profile_and_a_file_to_begin_with(edgekit, tmp_path: Path):
    root = captured.lay_out("khadas-vim3", tmp_path / "vim")
    ran = edgekit("profiles", "detect", "--files", root)
    assert ran.out.startswith("cortex-a72: ")
    assert "edgekit profiles detect --toml > khadas-vim3.toml" in ran.out
    (tmp_path / "khadas-vim3.toml").write_text(edgekit("profiles", "detect", "--files", root, "--toml").out)
    assert edgekit("profiles", "validate", tmp_path / "khadas-vim3.toml").code == 0


def test_a_machine_that_no_profile_stands_for_ends_with_one(edgekit, tmp_path: Path):
    ran = edgekit("profiles", "detect", "--files", captured.lay_out("visionfive-2", tmp_path / "v"))
    assert (ran.code, ran.out.splitlines()[0]) == (1, "no profile matches this machine")
    assert edgekit("profiles", "detect", "--files", tmp_path / "nowhere").code == 1


def test_detecting_needs_the_base_install_alone(tmp_path: Path):
    """On a board no engine and nothing of the workstation may be there."""
    script = (
        "import sys\nfor name in ('onnxruntime', 'tensorflow', 'ai_edge_litert', 'tflite_runtime', 'rich', 'jinja2', "
        "'PIL'):\n    sys.modules[name] = None\nfrom edgekit.cli import main\nmain(['profiles', 'detect', '--json', "
        "'--files', sys.argv[1]])\n"
    )
    root = captured.lay_out("raspberry-pi-zero-2-w", tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", script, str(root)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["profile"] == "raspberry-pi-zero-2-w"


def test_a_profile_named_by_its_file_is_shown_with_its_images_and_modes(edgekit, tmp_path: Path):
    file = own(tmp_path / "mine") / "gateway.toml"
    shown = edgekit("profiles", "show", file)
    assert (shown.code, shown.out.splitlines()[0]) == (0, "gateway: Raspberry Pi 4 Model B")
    assert "  images   gateway-32bit, gateway-trixie, gateway-trixie-32bit" in shown.out.splitlines()
    assert edgekit("profiles", "show", file, "--json").json["profile"]["name"] == "gateway"
    assert edgekit("profiles", "show", file, "--toml").out == file.read_text()
    assert edgekit("profiles", "show", f"{file}@1.8ghz").out.startswith("gateway@1.8ghz: ")
    assert "has no mode '9w'. Modes: 1.5ghz, 1.8ghz" in edgekit("profiles", "show", f"{file}@9w").err
    assert edgekit("profiles", "diff", file, f"{file}@1.8ghz").code == 0


def test_the_images_of_a_file_are_its_own_though_a_known_board_has_its_name(edgekit, tmp_path: Path):
    text = built_in().text("cortex-a76").replace('name = "cortex-a76"', 'name = "raspberry-pi-4"', 1)
    (tmp_path / "raspberry-pi-4.toml").write_text(text)
    shown = edgekit("profiles", "show", tmp_path / "raspberry-pi-4.toml")
    assert shown.code == 0, shown.err
    assert "  images   raspberry-pi-4-trixie" in shown.out.splitlines()
    assert "raspberry-pi-4-32bit" not in shown.out


def test_a_folder_is_no_profile_and_no_board_is_suggested(edgekit, tmp_path: Path):
    ran = edgekit("profiles", "show", tmp_path)
    assert (ran.code, "is a folder" in ran.err, "Did you mean" in ran.err) == (1, True, False)
