"""Downloading by the real pip, from a server on loopback that breaks off, lies, or has gone."""

from __future__ import annotations

import hashlib
import resource
import subprocess
import tempfile
import venv
import zipfile

import pytest
from certificates import authority, certificate
from downloads import Script, serving
from shipping.shelf import Shelf

from edgekit.packaging.output_errors import OutputError
from edgekit.shipping import wheels
from edgekit.shipping.plan import WheelDownloadError
from edgekit.shipping.wheels import LockedDistribution, WheelTarget, download
from edgekit_runtime.system.errors import MissingExtraError

PI_4 = WheelTarget("raspberry-pi-4", "aarch64", "3.11", "2.36")
PI_32 = WheelTarget("pi-32", "armv7l", "3.11", "2.36")


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel of half a megabyte for one board only."""
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    shelf = Shelf(tmp_path / "shelf", monkeypatch)
    path = shelf.put("some", "1.0", "cp311-cp311-manylinux_2_34_aarch64", python="<3.2")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("weights.bin", bytes(500_000))
    return path


@pytest.fixture
def index(wheel):
    """Has its files kept for ever, as PyPI has."""
    return Script(wheel.read_bytes(), headers={"Cache-Control": "max-age=365000000, immutable, public"})


@pytest.fixture
def url(wheel, index, tmp_path, monkeypatch):
    """Of the wheel; over TLS, as pip caches nothing that came without."""
    monkeypatch.setenv("PIP_CERT", str(authority(tmp_path)))
    for other in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # they come before it
        monkeypatch.delenv(other, raising=False)
    with serving(index, certificate(tmp_path, "index")) as url:
        yield url.replace("localhost", "127.0.0.1").replace("net.ekb", wheel.name)


@pytest.fixture
def get(wheel, url, tmp_path):
    def run(url=url, target=PI_4, folder="usb"):
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        locked = LockedDistribution("some", "1.0", wheel.name, url, digest)
        return download([locked], target, tmp_path / folder)

    return run


def ranges(index):
    return [asked.get("Range") for asked in index.asked]


def test_a_wheel_of_another_machine_arrives_whatever_python_it_asks_for(get, wheel, tmp_path):
    assert get() == [tmp_path / "usb" / wheel.name]
    assert (tmp_path / "usb" / wheel.name).read_bytes() == wheel.read_bytes()
    assert get(wheel.as_uri())[0].read_bytes() == wheel.read_bytes()


def test_settings_that_choose_other_wheels_are_not_read(get, wheel, tmp_path, monkeypatch):
    (tmp_path / "pip.conf").write_text("[global]\nno-binary = :all:\nconstraint = /nowhere/versions.txt\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_CONSTRAINT", "/nowhere/versions.txt")
    assert get()[0].read_bytes() == wheel.read_bytes()


def test_a_wheel_that_the_board_could_not_install_is_refused(get, tmp_path):
    with pytest.raises(WheelDownloadError, match="not a supported wheel"):
        get(target=PI_32)
    assert not list((tmp_path / "usb").glob("*.whl"))


def test_a_connection_that_breaks_off_for_good_leaves_no_file_and_the_next_try_has_it(get, index, wheel, tmp_path):
    index.cuts = [100_000, *[0] * 20]
    with pytest.raises(WheelDownloadError, match=r"not enough bytes were received .* Run it again when the network"):
        get()
    assert not list((tmp_path / "usb").glob("*.whl"))
    index.cuts.clear()
    assert get()[0].read_bytes() == wheel.read_bytes()


def test_a_download_that_is_cut_resumes_where_it_was(get, index, wheel, tmp_path, monkeypatch):
    """Whatever pip's own settings say: 25.1 resumes none where it is not told to."""
    (tmp_path / "pip.conf").write_text("[global]\nresume-retries = 0\n")
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path))
    index.cuts = [300_000]
    assert get()[0].read_bytes() == wheel.read_bytes()
    assert ranges(index) == [None, "bytes=300000-"]


def test_a_server_that_never_ends_is_given_up_and_nothing_of_its_answer_stays(get, index, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(wheels, "_DOWNLOAD_S", 2.0)
    index.endless = True
    with pytest.raises(WheelDownloadError, match="the wheels did not arrive within 2 s"):
        get()
    assert not list((tmp_path / "temporary").iterdir())
    assert not list((tmp_path / "usb").glob("*"))


def test_a_wheel_for_two_folders_is_fetched_once(get, index, wheel):
    assert get()[0].read_bytes() == get(folder="another")[0].read_bytes() == wheel.read_bytes()
    assert ranges(index) == [None]


def test_without_pip_the_extra_is_named(get, monkeypatch):
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="downloading wheels needs the 'ship' extra"):
        get()


def test_other_bytes_than_promised_are_refused_and_forgotten(get, index, wheel, tmp_path):
    """Though the index has them kept for ever."""
    index.data = index.data[:-1] + b"x"
    with pytest.raises(WheelDownloadError, match=f"{wheel.name} is not the file that the index promised"):
        get()
    assert not list((tmp_path / "usb").glob("*.whl"))
    index.data = wheel.read_bytes()
    assert get()[0].read_bytes() == wheel.read_bytes()


def test_a_file_that_rotted_in_the_package_is_downloaded_again(get, wheel):
    get()[0].write_bytes(b"rot")
    assert get()[0].read_bytes() == wheel.read_bytes()


def test_a_network_that_is_gone_is_one_sentence(get, wheel):
    with pytest.raises(
        WheelDownloadError, match=r"127\.0\.0\.1:9: a wheel cannot be downloaded: Connection refused\. "
    ):
        get(f"http://127.0.0.1:9/{wheel.name}")


@pytest.mark.parametrize(
    ("status", "why"), [(503, "too many 503 error responses"), (404, "404 Client Error: Not Found")]
)
def test_what_the_index_answers_is_the_cause(get, index, status, why):
    index.status = status
    with pytest.raises(WheelDownloadError, match=f"a wheel cannot be downloaded: .*{why}"):
        get()


def test_a_certificate_that_is_not_trusted_is_the_cause(get, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("PIP_CERT", str(authority(tmp_path / "other")))
    with pytest.raises(WheelDownloadError, match=r"127\.0\.0\.1:\d+: .*certificate verify failed"):
        get()


def test_a_disk_that_is_full_is_no_matter_of_the_network(get, monkeypatch):
    """As on a disk that takes no more: no file may become larger than 100 kB."""
    real = subprocess.run

    def run(*given, **more):
        return real(*given, **more, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)))

    monkeypatch.setattr(wheels.subprocess, "run", run)
    with pytest.raises(OutputError, match="usb: cannot be written: File too large"):
        get()


UNWRITTEN = {"No space left on device": 28, "Disk quota exceeded": 122, "Read-only file system": 30}


@pytest.mark.parametrize("reason", UNWRITTEN)
def test_what_keeps_a_wheel_from_being_written_is_said(get, monkeypatch, reason):
    said = f"ERROR: Could not install packages due to an OSError: [Errno {UNWRITTEN[reason]}] {reason}\n"
    monkeypatch.setattr(
        wheels.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, "", said)
    )
    with pytest.raises(OutputError, match=f"usb: cannot be written: {reason}"):
        get()


def test_the_pip_of_an_old_python_downloads_too(get, wheel, tmp_path, monkeypatch):
    """Python 3.11.7 makes environments with pip 23.2, which cannot resume."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    command = [python, "-c", "from importlib.metadata import version; print(version('pip'))"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    monkeypatch.setattr(wheels.importlib.metadata, "version", lambda name: found)
    monkeypatch.setattr(wheels.sys, "executable", str(python))
    assert get()[0].read_bytes() == wheel.read_bytes()
