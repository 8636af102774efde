"""Real parts that a test needs and a laptop may lack.

A skip there, with the command that installs it; a failure in CI.
"""

from __future__ import annotations

import os

import pytest

__all__ = ["missing"]


def missing(what: str, command: str) -> None:
    """Never returns."""
    message = f"{what} is missing; install it with: {command}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)
