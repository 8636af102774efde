"""The cache's promises as an application sees them, through `open_bundle`."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import tiny

from edgekit_runtime import CacheOptions, open_bundle
from edgekit_runtime.cache.similar import Semantic
from edgekit_runtime.system.errors import CacheFileError


def scores(answer):
    return answer.outputs["probs"].tolist()


@pytest.fixture
def bundle(tmp_path):
    return tiny.bundle(tmp_path)


@pytest.fixture
def other(tmp_path):
    """Another version of the same model."""
    (tmp_path / "v2").mkdir()
    return tiny.bundle(tmp_path / "v2", version="2")


@pytest.mark.parametrize("damage", ["garbage after the header", "zeros", "cut", "a folder", "removed while open"])
def test_whatever_becomes_of_the_disk_answers_go_on(bundle, tmp_path, damage):
    path = tmp_path / "answers.db"
    with open_bundle(bundle, cache=CacheOptions(disk=path)) as model:
        true = scores(model.predict(tiny.RED))
    if damage == "garbage after the header":
        path.write_bytes(path.read_bytes()[:100] + os.urandom(20_000))
    elif damage == "zeros":  # what a power cut leaves of a file that was being written
        path.write_bytes(bytes(20_000))
    elif damage == "cut":
        os.truncate(path, path.stat().st_size // 2)
    elif damage == "a folder":
        path.unlink()
        path.mkdir()
    with open_bundle(bundle, cache=CacheOptions(disk=path)) as model:
        if damage == "removed while open":
            path.unlink()
        for _ in range(3):
            assert scores(model.predict(tiny.RED)) == true
            model.predict(tiny.BLUE)
        assert model.stats().cache.hits >= 4


def test_a_database_of_something_else_is_refused_before_anything_is_answered(bundle, tmp_path):
    import sqlite3

    connection = sqlite3.connect(tmp_path / "accounts.db")
    connection.execute("CREATE TABLE accounts (name TEXT)")
    connection.close()
    with pytest.raises(CacheFileError, match=r"accounts\.db: not an edgekit answer cache"):
        open_bundle(bundle, cache=CacheOptions(disk=tmp_path / "accounts.db"))


def test_two_models_share_a_file_and_no_answer(bundle, other, tmp_path):
    path = tmp_path / "answers.db"
    with (
        open_bundle(bundle, cache=CacheOptions(disk=path)) as one,
        open_bundle(other, cache=CacheOptions(disk=path)) as two,
    ):
        one.predict(tiny.RED)
        assert two.predict(tiny.RED).source == "device"
    with (
        open_bundle(bundle, cache=CacheOptions(disk=path)) as one,
        open_bundle(other, cache=CacheOptions(disk=path)) as two,
    ):
        assert [model.predict(tiny.RED).source for model in (one, two)] == ["cache", "cache"]


def test_after_a_swap_no_tier_gives_an_answer_of_the_model_before(bundle, other, tmp_path):
    semantic = Semantic(lambda pixels: pixels.mean(axis=(0, 1)), 0.001)
    with open_bundle(bundle, cache=CacheOptions(disk=tmp_path / "answers.db", similar=4.0, semantic=semantic)) as model:
        assert [model.predict(tiny.RED).source for _ in range(2)] == ["device", "cache"]
        assert model.predict(tiny.RED + 1).source == "similar"
        model.swap(other)
        assert model.predict(tiny.RED + 2).source == "device"
        assert model.predict(tiny.RED).source == "similar"
        assert model.predict(tiny.BLUE).source == "device"


def test_inputs_that_never_repeat_are_soon_not_looked_up(bundle):
    with open_bundle(bundle) as model:
        for number in range(3000):
            model.predict(np.full((8, 8, 3), number, np.uint32).view(np.uint8)[:, :, :3].copy())
        stats = model.stats().cache
        assert stats.skipped > 1000
        assert stats.hits + stats.misses + stats.skipped == 3000
        assert not stats.worth.looking or stats.worth.stops > 0


def test_many_threads_asking_the_same_get_the_same(bundle, tmp_path):
    pictures = [tiny.colour(12 * k, 250 - 12 * k, 7 * k) for k in range(20)]
    with open_bundle(bundle, cache=False) as model:
        true = [scores(model.predict(picture)) for picture in pictures]
    wrong = []
    with open_bundle(bundle, cache=CacheOptions(memory_mb=0.005, disk=tmp_path / "answers.db", disk_mb=1)) as model:

        def ask(seed):
            for k in np.random.default_rng(seed).integers(0, len(pictures), 150):
                if scores(model.predict(pictures[k])) != true[k]:
                    wrong.append(k)

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert model.stats().cache.memory.evicted > 0
    assert wrong == []
