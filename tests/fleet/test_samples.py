"""Doubtful inputs come home: from a model on a board, over a real broker, to a folder that a build reads."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import tiny
from click.testing import CliRunner
from fleet.boards import birth
from mosquitto import Mosquitto

from edgekit.cli.main import cli
from edgekit.fleet.ingest import Ingest, Pace
from edgekit.fleet.samples import new_key, pull, read_key
from edgekit.fleet.store.databases import SqliteStore
from edgekit.fleet.store.fleet_errors import FleetError
from edgekit.fleet.store.messages import parse_event
from edgekit_converters.data.open import open_dataset
from edgekit_runtime import TelemetryOptions, open_bundle
from edgekit_runtime.serving.doubtful import is_close
from edgekit_runtime.system.errors import TelemetryError, WindowError
from edgekit_runtime.telemetry.link import Broker
from edgekit_runtime.telemetry.messages import encode_part
from edgekit_runtime.telemetry.samples import SampleKeeper, read_public, seal, unseal
from edgekit_runtime.telemetry.window import About, Seal, sealed_payload

pytest.importorskip("paho.mqtt")
ABOUT = About("porch-1", "tiny", "1", "f" * 12, "x86-64")
MIXED = tiny.RED // 2 + tiny.BLUE // 2
"""Between two classes."""


@pytest.fixture
def key(tmp_path):
    new_key(tmp_path / "builder.key")
    return tmp_path / "builder.key"


def public(key):
    return key.with_name("builder.pub.pem")


def body(fields):
    return encode_part(fields, device="porch-1", boot=1, t0_ms=0, clock_ok=True)


def parts_of(keeper, waiting=0):
    return [parse_event(sealed_payload(one, Seal("0" * 16, n + 1, 1)), "porch-1").sample
            for n, one in enumerate(keeper.take(waiting, body))]  # fmt: skip


def doubtful_input(model):
    """A picture whose answer the model is not sure of."""
    name = model.contract.outputs[0].name
    for red in range(0, 256, 4):
        for blue in range(0, 256, 4):
            picture = tiny.colour(red, 0, blue)
            if is_close(model.predict(picture).outputs[name], model.contract.scores):
                return picture
    raise AssertionError("the tiny model is always sure")


def test_what_a_board_doubted_is_read_by_the_next_build(tmp_path, key, monkeypatch):
    monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path / "state"))
    bundle, file = tiny.bundle(tmp_path), tmp_path / "fleet.db"
    with open_bundle(bundle, cache=False) as model:
        unsure = doubtful_input(model)
    with Mosquitto(tmp_path) as broker:
        store = SqliteStore.open(file)
        ingest = Ingest(Broker.parse(broker.url), store, Pace(wait_s=0.05, chores_s=0.5, most_wait_s=0.5))
        ingest.start()
        told = TelemetryOptions(broker.url, "porch-1", 0.3, tmp_path / "porch-1.db", samples=public(key))
        with open_bundle(bundle, cache=False, telemetry=told) as model:
            until = time.monotonic() + 60
            while not list(store.samples()):
                assert time.monotonic() < until, model.stats()
                model.predict(tiny.RED)
                assert model.predict(unsure).source == "device"
                time.sleep(0.1)
            assert model.stats().faults == {}
        ingest.close()
        assert store.select("SELECT count(*) FROM event WHERE kind = 'sample'") == [(0,)]
        assert not any(b"in_image" in (row[0] or b"") for row in store.select("SELECT payload FROM win"))
        store.close()
    for place in (tmp_path / "porch-1.db", file):
        assert unsure.tobytes() not in place.read_bytes()
    found = CliRunner().invoke(
        cli, ["fleet", "samples", "pull", "--key", str(key), "-o", str(tmp_path / "field"), "--store",
              f"sqlite:///{file}", "--json"],
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    folder = tmp_path / "field" / "tiny"
    said = json.loads(found.stdout)
    assert (list(said["folders"]), said["left_out"]) == ([str(folder)], {})
    assert said["folders"][str(folder)] == said["new"] >= 1
    items = list(open_dataset(folder, tiny.CONTRACT))
    assert all(np.array_equal(one.inputs["image"], unsure) for one in items)
    (first, *_) = json.loads((folder / "samples.json").read_text())["samples"]
    assert (first["device"], first["why"], first["model"], first["version"]) == ("porch-1", "low-margin", "tiny", "1")
    again = CliRunner().invoke(cli, ["fleet", "samples", "delete", "--store", f"sqlite:///{file}", "--json"])
    assert json.loads(again.stdout)["parts"] >= 1
    with closing(SqliteStore.open(file)) as store:
        assert list(store.samples()) == []


def test_only_the_builders_key_opens_it_and_no_byte_may_change(tmp_path, key):
    other = tmp_path / "other.key"
    new_key(other)
    sealed = seal(read_public(public(key)), b"a picture" * 1000)
    assert b"a picture" not in sealed
    assert unseal(read_key(key), sealed) == b"a picture" * 1000
    assert seal(read_public(public(key)), b"a picture" * 1000) != sealed
    with pytest.raises(TelemetryError):
        unseal(read_key(other), sealed)
    for place in (0, 4, 40, 80, len(sealed) - 1):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(TelemetryError):
            unseal(read_key(key), bytes(changed))
    with pytest.raises(TelemetryError):
        unseal(read_key(key), sealed[:20])
    assert (key.stat().st_mode & 0o777) == 0o600
    with pytest.raises(TelemetryError, match="public key"):
        read_public(key)
    with pytest.raises(FleetError, match="private key"):
        read_key(public(key))
    with pytest.raises(FleetError, match="there already"):
        new_key(key)


def test_a_day_and_the_bytes_that_wait_are_bounded_also_over_restarts(key):
    keeper = SampleKeeper(public(key), 4.0, 3, ABOUT)
    for red in range(9):
        keeper.offer(lambda red=red: {"image": tiny.colour(red, 0, 0)}, {"probs": np.zeros(4)}, "low-margin")
    assert len(parts_of(keeper)) == 3
    after = SampleKeeper(public(key), 4.0, 3, ABOUT)
    after.resume(keeper.note)
    after.offer(lambda: {"image": tiny.RED}, {"probs": np.zeros(4)}, "low-margin")
    assert parts_of(after) == []
    full = SampleKeeper(public(key), 0.001, 3, ABOUT)
    full.offer(lambda: {"image": tiny.RED}, {"probs": np.zeros(4)}, "low-margin")
    assert parts_of(full, waiting=900) == []


def test_an_input_that_comes_again_is_kept_once_a_day_and_takes_no_others_place(key):
    keeper = SampleKeeper(public(key), 4.0, 2, ABOUT)
    for _ in range(2):
        keeper.offer(lambda: {"image": tiny.RED}, {"probs": np.zeros(4)}, "low-margin")
    assert len(parts_of(keeper)) == 1
    for why in ("shadow", "low-margin"):
        keeper.offer(lambda: {"image": tiny.RED}, {"probs": np.zeros(4)}, why)
        assert parts_of(keeper) == []
    keeper.offer(lambda: {"image": tiny.BLUE}, {"probs": np.zeros(4)}, "low-margin")
    assert len(parts_of(keeper)) == 1
    assert not keeper.open


def test_a_large_sample_travels_in_parts_that_fit_a_message(key, tmp_path):
    keeper = SampleKeeper(public(key), 4.0, 3, ABOUT)
    noise = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
    keeper.offer(lambda: {"image": noise}, {"probs": np.arange(4.0)}, "shadow")
    parts = parts_of(keeper)
    assert [part.part for part in parts] == list(range(len(parts)))
    assert len(parts) == parts[0].parts > 4
    opened = unseal(read_key(key), b"".join(part.data for part in parts))
    file = tmp_path / "one.npz"
    file.write_bytes(opened)
    with np.load(file) as arrays:
        assert np.array_equal(arrays["in_image"], noise)


@pytest.mark.parametrize(
    ("good", "bad"),
    [(b'"part":0', b'"part":1'), (b'"parts":1', b'"parts":9999'), (b'"data":"', b'"data":"!'), (b'"id":"', b'"id":"G')],
)
def test_a_part_that_makes_no_sense_is_refused(key, good, bad):
    keeper = SampleKeeper(public(key), 4.0, 3, ABOUT)
    keeper.offer(lambda: {"image": tiny.RED}, {"probs": np.zeros(4)}, "host")
    (one,) = keeper.take(0, body)
    payload = sealed_payload(one, Seal("0" * 16, 1, 1))
    assert good in payload
    with pytest.raises(WindowError):
        parse_event(payload.replace(good, bad, 1), "porch-1")


def test_what_a_stranger_sealed_is_left_out_and_counted(tmp_path, key):
    store = SqliteStore.open(Path(":memory:"))
    store.commit([], [birth("porch-1")])
    for number, data in enumerate((b"no zip", b"PK\x03\x04 half a zip")):
        sealed = seal(read_public(public(key)), data)
        store.execute("INSERT INTO sample VALUES (1, ?, 0, 1, ?, 0)", (f"{number:016x}", sealed))
    store.execute("INSERT INTO sample VALUES (1, 'half', 0, 2, x'00', 0)")
    done = pull(store, read_key(key), tmp_path / "field")
    assert (done.new, dict(done.left_out), done.folders) == (0, {"malformed": 2}, {})
    store.close()


def test_nothing_is_kept_unless_its_owner_asks(tmp_path):
    with pytest.raises(TelemetryError):
        SampleKeeper(tmp_path / "none.pem", 4.0, 3, ABOUT)
    assert TelemetryOptions("mqtt://127.0.0.1", "porch-1").samples is None
