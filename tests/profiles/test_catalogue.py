"""Profiles of the user's own folders and of other packages stand beside those that come along, and never hide them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from edgekit_profiles import ProfileError, UnknownProfileError, load, open_catalogue
from edgekit_profiles.catalogue import Catalogue, built_in, validate
from edgekit_profiles.reading import read

PI4 = built_in().text("raspberry-pi-4")


def gateway(folder: Path, name: str = "gateway", **changes: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = PI4.replace('name = "raspberry-pi-4"', f'name = "{name}"', 1)
    for old, new in changes.items():
        text = text.replace(old, new)
    (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder


def opened(*folders: Path, environ: dict[str, str] | None = None, plugins: tuple[EntryPoint, ...] = ()) -> Catalogue:
    return open_catalogue(folders, environ=environ or {}, plugins=plugins)


def test_a_folder_adds_its_profiles_with_their_images_and_modes(tmp_path: Path):
    catalogue = opened(gateway(tmp_path))
    assert {"gateway", "gateway-32bit", "gateway-trixie"} <= set(catalogue.names())
    assert catalogue.load("gateway-32bit@1.8ghz").core.clock_ghz == 1.8
    assert catalogue.origin(catalogue.load("gateway-trixie")) == str(tmp_path)
    assert set(built_in().names()) < set(catalogue.names())


def test_a_folder_called_edgekit_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gateway(tmp_path / "edgekit")
    gateway(tmp_path / "other" / "edgekit", "raspberry-pi-4", **{'title = "': 'title = "Our '})
    monkeypatch.chdir(tmp_path)
    assert opened(Path("edgekit")).load("gateway").name == "gateway"
    monkeypatch.chdir("other")
    assert load("edgekit/raspberry-pi-4.toml").title == f"Our {load('raspberry-pi-4').title}"


def test_the_variable_names_folders_too_and_one_folder_counts_once(tmp_path: Path):
    one, two = gateway(tmp_path / "one", "first"), gateway(tmp_path / "two", "second")
    environ = {"EDGEKIT_PROFILE_PATH": os.pathsep.join([str(two), "", str(one)])}
    assert {"first", "second"} <= set(opened(one, environ=environ).boards())
    assert opened(one, environ=environ).load("first").name == "first"


def test_another_package_brings_profiles_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gateway(tmp_path / "acme_boards", "acme-one")
    (tmp_path / "acme_boards" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    catalogue = opened(plugins=(EntryPoint("acme", "acme_boards", "edgekit.profiles"),))
    assert catalogue.load("acme-one").name == "acme-one"
    assert catalogue.origin(catalogue.load("acme-one")) == "acme"


def test_an_installed_distribution_is_found_without_being_told_of(tmp_path: Path):
    """What pip leaves of a package: its modules, and metadata with the entry point."""
    gateway(tmp_path / "acme_boards", "acme-two")
    (tmp_path / "acme_boards" / "__init__.py").touch()
    info = tmp_path / "acme_boards-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-boards\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[edgekit.profiles]\nacme = acme_boards\n")
    done = subprocess.run(
        [sys.executable, "-c", "from edgekit.cli import main; main()", "profiles", "show", "acme-two"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("acme-two: Raspberry Pi 4 Model B")


def test_a_package_that_cannot_be_imported_is_named():
    with pytest.raises(
        ProfileError, match=r"the profiles of the entry point 'gone' cannot be found: .*'no_such_package'"
    ):
        opened(plugins=(EntryPoint("gone", "no_such_package", "edgekit.profiles"),))


def test_two_profiles_of_one_name_are_an_error_that_names_both_when_it_is_asked_for(tmp_path: Path):
    catalogue = opened(gateway(tmp_path, "raspberry-pi-4"))
    assert catalogue.load("raspberry-pi-5").name == "raspberry-pi-5"
    with pytest.raises(ProfileError) as caught:
        catalogue.load("raspberry-pi-4-trixie")
    assert "boards/raspberry-pi-4.toml" in caught.value.what
    assert str(tmp_path / "raspberry-pi-4.toml") in caught.value.what
    assert [error.what for error in catalogue.broken()] == [caught.value.what]
    assert "raspberry-pi-4" not in catalogue.names()


def test_a_broken_file_spoils_its_own_profiles_alone(tmp_path: Path):
    catalogue = opened(gateway(tmp_path, count="cuont"))
    assert catalogue.load("raspberry-pi-4").name == "raspberry-pi-4"
    assert "gateway" not in catalogue.names()
    (error,) = catalogue.broken()
    assert error.where == str(tmp_path / "gateway.toml")
    with pytest.raises(ProfileError, match="is not a key of the format"):
        catalogue.load("gateway")


def test_times_of_the_machine_that_builds_are_refused_in_a_folder_as_by_path(tmp_path: Path):
    (tmp_path / "atom.toml").write_text(built_in().text("x86-64").replace('"x86-64"', '"atom"', 1))
    with pytest.raises(ProfileError, match="'measured_here' is for the profiles that come with edgekit"):
        opened(tmp_path).load("atom")


def test_a_folder_that_is_not_there_says_which_option_named_it(tmp_path: Path):
    with pytest.raises(ProfileError, match=r"gone: --profile-path: the folder of profiles cannot be read"):
        opened(tmp_path / "gone")
    with pytest.raises(ProfileError, match=r"gone: EDGEKIT_PROFILE_PATH: the folder of profiles cannot be read"):
        opened(environ={"EDGEKIT_PROFILE_PATH": str(tmp_path / "gone")})


def test_a_name_of_the_users_own_is_among_the_near_misses(tmp_path: Path):
    with pytest.raises(UnknownProfileError, match="Did you mean gateway"):
        opened(gateway(tmp_path)).load("gatewya")


MODES = {
    "a mode": ("jetson-nano@5w", (2, 0.918, 2)),
    "the mode that is set": ("jetson-nano@10w", (4, 1.479, 4)),
    "a clock of later firmware": ("raspberry-pi-4-trixie@1.8ghz", (4, 1.8, 4)),
}


@pytest.mark.parametrize(("name", "expected"), MODES.values(), ids=MODES)
def test_a_mode_changes_cores_clock_and_threads(name: str, expected: tuple[int, float, int]):
    profile = load(name)
    assert (profile.core.count, profile.core.clock_ghz, profile.threads) == expected
    assert profile.name in (name, name.partition("@")[0])


@pytest.mark.parametrize("name", ["jetson-nano@9w", "jetson-nano@", "raspberry-pi-5@5w", "jetson-nano@5w@5w"])
def test_a_mode_that_is_not_there_names_those_that_are(name: str):
    with pytest.raises(UnknownProfileError, match=r"has no mode '.*'\. (Modes: 10w, 5w|Use --profile raspberry-pi-5)"):
        load(name)


def test_an_anchor_holds_for_the_images_of_its_architecture():
    assert [(a.ms["int8"], a.grade) for a in load("raspberry-pi-4-32bit").anchors] == [(29.0, "published")]
    assert load("raspberry-pi-4").anchors[0].ms["int8"] == 24.0
    assert load("raspberry-pi-3b-plus").anchors[0].grade == "derived"
    assert load("raspberry-pi-3b-plus-32bit").anchors[0].grade == "published"


def mistakes(**changes: str) -> list[str]:
    text = PI4
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new, 1)
    try:
        read(text, "file.toml", "raspberry-pi-4")
    except ProfileError as error:
        return [one.what for one in error.mistakes or (error,)]
    return []


NPU = "[[accelerators]]\nname = 'x'\nkind = 'npu'\nsource = 'y'\n"
DISAGREE = {
    "a mode with more cores than are written": ('cores = 4', 'cores = 3', "'modes[0].cores' is 3, and core.count is 4"),
    "a mode at another clock": ("[core]\ntype = \"cortex-a72\"\ncount = 4\nclock_ghz = 1.5",
        "[core]\ntype = \"cortex-a72\"\ncount = 4\nclock_ghz = 1.6",
        "'modes[0].clock_ghz' is 1.5, and core.clock_ghz is 1.6"),
    "a mode that nobody described": ('power_mode = "1.5ghz"', 'power_mode = "fast"',
        "'power_mode' is 'fast', which no [[modes]] table describes"),
    "modes and none set": ('power_mode = "1.5ghz"\n', "", "'power_mode' is missing"),
    "a name that is no name": ('image = "32bit"', 'image = "32 bit"',
        "'images[0].image' is not a plain name: '32 bit'"),
    "an image twice": ('image = "trixie"', 'image = "32bit"', "'images[1].image' is a duplicate: '32bit'"),
    "an anchor with more threads than cores": ("threads = 4\nclock_ghz = 1.5\nfloat32_ms",
        "threads = 8\nclock_ghz = 1.5\nfloat32_ms", "'anchors[0].threads' is 8, more than the 4 cores"),
    "an anchor in megahertz": ("threads = 4\nclock_ghz = 1.5\nfloat32_ms", "threads = 4\nclock_ghz = 1500\nfloat32_ms",
        "'anchors[0].clock_ghz' is 1500, and the board runs at 1.5, 1.8 GHz"),
    "a feature of another machine": ('simd = ["neon"]', 'simd = ["neon", "avx2"]',
        "'core.simd' has 'avx2', which aarch64 does not have"),
    "a python without a glibc": ('glibc = "2.36"', 'glibc = ""', "'os.python' must be empty where the other is"),
    "a size that is not the smallest": ("ram_mb = 1024", "ram_mb = 2048",
        "'memory.ram_mb' is 2048, and the smallest of sold_mb is 1024"),
    "a limit below where it begins": ("limit_c = 85", "limit_c = 70", "'thermal.limit_c' is 70, and throttle_c is 80"),
    "half a soft limit": ("throttle_c = 80", "soft_limit_c = 60\nthrottle_c = 80",
        "'thermal.soft_limit_ghz' is missing"),
    "an accelerator of no kind": ("[caches]", '[[accelerators]]\nname = "x"\nkind = "fpga"\nsource = "y"\n\n[caches]',
        "'accelerators[0].kind' is 'fpga', not one of gpu, tpu, npu, dsp"),
    "a device of no delegate": ("[caches]", f"{NPU}device = '/dev/npu'\n[caches]",
        "'accelerators[0].delegate' is missing"),
    "a delegate that is a command": ("[caches]", f"{NPU}delegate = 'libx.so; rm -r /'\n[caches]",
        "'accelerators[0].delegate' is not a library"),
    "an option with a comma": ("[caches]", f"{NPU}delegate = 'libx.so'\noptions = {{ a = 'b,c' }}\n[caches]",
        "'accelerators[0].options.a' is not plain: 'b,c'"),
    "a package that is none": ("[caches]", f"{NPU}delegate = 'libx.so'\ndebian = {{ trixie = 'a b' }}\n[caches]",
        "'accelerators[0].debian.trixie' is not a package's name: 'a b'"),
    "a device elsewhere": ("[caches]", f"{NPU}delegate = 'libx.so'\ndevice = '/etc/passwd'\n[caches]",
        "'accelerators[0].device' is not a file in /dev"),
    "two delegates": ("[caches]", f"{NPU}delegate = 'libx.so'\n{NPU}delegate = 'liby.so'\n[caches]",
        "'accelerators' name more than one delegate"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), DISAGREE.values(), ids=DISAGREE)
def test_what_belongs_together_must_agree(old: str, new: str, message: str):
    assert any(what.startswith(message) for what in mistakes(**{old: new})), mistakes(**{old: new})


def test_an_accelerator_is_tried_where_its_package_is():
    text = PI4.replace("[caches]", f"{NPU}delegate = 'libteflon.so'\ndebian = {{ trixie = 'mesa' }}\n[caches]", 1)
    images = {one.os.debian: one for one in read(text, "file.toml", "raspberry-pi-4")}
    (npu,) = images["trixie"].accelerators
    assert npu.library == "libteflon.so"
    assert npu.unusable(images["trixie"].os) == ""
    assert npu.unusable(images["bookworm"].os).startswith("libteflon.so is packaged for Debian trixie, and this is")
    assert replace(npu, options={"a": "1", "b": "2"}).library == "libteflon.so,a=1,b=2"


def test_every_mistake_is_found_at_once_and_none_twice():
    found = mistakes(
        **{"count = 4": 'cuont = "four"', "ram_mb = 1024": "ram_mb = -1", 'soc = "Broadcom BCM2711"': "soc = 5"}
    )
    assert sorted(what.split("'")[1] for what in found) == ["core.count", "core.cuont", "memory.ram_mb", "soc"]


def test_many_mistakes_are_one_error_that_tells_of_each():
    with pytest.raises(ProfileError) as caught:
        load_text = PI4.replace("count = 4", "cuont = 4", 1)
        from edgekit_profiles import parse

        parse(load_text, "file.toml", "raspberry-pi-4")
    assert caught.value.what.startswith("2 mistakes: 'core.count' is missing. ")
    assert "'core.cuont' is not a key of the format. Did you mean 'count'?" in caught.value.what


def test_a_valid_file_is_warned_of_what_will_not_work(tmp_path: Path):
    changes = {'type = "cortex-a72"': 'type = "cortexa72"', 'python = "3.11"': 'python = "3.8"'}
    (result,) = validate(gateway(tmp_path, **changes))
    assert result.errors == ()
    assert result.names == ("gateway", "gateway-32bit", "gateway-trixie", "gateway-trixie-32bit")
    assert any("(is core.type meant to be 'cortex-a72'?)" in warning for warning in result.warnings)
    assert any(warning.startswith("no engine installs on gateway: ") for warning in result.warnings)


def test_every_shipped_profile_is_valid_and_its_warnings_are_those_of_boards_that_are_refused(tmp_path: Path):
    for board in built_in().boards():
        text = built_in().text(board).replace("measured_here = true\n", "")
        (tmp_path / f"{board}.toml").write_text(text.replace(f'name = "{board}"', f'name = "{board}"', 1))
    results = {result.names[0]: result for result in validate(tmp_path)}
    assert all(not result.errors for result in results.values())
    refused = {
        name for name, result in results.items() if any("no engine installs on" in one for one in result.warnings)
    }
    assert refused == {
        "beaglebone-ai-64", "coral-dev-board", "jetson-nano", "phone-cortex-a55", "phone-cortex-a78", "phone-cortex-x3",
        "phone-cortex-x4", "pixel-3", "pixel-4", "raspberry-pi-zero-w"}  # fmt: skip
