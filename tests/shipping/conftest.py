"""A board that is this machine, a bundle for it, and a package of real wheels, made once."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from parts import missing
from shipping.shelf import Shelf

from edgekit.shipping.package import PackageRequest, PackageResult, pack
from edgekit_profiles import Profile, load

REAL_ENGINE = "tflite-runtime" if sys.version_info[:2] == (3, 11) else "litert"
"""The one with the fewest wheels, where it has one for this Python."""


@pytest.fixture(scope="session")
def this_board() -> Profile:
    """The profile x86-64 with the Python and glibc that are really here."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        missing("an x86-64 Linux machine", "the package is installed on the machine that runs the tests")
    board = load("x86-64")
    glibc = (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return replace(board, os=replace(board.os, python=python, glibc=glibc, debian=""))


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory) -> Path:
    return tiny.bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="session")
def real_package(this_board, tiny_bundle, tmp_path_factory) -> PackageResult:
    """Real wheels from the index, for this machine."""
    output = tmp_path_factory.mktemp("package") / "usb"
    service = "{python} -m http.server --directory {prefix}"
    return pack(
        PackageRequest(tiny_bundle, this_board, output, engine=REAL_ENGINE, service=service, allow_unsigned=True)
    )


@pytest.fixture
def shelf(tmp_path, monkeypatch) -> Shelf:
    """Small wheels for the boards that the tests pack for; uv finds nothing else."""
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path / "state"))
    shelf = Shelf(tmp_path / "shelf", monkeypatch)
    shelf.stock()
    return shelf
