"""`edgekit demo --fleet` and `--fallback`, with a network of some kilobytes in place of the demo's."""

from __future__ import annotations

import shutil
from contextlib import ExitStack

import eager_shadow
import numpy as np
import pytest
import tiny
from PIL import Image

from edgekit.demo.fallback import budget_for, fallback_demo, fleet_demo
from edgekit.demo.story import KIOSKS, RETURNING, Story, throttle_ms
from edgekit.fleet.rollout_runner import RollingPace
from edgekit.fleet.serve import FleetServer, Settings
from edgekit_runtime.bundle.manifest import Promise
from edgekit_runtime.telemetry.board_state import Board
from edgekit_runtime.telemetry.window import System


def test_an_alert_names_its_cause_and_a_wave_undoes_itself(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")
    monkeypatch.setattr(Board, "read", lambda board: System())  # neither hot nor full
    eager_shadow.use(monkeypatch)
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("EDGEKIT_TRUST", raising=False)
    store = f"sqlite:///{tmp_path / 'fleet.db'}"
    photo = np.tile(tiny.RED, (4, 4, 1))
    photo[14:18, 14:18] = tiny.GREEN[0, 0]
    pace = RollingPace(step_s=0.2, alerts_s=1.0, again_s=5.0, most_wait_s=1.0, compare_s=0.5)
    said = []
    with FleetServer(Settings(None, 0, store, "127.0.0.1:0", rolling=pace)) as server, ExitStack() as ends:
        bundle = tiny.bundle(tmp_path, promise=Promise(p99_ms=1e-6))  # as every promise is to a machine that is busy
        story = Story(server, store, bundle, photo, tmp_path, ends, said.append)
        for check in story.checks():
            assert not check.problem, (check.what, check.problem)
        assert {row.id: row.online for row in server.store.fleet()} == dict.fromkeys((*RETURNING, *KIOSKS), True)
    assert "alert 1: dock_camera 7 on raspberry-pi-4: p99" in caplog.text
    silent, line = said
    assert "aborted; shadow: its answers differ: 0.0% of" in silent
    assert "slower: p99" in line


def test_a_drill_is_slower_than_what_a_busy_machine_does_by_itself() -> None:
    busy = [40.0] * 95 + [500.0] * 5
    assert (throttle_ms([]), throttle_ms([20.0] * 50), throttle_ms(busy)) == (300.0, 300.0, 1000.0)


def test_a_throttled_device_leans_on_its_host_and_comes_home(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("EDGEKIT_TRUST", "")
    folder = tmp_path / "fallback"
    folder.mkdir()
    bundle = tiny.bundle(tmp_path)
    for profile in ("raspberry-pi-4", "host-cpu"):
        shutil.copyfile(bundle, folder / f"efficientnet_lite0-{profile}.ekb")
    for name in ("chelsea.png", "coffee.png"):
        Image.fromarray(tiny.RED).save(tmp_path / name)
    said = []
    with fallback_demo(tmp_path) as demo:
        for check in demo.checks(said.append):
            assert not check.problem, (check.what, check.problem)
    assert any("host" in line for line in said)


def test_the_fleet_of_the_demo_shows_each_board(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path / "state"))
    with fleet_demo(tiny.bundle(tmp_path), [tiny.RED, tiny.GREEN], tmp_path, listen="127.0.0.1:0") as demo:
        for check in demo.checks():
            assert not check.problem, (check.what, check.problem)
        rows = {row.id: row for row in demo.server.store.fleet()}
    assert sum(row.host for row in rows.values()) > 0
    assert sum(row.hits for row in rows.values()) > 0


@pytest.mark.parametrize(("took_ms", "budget_ms"), [([5.0] * 20, 150.0), ([5.0] * 19 + [90.0], 360.0)])
def test_the_budget_of_the_fallback_follows_what_the_device_takes(took_ms, budget_ms):
    assert budget_for(took_ms) == budget_ms
