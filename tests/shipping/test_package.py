"""The folder that `edgekit deploy -o` makes: what is in it, for boards that are not this machine."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from edgekit.packaging.output_errors import OutputError
from edgekit.shipping.folder import draft, put
from edgekit.shipping.package import PackageRequest, pack
from edgekit.shipping.plan import ShippingError
from edgekit_profiles import load
from edgekit_profiles.profile import Accelerator

PI_4 = load("raspberry-pi-4")
PI_32 = replace(PI_4, name="pi-32", arch="armv7l", os=replace(PI_4.os, debian="bookworm"))


@pytest.fixture
def request_(shelf, tiny_bundle, tmp_path):
    return PackageRequest(tiny_bundle, PI_4, tmp_path / "usb", wheel=shelf.edgekit())


def files(folder: Path) -> dict[str, str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_every_file_is_listed_with_its_hash(request_):
    packed = pack(request_)
    listed = dict(reversed(line.split("  ")) for line in (packed.path / "SHA256SUMS").read_text().splitlines())
    found = files(packed.path)
    assert found.pop("SHA256SUMS")
    assert listed == found
    assert (packed.files, packed.bytes) == (
        len(found) + 1,
        sum(p.stat().st_size for p in packed.path.rglob("*") if p.is_file()),
    )
    assert packed.bundle_sha256 == found["bundle/tiny.ekb"] == hashlib.sha256(request_.bundle.read_bytes()).hexdigest()


def test_the_same_again_gives_the_same_bytes(request_, tmp_path):
    first, second = pack(request_), pack(replace(request_, output=tmp_path / "again"))
    assert files(first.path) == files(second.path)
    assert first.release == second.release


def test_another_bundle_wheel_or_service_is_another_release(request_, shelf, tiny_bundle, tmp_path):
    releases = {pack(request_).release, pack(replace(request_, service="app {bundle}")).release}
    releases.add(pack(replace(request_, engine="tflite-runtime")).release)
    assert len(releases) == 3


def test_its_record_says_what_was_packed(request_):
    packed = pack(request_)
    record = json.loads((packed.path / "package.json").read_text())
    assert record["wheels"] == [vars(wheel) for wheel in packed.wheels]
    assert (record["engine"], record["engine_version"], record["profile"]) == ("litert", "2.3.0", "raspberry-pi-4")
    assert str(packed.path.parent) not in (packed.path / "package.json").read_text()


def test_on_32_bits_the_rest_is_debian_s(request_):
    packed = pack(replace(request_, profile=PI_32))
    assert packed.engine == "tflite-runtime"
    assert packed.debian == ("python3-cryptography", "python3-numpy", "python3-pil", "python3-xxhash")
    assert "DEBIAN='python3-cryptography python3-numpy" in (packed.path / "package.conf").read_text()
    told = (packed.path / "licences" / "LICENCES.txt").read_text()
    assert "python3-numpy: from Debian, see /usr/share/doc/python3-numpy/copyright on the board" in told


def test_an_accelerator_brings_its_package_and_the_service_its_delegate(request_):
    npu = Accelerator(
        "an NPU",
        "npu",
        "-",
        "",
        "libteflon.so",
        {"a": "1"},
        {"bookworm": "mesa-teflon-delegate"},
        "/dev/dri/renderD128",
    )
    board = replace(PI_4, accelerators=(npu,), os=replace(PI_4.os, debian="bookworm"))
    packed = pack(replace(request_, profile=board, service="app {bundle}"))
    assert (packed.debian, packed.delegate) == (("mesa-teflon-delegate",), "libteflon.so,a=1")
    conf = (packed.path / "package.conf").read_text().splitlines()
    assert {"DEBIAN=mesa-teflon-delegate", "DELEGATE=libteflon.so,a=1", "DEVICE=/dev/dri/renderD128"} <= set(conf)
    unit = (packed.path / "service" / packed.service).read_text()
    assert "\nEnvironment=EDGEKIT_DELEGATE=libteflon.so,a=1\n" in unit
    assert any("an NPU is tried first" in note for note in packed.notes)
    elsewhere = replace(board, os=replace(PI_4.os, debian="trixie"))
    assert pack(replace(request_, profile=elsewhere, output=request_.output.parent / "other")).debian == ()


def test_the_engine_s_version_is_the_one_that_made_the_golden_answers(request_, shelf):
    proven = pack(request_)
    shelf.put("ai-edge-litert", "2.9.0", "cp311-cp311-manylinux_2_28_aarch64", needs=("numpy>=1.23",))
    assert pack(request_).engine_version == proven.engine_version == "2.3.0"
    assert "the bundle was built for x86-64: its latencies were not judged for raspberry-pi-4" in proven.notes[0]


def test_a_package_that_a_board_would_refuse_says_so(request_):
    assert any("no key signed the bundle, so a board refuses it" in note for note in pack(request_).notes)
    allowed = pack(replace(request_, allow_unsigned=True, output=request_.output.parent / "allowed"))
    assert not any("no key signed" in note for note in allowed.notes)


def test_where_the_board_cannot_have_that_version_it_is_said(request_, shelf):
    (shelf.folder / "ai_edge_litert-2.3.0-cp311-cp311-manylinux_2_28_aarch64.whl").unlink()
    shelf.put("ai-edge-litert", "2.9.0", "cp311-cp311-manylinux_2_28_aarch64", needs=("numpy>=1.23",))
    packed = pack(request_)
    assert packed.engine_version == "2.9.0"
    assert "the golden answers were made by litert 2.3.0, and the board gets 2.9.0" in packed.notes[-1]


def test_nothing_is_packed_that_the_check_refuses(request_):
    """And the check is told exactly what the board gets."""
    asked = []

    def refuse(*given: object) -> None:
        asked.append(given)
        raise ShippingError("it will not load there")

    with pytest.raises(ShippingError, match="it will not load there"):
        pack(replace(request_, approve=refuse))
    assert asked == [(request_.bundle, PI_4, "litert", "2.3.0")]
    assert not request_.output.exists()


def test_the_network_for_measuring_a_board_comes_along_where_asked_for(request_):
    packed = pack(replace(request_, anchors=True))
    assert {path.name for path in (packed.path / "anchors").iterdir()} == {
        "mobilenet_v1-float32.tflite",
        "mobilenet_v1-int8.tflite",
    }


def test_licences_are_listed_with_their_texts(request_, shelf):
    with zipfile.ZipFile(shelf.folder / "tqdm-4.70.1-py3-none-any.whl", "a") as archive:
        archive.writestr("tqdm-4.70.1.dist-info/licenses/LICENCE", "the text of it")
    packed = pack(request_)
    told = (packed.path / "licences" / "LICENCES.txt").read_text()
    assert "tiny: its bundle names no licence" in told
    assert "tqdm-4.70.1/licenses_LICENCE" in told
    assert (packed.path / "licences" / "tqdm-4.70.1" / "licenses_LICENCE").read_text() == "the text of it"
    assert all(wheel.name in told.lower().replace("_", "-") for wheel in packed.wheels)
    assert "its wheel carries no text" in told  # of the wheels that were made for this test


def test_an_earlier_package_is_replaced_where_it_is(request_):
    (first, place) = (pack(request_), request_.output.stat().st_ino)
    second = pack(replace(request_, engine="tflite-runtime"))
    listed = {line.split("  ")[1] for line in (second.path / "SHA256SUMS").read_text().splitlines()}
    assert set(files(request_.output)) == listed | {"SHA256SUMS"}
    assert (second.release == first.release, request_.output.stat().st_ino) == (False, place)


SOMEBODY_S = {
    "a photo in a folder of its own": ("photos/a.jpg", "photos/"),
    "a file beside the wheels": ("wheels/stale.whl", "wheels/stale.whl"),
    "a hidden file": (".notes", ".notes"),
}


@pytest.mark.parametrize("case", SOMEBODY_S)
def test_what_no_package_has_put_there_is_named_and_nothing_is_touched(request_, case):
    file, named = SOMEBODY_S[case]
    pack(request_)
    (request_.output / file).parent.mkdir(exist_ok=True)
    (request_.output / file).write_text("mine")
    before = files(request_.output)
    with pytest.raises(OutputError, match=f"the directory is not empty: {named}"):
        pack(replace(request_, engine="tflite-runtime"))
    assert files(request_.output) == before


@pytest.mark.parametrize("lost", ["package.json", "SHA256SUMS"])
def test_a_folder_that_is_not_wholly_a_package_is_not_replaced(request_, lost):
    pack(request_)
    (request_.output / lost).unlink()
    with pytest.raises(OutputError, match="the directory is not empty"):
        pack(request_)
    assert (request_.output / "install.sh").is_file()


def test_what_somebody_puts_there_meanwhile_is_not_lost(request_):
    pack(request_)
    before = files(request_.output)

    def meanwhile(*_: object) -> None:
        (request_.output / "photo.jpg").write_text("mine")

    with pytest.raises(OutputError, match="not empty: photo"):
        pack(replace(request_, approve=meanwhile))
    assert files(request_.output).items() > before.items()
    assert (request_.output / "photo.jpg").read_text() == "mine"


def test_an_empty_folder_is_filled_where_it_is(request_):
    """It may be a USB stick's mount point, which cannot be renamed over; what its file system keeps there stays."""
    (request_.output / "lost+found").mkdir(parents=True)
    place = request_.output.stat().st_ino
    packed = pack(request_)
    assert request_.output.stat().st_ino == place
    assert (request_.output / "lost+found").is_dir()
    assert packed.files == len(files(request_.output))


def test_a_link_to_a_folder_stays_one(request_, tmp_path):
    (tmp_path / "stick").mkdir()
    request_.output.symlink_to("stick")
    pack(request_)
    assert request_.output.is_symlink()
    assert (tmp_path / "stick" / "install.sh").is_file()


def test_a_step_that_fails_brings_the_earlier_package_back(tmp_path):
    output, made = tmp_path / "usb", tmp_path / "usb" / ".edgekit-package-x" / "package"
    made.mkdir(parents=True)
    for folder, text in ((output, "old"), (made, "new")):
        for name in ("install.sh", "package.json"):
            (folder / name).write_text(text)
        (folder / "SHA256SUMS").write_text("0  install.sh\n1  package.json\n")
    (made / "lost+found").mkdir()
    (output / "lost+found").mkdir()
    (output / "lost+found" / "x").write_text("of the file system")
    before = files(output)
    with pytest.raises(OSError, match="not empty"):
        put(made, output)
    (made.parent / "before").rmdir()
    assert files(output) == before


def test_drafts_of_a_killed_process_are_removed_and_those_of_a_living_one_are_not(tmp_path):
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom edgekit.shipping.folder import draft\n"
        "with draft(Path(sys.argv[1])) as folder:\n    print(folder, flush=True)\n    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "usb")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        with draft(tmp_path / "usb") as own:
            assert {own, left} == set(tmp_path.iterdir())
        process.kill()
    assert list(tmp_path.iterdir()) == [left]
    with draft(tmp_path / "usb") as own:
        assert list(tmp_path.iterdir()) == [own]


def test_a_package_that_failed_leaves_nothing(request_, shelf, tmp_path):
    for wheel in shelf.folder.glob("xxhash*"):
        wheel.unlink()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(Exception, match="xxhash"):
        pack(request_)
    assert sorted(path for path in tmp_path.iterdir() if path.name != "state") == [
        p for p in before if p.name != "state"
    ]


def test_a_board_of_another_kind_is_refused_by_the_installer(request_, tmp_path):
    packed = pack(request_)
    done = install(packed.path, "--prefix", tmp_path / "board")
    assert done.returncode == 1
    assert (
        "error: the package is for raspberry-pi-4 (aarch64, Python 3.11, glibc 2.36 or later), and here" in done.stderr
    )
    assert not (tmp_path / "board").exists()


def test_a_changed_file_is_refused_by_the_installer(request_, tmp_path):
    packed = pack(request_)
    with (packed.path / "bundle" / "tiny.ekb").open("ab") as stream:
        stream.write(b"x")
    done = install(packed.path, "--prefix", tmp_path / "board")
    assert done.returncode == 1
    assert "files of this package are missing or have changed" in done.stderr


def install(package: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["sh", package / "install.sh", *arguments]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
