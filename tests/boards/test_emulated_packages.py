"""Debian's packages by the host's own apt, from a mirror that this test serves: what it does when the mirror is in
mid-sync, away, or without the package, and whose sources it asks."""

from __future__ import annotations

import functools
import hashlib
import http.server
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from parts import missing

from edgekit.boards.emulated_board import EmulatorMissingError, Image, MirrorUpdatingError, UserlandError
from edgekit.boards.userland import fetch, sources

IMAGE = Image("bookworm", "aarch64")


class Mirror:
    """A Debian archive with one package, `tiny` for arm64, on a loopback port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lists = folder / "dists/bookworm/main/binary-arm64"
        self.lists.mkdir(parents=True)
        content = folder / "tiny/DEBIAN"
        content.mkdir(parents=True)
        control = (
            "Package: tiny\nVersion: 1.0\nArchitecture: arm64\n"
            "Maintainer: nobody <nobody@example.com>\nDescription: tiny\n"
        )
        (content / "control").write_text(control)
        deb = folder / "tiny_1.0_arm64.deb"
        subprocess.run(
            ["dpkg-deb", "--build", "--root-owner-group", folder / "tiny", deb], check=True, capture_output=True
        )
        data = deb.read_bytes()
        self.packages = (
            f"{control}Filename: {deb.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
        )
        self.publish(self.packages)

    def publish(self, packages: str, *, in_release: str | None = None) -> None:
        """in_release: the list that the release file describes, where it is another one: a mirror in mid-sync."""
        (self.lists / "Packages").write_text(packages)
        listed = (in_release or packages).encode()
        (self.folder / "dists/bookworm/Release").write_text(
            "Suite: stable\nCodename: bookworm\nArchitectures: arm64\nComponents: main\nDate: Sat, 01 Nov 2025 "
            "00:00:00 UTC\n"
            f"SHA256:\n {hashlib.sha256(listed).hexdigest()} {len(listed)} main/binary-arm64/Packages\n"
        )


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        missing("apt", "a Debian or Ubuntu, or a container of one")
    made = Mirror(tmp_path / "mirror")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=made.folder))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    listed = tmp_path / "mirror.list"
    listed.write_text(f"deb [trusted=yes] http://127.0.0.1:{server.server_port}/ bookworm main\n")
    monkeypatch.setenv("EDGEKIT_APT_SOURCES", str(listed))
    yield made
    server.shutdown()
    server.server_close()
    thread.join()


def never(seconds: float) -> None:
    raise AssertionError(f"waited {seconds} s")


def test_packages_of_another_architecture_come_without_the_host_s_knowing(mirror, tmp_path):
    before = subprocess.run(["dpkg", "--print-foreign-architectures"], capture_output=True, check=True).stdout
    (deb,) = fetch(IMAGE, ["tiny"], tmp_path / "apt", sleep=never)
    assert deb.name == "tiny_1.0_arm64.deb"
    assert subprocess.run(["dpkg", "--print-foreign-architectures"], capture_output=True, check=True).stdout == before


def test_a_mirror_in_mid_sync_is_asked_again_after_a_while(mirror, tmp_path):
    mirror.publish(mirror.packages, in_release=mirror.packages + "\n\n")
    waited = []

    def synced(seconds: float) -> None:
        waited.append(seconds)
        mirror.publish(mirror.packages)

    assert len(fetch(IMAGE, ["tiny"], tmp_path / "apt", sleep=synced)) == 1
    assert waited == [5.0]


def test_a_mirror_that_stays_in_mid_sync_is_told_so(mirror, tmp_path):
    mirror.publish(mirror.packages, in_release=mirror.packages + "\n\n")
    waited = []
    with pytest.raises(MirrorUpdatingError, match=r"unexpected size.*The mirror is being updated"):
        fetch(IMAGE, ["tiny"], tmp_path / "apt", sleep=waited.append)
    assert waited == [5.0, 20.0, 60.0]


def test_a_package_that_changed_on_the_way_is_refused(mirror, tmp_path):
    deb = mirror.folder / "tiny_1.0_arm64.deb"
    deb.write_bytes(deb.read_bytes()[:-1] + b"x")
    with pytest.raises(UserlandError, match="Hash Sum mismatch"):
        fetch(IMAGE, ["tiny"], tmp_path / "apt", sleep=lambda seconds: None)


def test_a_package_that_the_release_lacks_is_named(mirror, tmp_path):
    with pytest.raises(
        UserlandError, match=r"Unable to locate package huge.*That Debian release does not have it"
    ) as told:
        fetch(IMAGE, ["tiny", "huge"], tmp_path / "apt", sleep=never)
    assert "Debian bookworm aarch64" in told.value.where


def test_a_mirror_that_is_away_is_one_sentence_with_the_way_on(mirror, tmp_path, monkeypatch):
    away = tmp_path / "away.list"
    away.write_text("deb [trusted=yes] http://127.0.0.1:9/ bookworm main\n")
    monkeypatch.setenv("EDGEKIT_APT_SOURCES", str(away))
    with pytest.raises(UserlandError, match=r"127\.0\.0\.1.*Check the network") as told:
        fetch(IMAGE, ["tiny"], tmp_path / "apt", sleep=never)
    assert "EDGEKIT_APT_SOURCES" in told.value.do


def test_without_apt_the_reason_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmulatorMissingError, match=r"apt-get is not installed.*Run this on Debian or Ubuntu"):
        fetch(IMAGE, ["tiny"], tmp_path / "apt")


DEB822 = """Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://tools.example/bookworm
Suites: nodistro
Components: main
"""


def test_the_host_s_sources_are_moved_to_the_other_release(tmp_path):
    (tmp_path / "etc/apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list.d/debian.sources").write_text(DEB822)
    kind, text = sources("trixie", environ={}, root=tmp_path)
    assert kind == "sources"
    assert "Suites: trixie trixie-updates\n" in text
    assert "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg" in text
    assert "tools.example" not in text


def test_one_line_sources_are_moved_and_others_left_out(tmp_path):
    (tmp_path / "etc/apt").mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list").write_text(
        "# a comment\ndeb [signed-by=/k.gpg] http://mirror.example/stable stable main\ndeb-src "
        "http://mirror.example/debian bookworm main\ndeb http://security.example/ bookworm-security main\ndeb "
        "http://mirror.example/ubuntu noble main\n"
    )
    assert sources("bookworm", environ={}, root=tmp_path) == (
        "list",
        "deb [signed-by=/k.gpg] http://mirror.example/stable bookworm main\ndeb http://security.example/ "
        "bookworm-security main\n",
    )


def test_a_host_that_is_no_debian_is_told_what_to_set(tmp_path):
    (tmp_path / "etc/apt").mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list").write_text("deb http://mirror.example/ubuntu noble main\n")
    with pytest.raises(UserlandError, match=r"no Debian sources.*Set EDGEKIT_APT_SOURCES to a file"):
        sources("bookworm", environ={}, root=tmp_path)
