"""Engines are quiet while they load, and an application has its stderr back, however many load at once."""

from __future__ import annotations

import os
import threading

import pytest

from edgekit_runtime.engines.registry import quiet_stderr


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.delenv("EDGEKIT_ENGINE_LOG", raising=False)


@pytest.mark.parametrize("first_out", ["first", "second"])
def test_two_that_load_at_once_give_stderr_back(capfd, first_out):
    """Whichever of them ends first: with a copy each, the later one restored the other's silence."""
    entered = {name: threading.Event() for name in ("first", "second")}
    leave = {name: threading.Event() for name in ("first", "second")}

    def load(name):
        with quiet_stderr():
            entered[name].set()
            leave[name].wait(30)

    threads = {}
    for name in ("first", "second"):  # the second begins while the first is quiet
        threads[name] = threading.Thread(target=load, args=(name,))
        threads[name].start()
        assert entered[name].wait(30)
    other = {"first": "second", "second": "first"}[first_out]
    leave[first_out].set()
    threads[first_out].join(30)
    os.write(2, b"still quiet")
    leave[other].set()
    threads[other].join(30)
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"


def test_a_failure_while_it_is_quiet_gives_stderr_back(capfd):
    with pytest.raises(ValueError, match="engine"), quiet_stderr():
        raise ValueError("engine")
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"
