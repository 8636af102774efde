"""The self-test and the trial run in this process (EDGEKIT_SELFTEST=in-process, as under emulation) unless a test is
about the child: a child takes most of a second to start.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from downloads import make_certificate
from installed import UNSIGNED, Maker

from edgekit_runtime.install import InstallOptions, InstallResult, install


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """No trust store of the developer's own; no child where the test does not ask for one."""
    monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("EDGEKIT_TRUST", raising=False)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker(tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of `localhost`, signed by itself, with its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def put(root: Path):
    """Install into `root`; the board's owner allows unsigned bundles unless told otherwise."""

    def put(source: Path | str, asked: InstallOptions = UNSIGNED, **changes) -> InstallResult:
        return install(source, root, replace(asked, **changes))

    return put
