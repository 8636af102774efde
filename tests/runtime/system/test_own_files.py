"""What this machine keeps for itself decides nothing once another user could have written it."""

from __future__ import annotations

import contextlib
import logging
import os

import numpy as np
import pytest
import tiny

from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.cache.disk import DiskCache
from edgekit_runtime.cache.memory_tier import MISS
from edgekit_runtime.cache.stored_answers import KeptForm
from edgekit_runtime.engines import gpu_engine_cache
from edgekit_runtime.engines.registry import EngineInfo, available
from edgekit_runtime.loading.candidates import CandidateTrial, TuningOptions, TuningVerdict
from edgekit_runtime.loading.election import read, store
from edgekit_runtime.loading.replay import SelfTest
from edgekit_runtime.loading.selftest import keep, last_verdict, verdict_file
from edgekit_runtime.loading.tuning import offered_candidates
from edgekit_runtime.system.errors import CacheFileError, TelemetryError
from edgekit_runtime.system.files import read_own
from edgekit_runtime.system.sealed import SEAL_BYTES, read_sealed, write_sealed
from edgekit_runtime.system.strict_json import json_text
from edgekit_runtime.telemetry.spool import Spool

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
OTHER, KEY = 12_345, bytes(32)
INFO = EngineInfo("litert", "2", 1)


def verdict(bundle, folder):
    candidates = offered_candidates(bundle, TuningOptions(threads=1))
    tried = tuple(CandidateTrial(one, p50_ms=1.0, runs=3) for one in candidates)
    file = folder / "verdict.json"
    store(file, TuningVerdict(candidates[0], "measured", "", tried))
    return file, lambda: read(file, candidates, None) is not None


def selftest(bundle, folder):
    entry = bundle.artifact()
    file = verdict_file(bundle, entry, INFO, folder)
    keep(file, json_text(SelfTest(1, True, 0.0, 1.0)))
    return file, lambda: last_verdict(bundle, entry, INFO, folder=folder) is not None


def engine_of_a_gpu(_, folder):
    file = folder / "key.engine"
    gpu_engine_cache.store(file, b"code")
    return file, lambda: gpu_engine_cache.load_cached(file) is not None


def stored_answers(_, folder):
    file = folder / "answers.db"

    def opened():
        return contextlib.closing(DiskCache(file, KeptForm(b"model")))

    def believed():
        with opened() as disk:
            found = disk.get(KEY) is not MISS
            assert found or disk.stats().trouble is not None
            return found

    with opened() as disk:
        disk.put(KEY, {"y": np.zeros(3, np.float32)})
        assert disk.sync()
    return file, believed


def spool(_, folder):
    file = folder / "board.db"
    Spool.open(file).close()

    def believed():
        try:
            Spool.open(file).close()
        except TelemetryError as error:
            return error.code != "telemetry-spool"
        return True

    return file, believed


KEPT = {"verdict": verdict, "selftest": selftest, "engine of a GPU": engine_of_a_gpu, "answers": stored_answers}
KEPT |= {"spool": spool}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    engine = min(set(available()) & {"litert", "tflite-runtime"}, default=None)
    return read_bundle(tiny.bundle(tmp_path_factory.mktemp("own"), engine=engine))


@pytest.fixture(params=KEPT)
def kept(request, bundle, tmp_path):
    """(the file, whether it is believed now)"""
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    file, believed = KEPT[request.param](bundle, folder)
    assert believed()
    return file, believed


@pytest.mark.parametrize("mode", [0o666, 0o664])
def test_what_others_may_write_is_as_if_it_were_not_there(kept, mode, monkeypatch):
    """S11"""
    monkeypatch.setattr("edgekit_runtime.system.files._is_private_group", lambda gid, uid: False)
    file, believed = kept
    file.chmod(mode)
    assert not believed()
    file.chmod(0o644)
    assert believed()
    file.parent.chmod(0o777)
    assert not believed()


@pytest.mark.skipif(os.name == "posix" and os.geteuid() != 0, reason="only root gives files away")
def test_what_another_user_owns_is_as_if_it_were_not_there(kept):
    """S11"""
    file, believed = kept
    os.chown(file, OTHER, OTHER)
    assert not believed()


@pytest.mark.parametrize("name", ["selftest", "engine of a GPU"])
def test_what_is_damaged_or_was_written_under_another_name_is_as_if_it_were_not_there(bundle, tmp_path, name):
    file, believed = KEPT[name](bundle, tmp_path)
    stored = file.read_bytes()
    for place in range(0, len(stored), 5):
        file.write_bytes(stored[:place] + bytes([stored[place] ^ 1 << place % 8]) + stored[place + 1 :])
        assert not believed()
    file.write_bytes(b"")
    assert not believed()
    write_sealed(file.with_name("another"), stored[SEAL_BYTES:])
    file.with_name("another").replace(file)
    assert not believed()


def test_a_verdict_of_another_key_is_as_if_it_were_not_there(bundle, tmp_path):
    file, believed = verdict(bundle, tmp_path)
    another = file.with_name("another.json")
    write_sealed(another, read_sealed(file, 1 << 20))
    another.replace(file)
    assert not believed()


def test_nothing_waits_for_a_pipe_in_its_place(kept):
    file, believed = kept
    file.unlink()
    os.mkfifo(file)
    with contextlib.suppress(CacheFileError):  # a path that leads to something else is said when the cache is opened
        assert not believed()


@pytest.mark.parametrize("log", ["-wal", "-journal"])
def test_a_log_that_another_user_put_beside_a_database_is_not_played_back(bundle, tmp_path, log):
    """S11"""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    for make in (stored_answers, spool):
        file, believed = make(bundle, folder)
        planted = file.with_name(file.name + log)
        planted.touch()
        planted.chmod(0o666)
        assert not believed()
        planted.unlink()
        assert believed()


def test_a_cache_that_others_may_write_to_is_logged_once_with_what_mends_it(bundle, tmp_path, caplog):
    file, believed = stored_answers(bundle, tmp_path)
    file.chmod(0o666)
    with caplog.at_level(logging.WARNING, "edgekit_runtime.cache"):
        assert not believed()
    assert [f"Run: chmod go-w {file}" in record.message for record in caplog.records] == [True]
    with contextlib.closing(DiskCache(file, KeptForm(b"model"))) as disk:
        assert disk.stats().trouble == "unsafe"


def test_what_is_ones_own_is_read_whole_up_to_a_bound_and_through_no_link(tmp_path):
    file, link = tmp_path / "own", tmp_path / "link"
    file.write_bytes(b"12345")
    link.symlink_to(file)
    assert read_own(file, 5) == b"12345"
    assert read_own(file, 4) is None
    assert read_own(file, 1 << 60) == b"12345"  # room is made for what is there
    assert read_own(link, 5) is None
    assert read_own(tmp_path, 5) is None
    assert read_own(tmp_path / "absent", 5) is None
