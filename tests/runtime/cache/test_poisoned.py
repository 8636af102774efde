"""What others wrote into a tier is no answer: it is counted, logged once and deleted, and the model computes its own.

The poison is sealed as well as one can who has no secret: the checksum is no secret.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sqlite3
import struct

import numpy as np
import pytest
import tiny
from redis_server import RedisServer

from edgekit_runtime import CacheOptions, open_bundle
from edgekit_runtime.cache.identity import identify
from edgekit_runtime.cache.memory_tier import MISS, moment
from edgekit_runtime.cache.stored_answers import KeptForm
from edgekit_runtime.cache.tiered import Worth
from edgekit_runtime.system.sealed import seal

PROBS = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
NAN, INF, NONE = float("nan"), float("inf"), None
POISON = {
    "NaN": {"probs": PROBS * NAN},
    "infinity": {"probs": PROBS + INF},
    "minus infinity in one place": {"probs": np.array([0.1, 0.2, -INF, 0.4], np.float32)},
    "infinity of another width": {"probs": PROBS.astype("<f8") * 1e300},
    "another name": {"scores": PROBS},
    "one name more": {"probs": PROBS, "more": PROBS},
    "no output": {},
    "one value less": {"probs": PROBS[:3]},
    "another shape": {"probs": PROBS.reshape(2, 2)},
    "a batch axis": {"probs": PROBS[None]},
    "whole numbers": {"probs": np.arange(4, dtype="<i4")},
    "complex numbers": {"probs": PROBS.astype("<c8")},
    "truth values": {"probs": PROBS > 0.2},
    "text": {"probs": np.array(["a", "b", "c", "d"])},
    "bytes": {"probs": np.array([b"a", b"b", b"c", b"d"])},
    "dates": {"probs": np.zeros(4, "<M8[s]")},
}  # fmt: skip
HEADERS = {
    "None": NONE,
    "a number": 7,
    "a list of numbers": [1, 2],
    "a negative side": [["probs", "<f4", [-4]]],
    "a side of 2^62": [["probs", "<f4", [1 << 62, 1 << 62]]],
    "more than there is": [["probs", "<f4", [1 << 20]]],
    "objects": [["probs", "|O", [4]]],
    "records of objects": [["probs", [["a", "|O"]], [4]]],
    "no dtype": [["probs", "hello", [4]]],
    "a dtype that is a broken expression": [["probs", "<f4,(", [4]]],
    "a name that is none": [[{}, "<f4", [4]]],
}


def packed(key, table, parts, form, wall_s=None):
    """As `KeptForm.pack` writes it, of anything."""
    born = moment()
    header = json.dumps(table).encode()
    data = bytearray(struct.pack("<ddQH", wall_s or born.wall_s, born.up_s, born.boot, len(header)) + header)
    for part in parts:
        data += bytes(-len(data) % 16)
        data += part
    return bytes(data + seal(form.namespace + key, bytes(data), form.secret))


def poisoned(kind, key, form):
    if kind in HEADERS:
        return packed(key, HEADERS[kind], [bytes(64)], form)
    if kind == "no date":
        return packed(key, [["probs", "<f4", [4]]], [PROBS.tobytes()], form, wall_s=NAN)
    outputs = POISON[kind]
    table = [[name, array.dtype.str, array.shape] for name, array in outputs.items()]
    return packed(key, table, [array.tobytes() for array in outputs.values()], form)


class Disk:
    def __init__(self, folder):
        self.path = folder / "answers.db"
        self.options = {"disk": self.path}

    def write(self, key, form, body):
        connection = sqlite3.connect(self.path)
        (changed,) = connection.execute("SELECT count(*) FROM body WHERE key = ?", (key,)).fetchone()
        assert changed == 1
        connection.execute("UPDATE body SET data = ? WHERE key = ?", (body, key))
        connection.commit()
        connection.close()

    def bodies(self):
        connection = sqlite3.connect(self.path)
        found = dict(connection.execute("SELECT key, data FROM body").fetchall())
        connection.close()
        return found

    def stats(self, model):
        return model.stats().cache.disk


class Redis:
    def __init__(self, url):
        import redis

        self.server = redis.Redis.from_url(url)
        self.server.flushall()
        self.options = {"shared": url}

    def write(self, key, form, body):
        name = b"edgekit:2:" + form.namespace.hex().encode() + b":" + key
        assert self.server.exists(name)
        self.server.set(name, body)

    def bodies(self):
        return {name.split(b":", 3)[3]: self.server.get(name) for name in self.server.keys("edgekit:*")}

    def stats(self, model):
        return model.stats().cache.shared


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture(params=["disk", "shared"])
def tier(request, tmp_path):
    return Disk(tmp_path) if request.param == "disk" else Redis(request.getfixturevalue("redis_url"))


@pytest.fixture
def bundle(tmp_path):
    return tiny.bundle(tmp_path)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """The tests judge what comes out, not how soon."""
    from edgekit_runtime.cache import shared

    monkeypatch.setattr(shared, "WAIT_S", 5.0)
    monkeypatch.setattr(
        shared.SharedCache.__init__, "__kwdefaults__", shared.SharedCache.__init__.__kwdefaults__ | {"wait_s": 5.0}
    )


def opened(bundle, tier, **more):
    return open_bundle(bundle, cache=CacheOptions(memory_mb=0, **tier.options, **more))


def behind(model):
    return model._journey.cache._disk


def filled(bundle, tier, *pictures, **more):
    """The true answers, kept in the tier; the keys, and the form."""
    with opened(bundle, tier, **more) as model:
        form = behind(model)._form
        keys = [identify({"image": picture}, form.namespace)[0] for picture in pictures]
        answers = [model.predict(picture).outputs for picture in pictures]
        for key, outputs in zip(keys, answers, strict=True):  # whether it pays or not
            assert behind(model).put(key, outputs)
        assert behind(model).sync()
        true = [outputs["probs"].tolist() for outputs in answers]
    assert set(keys) <= set(tier.bodies())
    return true, keys, form


def test_poison_is_no_answer(bundle, tier, caplog, monkeypatch):
    monkeypatch.setattr(Worth, "_decide", lambda self, now_s: None)  # on a busy machine so many may not pay
    (true,), (key,), form = filled(bundle, tier, tiny.RED)
    caplog.set_level(logging.WARNING, "edgekit_runtime")
    believed, kinds = [], [*POISON, *HEADERS, "no date"]
    with opened(bundle, tier) as model:
        for number, kind in enumerate(kinds, 1):
            tier.write(key, form, poisoned(kind, key, form))
            answer = model.predict(tiny.RED)
            if answer.source != "device" or tier.stats(model).refused != number:
                believed.append(kind)
            assert answer.outputs["probs"].tolist() == true
            assert behind(model).put(key, answer.outputs)
            assert behind(model).sync()
            assert model.predict(tiny.RED).source == "cache"  # its own has taken the place
        assert believed == []
        assert model.stats().faults == {}
        assert tier.stats(model).refused == len(kinds)
    assert len(caplog.messages) == 1
    assert "not what was written there" in caplog.text


def test_answers_whose_places_were_exchanged_are_none(bundle, tier, caplog):
    true, (red, blue), form = filled(bundle, tier, tiny.RED, tiny.BLUE)
    assert true[0] != true[1]
    bodies = tier.bodies()
    tier.write(red, form, bodies[blue])
    tier.write(blue, form, bodies[red])
    with opened(bundle, tier) as model:
        answers = [model.predict(picture).outputs["probs"].tolist() for picture in (tiny.RED, tiny.BLUE)]
        assert answers == true
        assert tier.stats(model).refused == 2
        (line,) = re.findall(r"edgekit_cache_refused_total\{.*\} .*", model.metrics_text())
        assert line.endswith("} 2")
    assert len(caplog.messages) == 1  # once, not for every request


def test_another_models_answer_is_none(bundle, tier, tmp_path):
    """Its own key, and the bytes of the same request to version 2."""
    (true,), (key,), form = filled(bundle, tier, tiny.RED)
    (tmp_path / "v2").mkdir()
    _, (other,), _ = filled(tiny.bundle(tmp_path / "v2", version="2"), tier, tiny.RED)
    tier.write(key, form, tier.bodies()[other])
    with opened(bundle, tier) as model:
        answer = model.predict(tiny.RED)
        assert (answer.source, answer.outputs["probs"].tolist()) == ("device", true)
        assert tier.stats(model).refused == 1


def test_what_is_refused_is_deleted_where_nothing_takes_its_place(bundle, tier):
    _, keys, form = filled(bundle, tier, tiny.RED, tiny.BLUE)
    tier.write(keys[0], form, b"")
    with opened(bundle, tier) as model:
        behind(model).stale(keys[0])
        tier.write(keys[0], form, b"x" * 100)
        behind(model).find(keys[0])
        assert behind(model).sync()
        assert list(tier.bodies()) == [keys[1]]


@pytest.mark.parametrize("value", ["text", 7, 1.5, None, b""])
def test_a_column_of_another_type_is_a_miss(bundle, tmp_path, value):
    tier = Disk(tmp_path)
    (true,), _, _ = filled(bundle, tier, tiny.RED)
    for table, column in (("body", "data"), ("body", "key"), ("body", "model"), ("place", "used"), ("place", "id")):
        connection = sqlite3.connect(tier.path)
        with contextlib.suppress(sqlite3.IntegrityError):  # a rule of the table's own
            connection.execute(f"UPDATE {table} SET {column} = ?", (value,))
        connection.commit()
        connection.close()
        with opened(bundle, tier) as model:
            for _ in range(2):
                assert model.predict(tiny.RED).outputs["probs"].tolist() == true
            assert behind(model).sync()
            assert model.stats().faults == {}
            assert model.stats().cache.disk.trouble is None


def test_with_a_secret_nobody_else_can_make_an_answer(bundle, redis_url, tmp_path, monkeypatch):
    tier = Redis(redis_url)
    monkeypatch.setenv("CACHE_KEY", bytes(range(100, 132)).hex())
    secret = {"shared_secret": "env:CACHE_KEY"}
    (true,), (key,), form = filled(bundle, tier, tiny.RED, **secret)
    kept = tier.bodies()[key]
    wrong = {"probs": PROBS}
    tier.write(key, form, KeptForm(form.namespace, form.outputs).pack(key, wrong, moment()))
    with opened(bundle, tier, **secret) as model:
        answer = model.predict(tiny.RED)
        assert (answer.source, answer.outputs["probs"].tolist()) == ("device", true)
        assert tier.stats(model).refused == 1
    tier.write(key, form, kept)
    with opened(bundle, tier) as model:  # a host that was not told
        assert model.predict(tiny.RED).source == "device"


def test_answers_that_are_not_finite_are_never_kept(tmp_path):
    from edgekit_runtime.cache.disk import DiskCache

    disk = DiskCache(tmp_path / "answers.db", KeptForm(b"model"))
    disk.put(bytes(32), {"y": np.array([NAN])})
    assert disk.sync()
    assert (disk.get(bytes(32)) is not MISS, disk.stats().lost, disk.stats().refused) == (False, 1, 0)
    disk.close()
