"""A candidate that answers in silence beside the active bundle: from the order to the window."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from dataclasses import replace

import eager_shadow
import numpy as np
import pytest
import tiny
from installed import BOARD, QUICK, Maker, new_key

from edgekit.fleet.store.messages import parse_window
from edgekit.packaging.bundle_options import BundleTerms
from edgekit_runtime import open_bundle
from edgekit_runtime.install import InstallOptions, install
from edgekit_runtime.install.installing import fetch_shadow
from edgekit_runtime.install.shadow_child import give_way
from edgekit_runtime.install.shadowing import end_shadow, read_shadow, shadow_file
from edgekit_runtime.serving.shadow import Shadow, agrees, hindrance
from edgekit_runtime.system.errors import IntegrityError, SignatureError
from edgekit_runtime.telemetry.histogram import CountedWindow, Histogram, ShadowWindow
from edgekit_runtime.telemetry.window import About, Report, Seal, System, encode, sealed_payload

COLOURS = (tiny.RED, tiny.GREEN, tiny.BLUE, tiny.DARK)
DARKER = replace(
    tiny.CONTRACT,
    inputs=(replace(tiny.CONTRACT.inputs[0], image=replace(tiny.IMAGE, mean=(230.0, 0.0, 0.0))),),
)
"""Red pictures look dark to it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("shadow")


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("EDGEKIT_TRUST", raising=False)
    eager_shadow.use(monkeypatch)


@pytest.fixture(scope="module")
def key(folder):
    return new_key(folder)


@pytest.fixture(scope="module")
def made(folder):
    return Maker(folder)


@pytest.fixture
def options(key):
    return InstallOptions(trust=(key[1],), board=BOARD, proving=QUICK)


@pytest.fixture
def root(tmp_path, made, key, options):
    path = tmp_path / "root"
    install(bundle(made, key, "1"), path, options)
    return path


def bundle(made, key, version, **changes):
    return made(version, key=key[0], terms=BundleTerms(rollout_seq=int(version)), **changes)


def look(model):
    return model._look_at_shadow(System(), CountedWindow())


def tried(model, ask, least=24, seconds=120):
    """Ask until so many answers were compared; what was seen, and the active bundle's answers."""
    look(model)
    seen, answers, until = [], [], time.monotonic() + seconds
    while sum(one.n for one in seen) < least:
        assert time.monotonic() < until, seen
        for colour in COLOURS:
            answers.append(ask(colour))
            time.sleep(0.02)
        seen.append(look(model))
        assert not seen[-1].rests or seen[-1].rests == "busy", seen[-1]
    return seen, answers


WAYS = {
    "predict": lambda model: model.predict,
    "with a priority": lambda model: lambda colour: model.predict(colour, priority=3),
    "submit": lambda model: lambda colour: model.submit(colour).result(),
    "apredict": lambda model: lambda colour: asyncio.run(model.apredict(colour)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_worse_version_is_seen_and_no_caller_gets_its_answer(way, root, made, key, options):
    fetch_shadow(str(bundle(made, key, "2", contract=DARKER)), root, 1.0, options)
    with open_bundle(root, cache=False) as model:
        seen, answers = tried(model, WAYS[way](model))
        child = model._shadow._child.process.pid
    assert sum(one.same for one in seen) < sum(one.n for one in seen)
    assert {answer.top(1)[0].label for answer in answers[::4]} == {"red"}
    assert all(one.mb and one.ratios.count == one.n for one in seen if one.n)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_an_equal_version_agrees_and_the_journey_is_as_before_afterwards(root, made, key, options):
    fetch_shadow(str(bundle(made, key, "2")), root, 1.0, options)
    with open_bundle(root, cache=False) as model:
        before = model._journey.predict, dict(model._journey.__dict__)
        seen, _ = tried(model, model.predict)
        assert sum(one.same for one in seen) == sum(one.n for one in seen)
        end_shadow(root)
        assert look(model) is None
        assert model._journey.predict is before[0]
        assert model._journey.__dict__.keys() == before[1].keys()
        assert model.stats().faults == {}


@pytest.mark.parametrize("way", ["path", "bytes"])
def test_a_version_that_crops_otherwise_is_seen_on_encoded_pictures(way, root, made, key, options, tmp_path):
    """It gets the picture as it came, and decodes it by its own contract."""
    image = pytest.importorskip("PIL.Image")
    picture = np.tile(tiny.RED, (4, 4, 1))
    picture[14:18, 14:18] = tiny.GREEN[0, 0]
    image.fromarray(picture).save(tmp_path / "red.png")
    spec = replace(tiny.CONTRACT.inputs[0], image=replace(tiny.IMAGE, resize="center-crop", crop=0.05))
    fetch_shadow(str(bundle(made, key, "2", contract=replace(tiny.CONTRACT, inputs=(spec,)))), root, 1.0, options)
    given = tmp_path / "red.png" if way == "path" else (tmp_path / "red.png").read_bytes()
    with open_bundle(root, cache=False) as model:
        seen, answers = tried(model, lambda _: model.predict(given), least=4)
    assert [one.same for one in seen] == [0] * len(seen)
    assert {answer.top(1)[0].label for answer in answers} == {"red"}


def test_everything_else_on_the_board_goes_first():
    found = []

    def give_way_here():  # on Linux a thread has a priority of its own
        give_way()
        found.append((os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)))

    thread = threading.Thread(target=give_way_here)
    thread.start()
    thread.join()
    assert found == [(os.SCHED_IDLE, 19)]


def test_it_is_left_out_where_it_does_not_fit(root, made, key, options):
    fetch_shadow(str(bundle(made, key, "2")), root, 1.0, options)
    with open_bundle(root, cache=False) as model:
        task = model._journey.opened.held.shadow()
        shadow = Shadow(task, model._journey, room_mb=lambda: 20.0)
        shadow._thread.join(60)
        model.predict(tiny.RED)
        found = shadow.cut(System(), CountedWindow())
        shadow.close()
    assert (found.n, found.skipped, found.rests) == (0, 1, "memory")


def test_a_shadow_that_dies_is_named_and_nobody_notices(root, made, key, options):
    fetch_shadow(str(bundle(made, key, "2")), root, 1.0, options)
    with open_bundle(root, cache=False) as model:
        tried(model, model.predict, least=1)
        model._shadow._child.process.kill()
        until = time.monotonic() + 60
        while (found := look(model)).rests != "engine":
            assert time.monotonic() < until, found
            assert model.predict(tiny.RED).top(1)[0].label == "red"
            time.sleep(0.02)


def test_what_is_not_trusted_or_another_file_never_becomes_a_shadow(root, made, options, key, tmp_path):
    stranger = new_key(tmp_path, "mallory")
    with pytest.raises(SignatureError):
        fetch_shadow(str(bundle(made, stranger, "2")), root, 1.0, options)
    with pytest.raises(IntegrityError):
        fetch_shadow(str(bundle(made, key, "2")), root, 1.0, replace(options, sha256="0" * 64))
    assert read_shadow(root) is None
    fetch_shadow(str(bundle(made, key, "2")), root, 0.5, options)
    note = read_shadow(root)
    assert (note.share, shadow_file(root, note.sha256)) == (0.5, str(root / "shadow.ekb"))
    (root / "shadow.ekb").write_bytes(b"damaged")
    assert shadow_file(root, note.sha256) == ""
    (root / "shadow.json").write_text('{"format": 1, "share": "all"}')
    assert read_shadow(root) is None


@pytest.mark.parametrize(
    ("system", "counted", "word"),
    [
        (System(temp=74.0, cpu=50.0, mem=60.0, thr=0), CountedWindow(), ""),
        (System(temp=75.0), CountedWindow(), "hot"),
        (System(thr=4), CountedWindow(), "hot"),
        (System(mem=91.0), CountedWindow(), "memory"),
        (System(), CountedWindow(refused=1), "budget"),
        (System(), CountedWindow({"device": Histogram({0: 99})}, over_bundle=2), "budget"),
        (System(), CountedWindow({"device": Histogram({0: 300})}, over_budget=2), ""),
    ],
)
def test_when_it_rests(system, counted, word):
    assert hindrance(system, counted) == word


def test_agreement_is_of_decisions():
    mine = {"probs": np.array([0.6, 0.3, 0.1, 0.0], np.float32)}
    assert agrees(tiny.CONTRACT, mine, {"probs": np.array([0.4, 0.3, 0.2, 0.1], np.float32)})
    assert not agrees(tiny.CONTRACT, mine, {"probs": np.array([0.3, 0.6, 0.1, 0.0], np.float32)})
    assert not agrees(tiny.CONTRACT, mine, {"other": mine["probs"]})


def test_a_window_carries_it_and_refuses_what_cannot_be():
    shadow = ShadowWindow("0123456789ab", 40, 39, 3, Histogram({3: 40}), 4.5, 55.0, 0.01, "budget")
    about = About("porch-1", "digits", "1", "f" * 12, "raspberry-pi-4")
    body = encode(Report(about, 1, 0, 60_000, True, CountedWindow(), shadow=shadow))
    payload = sealed_payload(body, Seal("0" * 16, 1, 1))
    assert len(payload) <= 1200
    read = parse_window(payload, "porch-1").shadow
    assert (read.sha, read.n, read.same, read.skipped, read.ms, read.mb, read.psi, read.rests) == (
        "0123456789ab", 40, 39, 3, 4.5, 55.0, 0.01, "budget",
    )  # fmt: skip
    assert read.ratios.count == 40
    for good, bad in (
        (b'"eq":39', b'"eq":41'),
        (b'"n":40,"eq"', b'"n":41,"eq"'),
        (b'"budget"', b'"<b>"'),
        (b"55.0", b"-1"),
    ):
        assert good in payload
        with pytest.raises(Exception, match=r"equal answers|ratios|matching regex|>= 0"):
            parse_window(payload.replace(good, bad), "porch-1")
