"""One process that forks for all tests of a module, and what it installs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from install_faults.forks import Forks, need_strace
from install_faults.scenes import Kit, make_kit


@pytest.fixture(scope="package")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    need_strace()
    folder = tmp_path_factory.mktemp("faults")
    with Forks(folder / "forks") as forks:
        yield make_kit(folder / "kit", forks)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"
