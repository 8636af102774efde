"""Where a time on this machine is a time on the board."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgekit.building.candidates import is_here
from edgekit_profiles import load


@pytest.mark.parametrize(
    ("profile", "machine", "here"),
    [
        (load("x86-64"), "x86_64", True),
        (load("host-cpu"), "AMD64", True),
        (load("x86-64"), "aarch64", False),
        (load("raspberry-pi-4"), "aarch64", False),
        (replace(load("x86-64"), name="my-atom", measured_here=False), "x86_64", False),
    ],
    ids=["generic", "windows", "built on ARM", "board", "an x86 board of one's own"],
)
def test_only_a_profile_that_says_so_takes_this_machines_time(profile, machine, here):
    assert is_here(profile, machine) is here
