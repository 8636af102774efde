"""`edgekit fleet serve` as a person runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request

import pytest
from fleet.boards import birth
from ports import closed_port

from edgekit.fleet.store.databases import SqliteStore


def test_serves_until_ctrl_c(tmp_path):
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", "fleet", "serve", "--embedded-broker",
               "--broker-port", "0", "--listen", "127.0.0.1:0", "--json"]  # fmt: skip
    child = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said = json.loads(child.stdout.readline())
        assert said["broker"].startswith("mqtt://127.0.0.1:")
        assert b"No board has reported yet" in urllib.request.urlopen(said["url"], timeout=30).read()
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)
    finally:
        child.kill()
    assert (child.returncode, out) == (0, "")
    assert "Traceback" not in err
    assert (tmp_path / "fleet.db").exists()


@pytest.mark.parametrize("options", [[], ["--broker", "mqtt://h", "--embedded-broker"]])
def test_exactly_one_broker_is_named(in_process, options):
    ran = in_process("fleet", "serve", *options)
    assert ran.code == 2
    assert "either --broker URL or --embedded-broker" in ran.err


def test_boards_are_forgotten_all_or_none(in_process, tmp_path):
    store = SqliteStore.open(tmp_path / "fleet.db")
    names = ("porch-1", "porch-2", "porch-3")
    store.commit([], [birth(name) for name in names])
    where = ("--store", f"sqlite:///{tmp_path}/fleet.db", "--json")
    ran = in_process("fleet", "forget", "porch-1", "porch-9", *where)
    assert (ran.code, ran.json["error"]["where"]) == (1, "porch-9")
    assert [row.id for row in store.fleet()] == [*names]
    ran = in_process("fleet", "forget", "porch-1", "porch-3", "porch-1", *where)
    assert (ran.code, ran.json["forgotten"]) == (0, ["porch-1", "porch-3"])
    assert [row.id for row in store.fleet()] == ["porch-2"]
    store.close()


WRONG = {
    "a broker that is none": ["--broker", "http://user:secret@h"],
    "a store that is none": ["--broker", "mqtt://127.0.0.1:1", "--store", "mysql://secret@h"],
    "a folder that is not there": ["--broker", "mqtt://127.0.0.1:1", "--store", "sqlite:///no/such/folder/x.db"],
    "an address that is none": ["--broker", "mqtt://127.0.0.1:1", "--listen", "8787"],
    "an address of somebody else": ["--broker", "mqtt://127.0.0.1:1", "--listen", "192.0.2.1:8787"],
}


@pytest.mark.parametrize("options", WRONG.values(), ids=WRONG)
def test_what_makes_no_sense_is_one_sentence(in_process, options):
    listen = [] if "--listen" in options else ["--listen", "127.0.0.1:0"]
    ran = in_process("fleet", "serve", *options, *listen, "--json")
    assert ran.code == 1
    assert set(ran.json["error"]) == {"code", "what", "where", "do"}
    assert "secret" not in ran.out + ran.err


@pytest.mark.parametrize("option", ["--fleet", "--fallback"])
def test_a_demo_without_a_broker_says_so_before_it_builds(in_process, monkeypatch, tmp_path, option):
    monkeypatch.setitem(sys.modules, "amqtt", None)
    ran = in_process("demo", option, "--folder", tmp_path / "demo")
    assert ran.code == 1
    assert "needs the 'fleet' extra" in ran.err
    assert not (tmp_path / "demo").exists()


def test_a_simulation_that_no_fleet_hears_says_what_to_check(edgekit):
    pytest.importorskip("paho.mqtt")
    with closed_port() as port:
        url = f"mqtt://127.0.0.1:{port}"
        ran = edgekit("fleet", "simulate", "--broker", url, "--devices", "1", "--minutes", "0.01")
    assert ran.code == 1
    assert "0 of 1 boards heard from the fleet" in ran.err
    assert ran.err.endswith("Check the URL, the password, and that `edgekit fleet serve` runs on this broker\n")
