"""Roots in which a good bundle answers: made once, copied for each test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hostile.board import asked
from hostile.make_corpus import CORPUS

from edgekit_runtime.engines.registry import available
from edgekit_runtime.install import install


@pytest.fixture
def child(monkeypatch):
    """For tests that are about the self-test's own process."""
    monkeypatch.delenv("EDGEKIT_SELFTEST", raising=False)


@pytest.fixture(autouse=True)
def _in_process(request, monkeypatch):
    """A process for each self-test takes a second, and most tests here are not about it."""
    if "child" not in request.fixturenames:
        monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")


@pytest.fixture(scope="session")
def furnished(tmp_path_factory) -> Path:
    """A root in which the good bundle answers."""
    if "litert" not in available():
        pytest.skip("LiteRT is not installed: pip install ai-edge-litert")
    root = tmp_path_factory.mktemp("furnished") / "root"
    assert install(CORPUS / "good" / "signed.ekb", root, asked()).state == "committed"
    return root


@pytest.fixture
def root(furnished, tmp_path) -> Path:
    """A copy of it, for one test."""
    shutil.copytree(furnished, tmp_path / "root", symlinks=True)
    return tmp_path / "root"
