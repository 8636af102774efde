"""A cold start is a process of its own, the first open ever is told by itself, and trouble is no error."""

from __future__ import annotations

import sys

import pytest
import tiny

from edgekit.bench.measure import ColdStart, cold_start


def test_the_first_open_ever_is_told_by_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path / "state"))
    path = tiny.bundle(tmp_path)
    first, second = cold_start(path, {"cache": False}), cold_start(path, {"cache": False})
    assert first.first_ms > 0
    assert first.start_ms > 0
    assert second.first_ms is None
    assert second.start_ms > 0
    if sys.platform == "linux":
        assert 5 < second.rss_mb < 2000


@pytest.mark.parametrize("trouble", ["no bundle", "no such option", "no Python"])
def test_a_start_that_fails_tells_nothing_and_raises_nothing(tmp_path, monkeypatch, trouble):
    path, options = tiny.bundle(tmp_path), {}
    if trouble == "no bundle":
        path.write_bytes(b"EKB")
    elif trouble == "no such option":
        options = {"colour": "red"}
    else:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    assert cold_start(path, options) == ColdStart()


def test_nothing_in_the_folder_it_is_started_from_is_imported(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('imported')")
    path = tiny.bundle(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cold_start(path, {}).start_ms is not None
