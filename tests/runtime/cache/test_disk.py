"""The disk tier survives a reboot; whatever happens to its file, answers go on."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest

from edgekit_runtime.cache import disk as disk_module
from edgekit_runtime.cache.disk import AnswerFile, DiskCache
from edgekit_runtime.cache.memory_tier import MISS, PLAUSIBLE_S, Moment
from edgekit_runtime.cache.stored_answers import KeptForm
from edgekit_runtime.system.database import trouble_of
from edgekit_runtime.system.errors import CacheFileError

MB = 1 << 20


def outputs(fill, size=1000):
    return {"probs": np.full(size, fill, np.float32)}


def key(number):
    return int(number).to_bytes(32, "big")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache" / "answers.db"


def fill(path, numbers, namespace=b"model", **options):
    disk = DiskCache(path, KeptForm(namespace), **options)
    for number in numbers:
        disk.put(key(number), outputs(number))
    assert disk.sync()
    disk.close()


def there(path, number, namespace=b"model", **options):
    disk = DiskCache(path, KeptForm(namespace), **options)
    try:
        got = disk.get(key(number))
        assert got is MISS or got["probs"][0] == number
        return got is not MISS
    finally:
        disk.close()


def test_answers_survive_a_reboot(path):
    fill(path, range(10))
    assert all(there(path, number) for number in range(10))
    assert not there(path, 11)


def test_what_was_closed_is_one_file(path):
    fill(path, range(10))
    assert [file.name for file in path.parent.iterdir()] == ["answers.db"]


def test_an_answer_can_be_had_before_it_is_written(path):
    disk = DiskCache(path, KeptForm(b"model"), batch_s=3600)
    disk.put(key(1), outputs(1))
    assert disk.get(key(1))["probs"][0] == 1
    assert disk.stats().waiting == 1
    disk.close()
    assert there(path, 1)


def test_several_models_share_a_file_and_never_an_answer(path):
    fill(path, [1], b"model-one")
    other = DiskCache(path, KeptForm(b"model-two"))
    other.put(key(2), outputs(2))
    other.sync()
    other.flush()
    other.sync()
    other.close()
    assert there(path, 1, b"model-one")
    assert not there(path, 2, b"model-two")


def test_inputs_are_not_stored(path):
    secret = b"a face nobody may see"
    from edgekit_runtime.cache.identity import identify

    disk = DiskCache(path, KeptForm(b"model"))
    disk.put(identify({"image": secret}, b"model")[0], outputs(1))
    disk.close()
    assert secret not in path.read_bytes()


# What goes wrong with files.

DAMAGE = {
    "zeros alone": lambda path: path.write_bytes(bytes(3_000_000)),
    "noise after the header": lambda path: overwrite(path, 100, os.urandom(50_000)),
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "cut inside the header": lambda path: os.truncate(path, 50),
    "empty": lambda path: os.truncate(path, 0),
    "zeros in the middle": lambda path: overwrite(path, 4096, bytes(path.stat().st_size - 8192)),
    "noise in the middle": lambda path: overwrite(path, 4096, os.urandom(path.stat().st_size - 8192)),
    "gone": lambda path: path.unlink(),
    "a table is missing": lambda path: run_sql(path, "DROP TABLE body"),
    "other columns": lambda path: run_sql(path, "ALTER TABLE place RENAME COLUMN used TO spent"),
    "another format": lambda path: run_sql(path, "PRAGMA user_version = 99"),
}


def overwrite(path, at, data):
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def run_sql(path, statement):
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_rebuilt_and_answers_go_on(path, name):
    fill(path, range(60))
    DAMAGE[name](path)
    disk = DiskCache(path, KeptForm(b"model"))
    for number in range(60):  # a wrong answer would fail here
        got = disk.get(key(number))
        assert got is MISS or got["probs"][0] == number
        disk.put(key(number), outputs(number))
    assert disk.sync()
    for number in range(60):
        assert disk.get(key(number))["probs"][0] == number
    disk.close()
    assert all(there(path, number) for number in (0, 30, 59))


def test_a_file_that_is_damaged_while_it_is_used_is_rebuilt(path):
    disk = DiskCache(path, KeptForm(b"model"))
    for number in range(300):
        disk.put(key(number), outputs(number))
    disk.sync()
    overwrite(path, 4096, os.urandom(path.stat().st_size - 4096))
    with path.with_name("answers.db-wal").open("r+b") as log:
        log.truncate(0)
    for _ in range(2):
        for number in range(300):
            got = disk.get(key(number))
            assert got is MISS or got["probs"][0] == number
            disk.put(key(number), outputs(number))
        disk.sync()
    assert disk.get(key(7))["probs"][0] == 7
    assert disk.stats().trouble is None
    disk.close()


def test_a_flipped_bit_in_an_answer_is_a_miss(path):
    fill(path, [1])
    data = path.read_bytes()
    at = data.index(np.full(100, 1, np.float32).tobytes()) + 200
    overwrite(path, at, bytes([data[at] ^ 1]))
    disk = DiskCache(path, KeptForm(b"model"))
    assert disk.get(key(1)) is MISS
    disk.put(key(1), outputs(1))
    disk.close()
    assert there(path, 1)


def test_a_full_disk_drops_the_file_halves_the_bound_and_goes_on(path):
    disk = DiskCache(path, KeptForm(b"model"), max_bytes=4 * MB)
    for number in range(200):
        disk.put(key(number), outputs(number))
    assert disk.sync()
    full = disk._file._writer  # SQLite says the same of a full medium as of a full file
    full.execute(f"PRAGMA max_page_count = {full.execute('PRAGMA page_count').fetchone()[0]}")
    for number in range(200, 400):
        disk.put(key(number), outputs(number))
    assert disk.sync()
    assert disk.stats().rebuilt == 1
    assert disk.get(key(399))["probs"][0] == 399
    assert disk._file.max_bytes < 2 * MB
    disk.close()
    assert there(path, 399)


def test_a_database_of_something_else_is_refused_and_left_alone(path):
    path.parent.mkdir()
    run_sql(path, "CREATE TABLE accounts (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(CacheFileError, match="not an edgekit answer cache"):
        DiskCache(path, KeptForm(b"model"))
    assert path.read_bytes() == before


FOREIGN = {
    "a photo": b"holiday photo" * 100,
    "a disk image that begins with zeros": bytes(40_000) + b"data" + bytes(100),
    "a damaged database that nobody marked": b"SQLite format 3\0"
    b"\x10\x00\x01\x01\x00\x40\x20\x20" + bytes(76) + b"?" * 9000,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_somebody_elses_is_refused_and_left_alone(path, name):
    path.parent.mkdir()
    path.write_bytes(FOREIGN[name])
    with pytest.raises(CacheFileError, match="not an edgekit answer cache"):
        DiskCache(path, KeptForm(b"model"))
    assert [file.name for file in path.parent.iterdir()] == ["answers.db"]
    assert path.read_bytes() == FOREIGN[name]


def test_what_takes_the_files_place_later_is_left_alone_too(path):
    disk = DiskCache(path, KeptForm(b"model"))
    disk.put(key(1), outputs(1))
    assert disk.sync()
    path.unlink()
    path.write_bytes(FOREIGN["a photo"])
    disk.put(key(2), outputs(2))
    disk.sync()
    assert disk.stats().trouble == "cannot-be-written"
    disk.close()
    assert path.read_bytes() == FOREIGN["a photo"]


@pytest.mark.parametrize("obstacle", ["a folder in its place", "a file in its way"])
def test_where_no_file_can_be_made_there_are_misses_and_a_word(tmp_path, obstacle):
    path = tmp_path / "x" / "answers.db"
    if obstacle == "a folder in its place":
        path.mkdir(parents=True)
    else:
        (tmp_path / "x").write_text("")
    disk = DiskCache(path, KeptForm(b"model"))
    disk.put(key(1), outputs(1))
    disk.sync()
    assert disk.get(key(1)) is MISS
    assert disk.stats().trouble == "cannot-be-written"
    disk.close()


def test_a_disk_that_comes_back_is_used_again(tmp_path):
    now = 0.0
    path = tmp_path / "card" / "answers.db"
    (tmp_path / "card").write_text("not mounted")
    disk = DiskCache(path, KeptForm(b"model"), clock=lambda: now)
    (tmp_path / "card").unlink()
    now = 1000.0
    disk.put(key(1), outputs(1))
    assert disk.sync()
    assert disk.stats().trouble is None
    disk.close()
    assert there(path, 1)


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_a_file_that_cannot_be_written_is_read():
    code = """
        import json, os, sqlite3, sys, urllib.parse
        from edgekit_runtime.cache.disk import DiskCache
        from edgekit_runtime.cache.stored_answers import KeptForm
        if os.getuid() == 0:
            # what is imported later may lie where nobody can read
            warm = DiskCache(sys.argv[1] + ".other", KeptForm(b"model"))
            warm.put(bytes(32), {})
            warm.sync()
            warm.get(bytes(32))
            warm.close()
            os.setuid(65534)
        disk = DiskCache(sys.argv[1], KeptForm(b"model"))
        assert disk.get((1).to_bytes(32, "big"))["probs"][0] == 1
        disk.put((2).to_bytes(32, "big"), None)
        assert disk.stats().trouble == "cannot-be-written", disk.stats()
        assert disk.stats().lost == 1
        disk.close()
    """
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is closed to others whenever another pytest starts
        Path(folder).chmod(0o755)
        path = Path(folder) / "cache" / "answers.db"
        fill(path, [1])
        path.chmod(0o444)
        path.parent.chmod(0o555)
        try:
            subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(path)], check=True, timeout=60)
        finally:
            path.parent.chmod(0o755)


def test_a_locked_file_keeps_nobody_waiting_and_costs_nothing(path):
    fill(path, [1])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    disk = DiskCache(path, KeptForm(b"model"))
    assert disk.get(key(1)) is MISS or disk.get(key(1))["probs"][0] == 1
    other.execute("ROLLBACK")
    other.close()
    disk.close()
    assert there(path, 1)


@pytest.fixture
def held(path):
    """The file with two answers of a model that is open, and another process that writes to it and does not end."""
    fill(path, [1, 2])
    disk = DiskCache(path, KeptForm(b"model"))
    disk._file._writer.execute("PRAGMA busy_timeout = 0")  # or each try takes its two seconds
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    disk.flush()
    yield disk, other
    other.close()
    disk.close()


def test_a_flush_waits_for_a_locked_file_and_gives_nothing_of_it_meanwhile(path, held):
    disk, other = held
    disk.put(key(3), outputs(3))
    assert not disk.sync(0.2)
    assert disk.stats().forgetting
    assert disk.get(key(1)) is disk.stale(key(1)) is MISS
    assert disk.get(key(3))["probs"][0] == 3
    other.execute("ROLLBACK")
    assert disk.sync()
    disk.close()
    assert not disk.stats().forgetting
    assert [there(path, number) for number in (1, 2, 3)] == [False, False, True]


def test_a_flush_that_was_put_off_is_done_when_the_model_is_closed(path, held):
    disk, other = held
    assert not disk.sync(0.2)
    other.execute("ROLLBACK")
    disk.close()
    assert not there(path, 1)


def test_what_is_put_after_a_flush_outlives_it(path, monkeypatch):
    """Between two batches the flush comes first: it would take the second one with it."""
    disk, flushed, write = DiskCache(path, KeptForm(b"model")), [], AnswerFile.write

    def flushed_meanwhile(*arguments):
        if not flushed:
            flushed.append(True)
            disk.flush()
            disk.put(key(2), outputs(2))
        return write(*arguments)

    monkeypatch.setattr(AnswerFile, "write", flushed_meanwhile)
    disk.put(key(1), outputs(1))
    assert disk.sync()
    disk.close()
    assert [there(path, number) for number in (1, 2)] == [False, True]


def test_a_flush_that_never_reached_the_file_is_told_at_the_end(path, held):
    disk, _ = held
    with pytest.warns(RuntimeWarning, match=r"answers.db: flushed answers are still stored \(busy\)"):
        disk.close()


def test_two_processes_share_one_file(path):
    code = """
        import sys
        import numpy as np
        from edgekit_runtime.cache.disk import DiskCache
        from edgekit_runtime.cache.stored_answers import KeptForm
        first = int(sys.argv[2])
        disk = DiskCache(sys.argv[1], KeptForm(b"model"), batch_s=0.01)
        for number in range(first, first + 300):
            disk.put(number.to_bytes(32, "big"), {"probs": np.full(1000, number, np.float32)})
            disk.get((number // 2).to_bytes(32, "big"))
        assert disk.sync()
        disk.close()
        stats = disk.stats()
        assert (stats.rebuilt, stats.lost, stats.trouble) == (0, 0, None), stats
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(path)]
    running = [subprocess.Popen([*command, str(first)]) for first in (0, 1000)]
    assert [process.wait(60) for process in running] == [0, 0]
    assert all(there(path, number) for number in (0, 299, 1000, 1299))


def test_a_process_that_ends_without_closing_loses_nothing(path):
    code = """
        import sys
        from edgekit_runtime.cache.disk import DiskCache
        from edgekit_runtime.cache.stored_answers import KeptForm
        DiskCache(sys.argv[1], KeptForm(b"model")).put((1).to_bytes(32, "big"), {})
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(path)], check=True, timeout=60)
    disk = DiskCache(path, KeptForm(b"model"))
    assert disk.get(key(1)) == {}
    disk.close()


def test_a_process_that_is_killed_while_it_writes_costs_its_last_seconds_only(path):
    code = """
        import sys
        import numpy as np
        from edgekit_runtime.cache.disk import DiskCache
        from edgekit_runtime.cache.stored_answers import KeptForm
        disk = DiskCache(sys.argv[1], KeptForm(b"model"), max_bytes=2 << 20, batch_s=0.0)
        number = 0
        while True:
            for _ in range(50):
                number += 1
                disk.put(number.to_bytes(32, "big"), {"probs": np.full(1000, number, np.float32)})
            disk.sync()
            print(number, flush=True)
    """
    for seed in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(path)], stdout=subprocess.PIPE, text=True
        )
        with process:
            for _ in range(3 + 5 * seed):
                process.stdout.readline()
            process.kill()
            *_, written = map(int, re.findall(r"(\d+)\n", "0\n" + process.stdout.read()))
        disk = DiskCache(path, KeptForm(b"model"), max_bytes=2 * MB)
        assert not written or disk.get(key(written)) is not MISS
        for number in range(1, written + 100):
            got = disk.get(key(number))
            assert got is MISS or got["probs"][0] == number
        assert (disk.stats().rebuilt, disk.stats().trouble) == (0, None)
        disk.close()


def test_a_file_that_another_process_put_in_its_place_is_taken_up(path, tmp_path):
    fill(tmp_path / "other.db", [2])
    disk = DiskCache(path, KeptForm(b"model"))
    disk.put(key(1), outputs(1))
    disk.sync()
    shutil.move(tmp_path / "other.db", path)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    disk.put(key(3), outputs(3))
    disk.sync()
    assert disk.get(key(2)) is not MISS
    disk.close()
    assert there(path, 3)


# Bounds, wear, age.


def test_the_file_and_its_log_stay_below_the_bound(path):
    disk = DiskCache(path, KeptForm(b"model"), max_bytes=2 * MB)
    for number in range(2000):
        disk.put(key(number), outputs(number))
        if number % 100 == 0:
            disk.sync()
            assert disk.stats().bytes <= 2 * MB
    disk.sync()
    stats = disk.stats()
    assert stats.bytes <= 2 * MB
    assert stats.evicted > 1000
    assert disk.get(key(1999)) is not MISS
    disk.close()


def test_a_smaller_bound_shrinks_the_file(path):
    fill(path, range(1500), max_bytes=16 * MB)
    assert path.stat().st_size > 6 * MB
    fill(path, [9999], max_bytes=2 * MB)
    assert path.stat().st_size <= 2 * MB
    assert there(path, 9999, max_bytes=2 * MB)


def test_what_does_not_fit_into_the_queue_is_given_up_and_counted(path):
    disk = DiskCache(path, KeptForm(b"model"), max_bytes=MB, batch_s=3600)
    for number in range(400):
        disk.put(key(number), outputs(number, 10_000))
    stats = disk.stats()
    disk.close()
    assert stats.waiting + stats.lost + stats.written == 400
    assert stats.lost > 0


def test_an_answer_of_a_sixteenth_of_the_bound_is_kept_and_a_larger_one_is_refused(path):
    disk = DiskCache(path, KeptForm(b"model"), max_bytes=256 * MB)
    assert disk.largest_bytes == 16 * MB
    assert disk.put(key(1), outputs(1, 15 * MB // 4))  # more than may wait: alone, it may
    assert not disk.put(key(2), outputs(2, 17 * MB // 4))
    assert disk.sync()
    disk.close()
    assert there(path, 1, max_bytes=256 * MB)


def test_asking_again_and_again_writes_nothing(path):
    fill(path, range(100))
    disk = DiskCache(path, KeptForm(b"model"), batch_s=0.0)
    before = sorted((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in path.parent.iterdir())
    for _ in range(50):
        assert disk.get(key(99)) is not MISS
    assert before == sorted((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in path.parent.iterdir())
    disk.close()


BORN = Moment(PLAUSIBLE_S + 1e7, 1000.0, boot=1)
READ = {
    "later in the same boot": (Moment(BORN.wall_s + 30, 1030.0, 1), True),
    "after its time in the same boot": (Moment(BORN.wall_s + 61, 1061.0, 1), False),
    "the clock jumped a year ahead": (Moment(BORN.wall_s + 3e7, 1030.0, 1), True),
    "the clock jumped a year back": (Moment(BORN.wall_s - 3e7, 1030.0, 1), True),
    "after a reboot": (Moment(BORN.wall_s + 30, 5.0, 2), True),
    "after a long time without power": (Moment(BORN.wall_s + 3600, 5.0, 2), False),
    "after a reboot into 1970": (Moment(5.0, 5.0, 2), False),
    "after a reboot, with the clock behind": (Moment(BORN.wall_s - 100, 5.0, 2), False),
}


@pytest.mark.parametrize("name", READ)
def test_a_clock_that_jumps_or_starts_in_1970_never_revives_an_old_answer(path, name):
    fill(path, [1], ttl_s=60, now=lambda: BORN)
    now, good = READ[name]
    disk = DiskCache(path, KeptForm(b"model"), ttl_s=60, now=lambda: now)
    assert (disk.get(key(1)) is not MISS) == good
    assert disk.stale(key(1)) is not MISS
    disk.close()


def test_a_child_of_a_fork_leaves_the_file_alone(path):
    disk = DiskCache(path, KeptForm(b"model"))
    disk.put(key(1), outputs(1))
    disk.sync()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            disk.put(key(2), outputs(2))
            code = 0 if disk.get(key(1)) is MISS and disk.get(key(2)) is MISS else 1
            disk.close()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert disk.get(key(1)) is not MISS
    disk.close()


def test_a_bound_too_small_for_a_database_is_the_callers_bug(path):
    with pytest.raises(ValueError, match="max_bytes"):
        DiskCache(path, KeptForm(b"model"), max_bytes=1000)


def test_a_medium_that_is_read_only_is_read_again_after_one_error(path, monkeypatch):
    fill(path, [1])
    real, now = os.access, [0.0]
    monkeypatch.setattr(os, "access", lambda place, mode: mode != os.W_OK and real(place, mode))
    disk = DiskCache(path, KeptForm(b"model"), clock=lambda: now[0])
    assert disk.get(key(1))["probs"][0] == 1
    disk._file._broken = sqlite3.OperationalError("unable to open database file")
    assert disk.get(key(1)) is MISS
    for number in (2, 3):  # the first closes the file, a later one opens it again
        disk.put(key(number), outputs(number))
        disk.sync()
        now[0] += 3600.0
    assert disk.get(key(1))["probs"][0] == 1
    disk.close()


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (sqlite3.OperationalError("database is locked"), "busy"),
        (sqlite3.OperationalError("database schema is locked: main"), "busy"),
        (sqlite3.OperationalError("database or disk is full"), "full"),
        (sqlite3.OperationalError("interrupted"), "cannot-be-written"),
        (sqlite3.DatabaseError("not authorized"), "cannot-be-written"),
        (sqlite3.DataError("string or blob too big"), "cannot-be-written"),
        (sqlite3.ProgrammingError("Cannot operate on a closed database."), "cannot-be-written"),
        (sqlite3.OperationalError("disk I/O error"), "damaged"),
        (sqlite3.DatabaseError("database disk image is malformed"), "damaged"),
    ],
    ids=str,
)
def test_only_what_says_something_of_the_file_counts_as_damage(error, trouble):
    assert trouble_of(error) == trouble


def test_keys_whose_hashes_are_equal_take_each_other_s_place(path, monkeypatch):
    monkeypatch.setattr(disk_module, "_hash", lambda key: 7)
    disk = DiskCache(path, KeptForm(b"model"))
    disk.put(key(1), outputs(1))
    disk.put(key(2), outputs(2))
    disk.sync()
    assert disk.get(key(1)) is MISS
    assert disk.get(key(2))["probs"][0] == 2
    assert disk.stats().rebuilt == 0
    disk.close()
