"""The second half of `edgekit demo --fleet`, with a network of some kilobytes in place of the demo's."""

from __future__ import annotations

import numpy as np
import tiny

from edgekit.demo.story import Story
from edgekit.fleet.rolling import RollingPace
from edgekit.fleet.serve import FleetServer, Settings
from edgekit_runtime.bundle.manifest import Promise


def test_an_alert_names_its_cause_and_a_wave_undoes_itself(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("EDGEKIT_TRUST", raising=False)
    store = f"sqlite:///{tmp_path / 'fleet.db'}"
    photo = tmp_path / "red.npy"
    np.save(photo, tiny.RED)
    pace = RollingPace(step_s=0.2, alerts_s=1.0, again_s=5.0, most_wait_s=1.0)
    said = []
    with FleetServer(Settings(None, 0, store, "127.0.0.1:0", rolling=pace)) as server:
        bundle = tiny.bundle(tmp_path, promise=Promise(p99_ms=1e-6))  # as every promise is to a machine that is busy
        story = Story(server, store, bundle, tiny.RED, tmp_path, said.append)
        for check in story.checks():
            assert not check.problem, (check.what, check.problem)
    assert "alert 1: dock_camera 7 on raspberry-pi-4: p99" in caplog.text
    (line,) = said
    assert "slower: p99" in line
