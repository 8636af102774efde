"""`edgekit demo --fleet` and `--fallback`, with a network of some kilobytes in place of the demo's."""

from __future__ import annotations

import shutil

import pytest
import tiny
from PIL import Image

from edgekit.demo.fallback import budget_for, fallback_demo, fleet_demo
from edgekit.demo.story import throttle_ms


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
