"""Under the memory of a small board bundles open and answer as ever; under far too little they do not pretend to."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import tiny

HERE = Path(__file__).resolve().parents[2] / "benchmarks" / "runtime"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="caps are enforced by Linux")


@pytest.fixture
def caps(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(HERE))
    import memory_cap

    return memory_cap


@pytest.mark.convert
@pytest.mark.parametrize("board", ["raspberry-pi-4", "raspberry-pi-5"])
def test_the_demos_bundles_answer_within_a_small_boards_address_space(caps, demo, board: str):
    path = demo.folder / "bundles" / f"efficientnet_lite0-{board}.ekb"
    plain, capped = caps.run(path, None, "none"), caps.run(path, 512, "address space")
    assert (plain.error, capped.error) == ("", "")
    assert capped.answers == plain.answers
    assert capped.peak_rss_mb <= capped.peak_mapped_mb <= 512


@pytest.mark.convert
def test_a_process_and_the_child_that_tests_the_bundle_stay_below_512_mb_together(caps, demo):
    path = demo.folder / "bundles" / "efficientnet_lite0-raspberry-pi-4.ekb"
    run = caps.run(path, 512, "cgroup")
    if run is None:
        pytest.skip("this user may make no memory cgroup: run it as root to have one")
    assert (run.error, run.held) == ("", True)
    # Pages of libraries that another group read first are charged to that one, so the sum may be below one's own.
    assert 0 < run.together_mb < 512
    assert run.peak_rss_mb < 512


def test_far_too_little_is_an_error_and_no_answer(caps, tmp_path: Path):
    """The twin that shows that the cap is enforced."""
    path = tiny.bundle(tmp_path)
    assert caps.run(path, None, "none").held
    run = caps.run(path, 48, "address space")
    assert run.error
    assert not run.held
    assert run.answers == ""


def test_a_cgroup_is_gone_after_it_was_used(caps, tmp_path: Path):
    with caps.cgroup(256) as group:
        if group is None:
            pytest.skip("this user may make no memory cgroup: run it as root to have one")
        assert str(os.getpid()) in group.folder.name
        assert group.folder.is_dir()
    assert not group.folder.exists()
