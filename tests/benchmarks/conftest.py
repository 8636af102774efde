"""Scripts of a benchmark import each other by name, and several folders have a script of one name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def scripts_are_forgotten():
    """After each test, so that the next one imports those of its own folder."""
    yield
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and "." not in name and Path(file).is_relative_to(BENCHMARKS):
            del sys.modules[name]
