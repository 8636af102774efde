"""A machine of these tests has no GPU, whatever drivers are installed."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_vulkan_driver(monkeypatch):
    monkeypatch.setenv("VK_DRIVER_FILES", "/nonexistent")
