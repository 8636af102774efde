"""A model that was opened before a fork is told from one that was opened after it."""

from __future__ import annotations

import os
import sys

import pytest

from edgekit_runtime.errors import ForkedError
from edgekit_runtime.forked import ForkGuard

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def in_child(check):
    """Run check in a forked child; its truth, by the exit code."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_the_child_knows_and_the_parent_is_not_touched():
    guard = ForkGuard()
    assert in_child(lambda: guard.forked)
    assert not guard.forked


def test_what_is_opened_in_the_child_is_good_there():
    assert in_child(lambda: not ForkGuard().forked)


def test_a_grandchild_knows_too():
    guard = ForkGuard()
    assert in_child(lambda: in_child(lambda: guard.forked))


def test_the_error_says_what_to_do():
    error = ForkGuard().error()
    assert isinstance(error, ForkedError)
    assert error.code == "forked"
    assert "spawn" in error.do


def test_a_guard_that_is_gone_is_forgotten():
    guard = ForkGuard()
    del guard
    assert in_child(lambda: True)
