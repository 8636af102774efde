"""Real parts that a test needs and a laptop may lack.

A skip there, with the command that installs it; a failure in CI.
"""

from __future__ import annotations

import os

import pytest


def missing(what: str, command: str) -> None:
    """Never returns."""
    leave_out(f"{what} is missing; install it with: {command}")


def leave_out(why: str) -> None:
    """Never returns."""
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)
