"""The spool: what was committed is there until it is confirmed.

This holds whatever happens to the process, the file or the disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
from functools import partial

import pytest
import tiny
from refusing import has_code

from edgekit_runtime import CacheOptions, OptionError, TelemetryOptions, open_bundle
from edgekit_runtime.system.database import MOST_SET_ASIDE
from edgekit_runtime.system.errors import TelemetryError
from edgekit_runtime.telemetry.spool import Spool, refuse_foreign


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "porch-1.db"


def seqs(spool, after=0):
    return [seq for seq, _ in spool.after(after, 10_000)]


def test_windows_come_back_in_order_until_they_are_confirmed(path):
    spool = Spool.open(path)
    assert [spool.append(b"%d" % i) for i in range(5)] == [1, 2, 3, 4, 5]
    assert spool.after(1, 2) == [(2, b"1"), (3, b"2")]
    spool.forget(3)
    assert (seqs(spool), spool.floor, spool.waiting()) == ([4, 5], 4, (2, 2))
    spool.close()


def test_seq_and_epoch_survive_a_restart_and_boot_counts(path):
    first = Spool.open(path)
    first.append(b"a")
    first.forget(first.append(b"b"))
    first.close()
    again = Spool.open(path)
    assert (again.epoch, again.boot, again.append(b"c"), again.floor) == (first.epoch, 2, 3, 3)
    again.close()


def test_a_wiped_board_begins_another_epoch(path):
    epochs = set()
    for _ in range(2):
        spool = Spool.open(path)
        epochs.add(spool.epoch)
        spool.close()
        path.unlink()
    assert len(epochs) == 2


def test_a_mark_above_everything_forgets_no_later_window(path):
    spool = Spool.open(path)
    spool.append(b"a")
    spool.forget(10**9)
    assert seqs(spool) == []
    assert seqs(spool, spool.append(b"b") - 1) == [2]
    spool.close()


def test_a_full_spool_gives_up_the_oldest_and_counts_them(path):
    spool = Spool.open(path, most_bytes=64 * 4096)
    body = b"x" * 1000
    for _ in range(1000):
        spool.append(body)
    kept = seqs(spool)
    assert kept == list(range(spool.floor, 1001))
    assert spool.dropped == 1000 - len(kept)
    assert 100 < len(kept) < 260
    spool.close()
    assert path.stat().st_size <= 64 * 4096
    again = Spool.open(path, most_bytes=64 * 4096)
    assert again.dropped == spool.dropped
    again.close()


DAMAGES = {
    "not a database": lambda path: path.write_bytes(b"hello" * 1000),
    "overwritten in the middle": lambda path: overwrite(path, 4096, b"\xff" * 9000),
    "a torn header": lambda path: overwrite(path, 0, b"\0" * 100),
    "cut off": lambda path: os.truncate(path, path.stat().st_size - 5000),
}


def overwrite(path, offset, data):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_set_aside_and_a_new_epoch_begins(path, damage):
    spool = Spool.open(path)
    for _ in range(50):
        spool.append(b"y" * 500)
    spool.close()
    damage(path)
    again = Spool.open(path)
    assert again.epoch != spool.epoch
    assert again.append(b"z") == 1
    again.close()
    assert path.with_name("porch-1.db.bad").exists()


def other_columns(sql):
    def change(path):
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.executescript(sql)

    return change


OTHERS = {
    "windows of another key": "DROP TABLE win; CREATE TABLE win (seq TEXT PRIMARY KEY, body BLOB NOT NULL);",
    "windows that are not numbered": "DROP TABLE win; CREATE TABLE win (seq INTEGER PRIMARY KEY, body BLOB NOT NULL);",
    "windows as text": "DROP TABLE win; CREATE TABLE win (seq INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT);",
    "a view in place of the table": "DROP TABLE win; CREATE VIEW win AS SELECT 1 AS seq, x'00' AS body;",
    "notes of another form": "DROP TABLE meta; CREATE TABLE meta (name INTEGER, value BLOB);",
    "a boot that is text": "UPDATE meta SET value = 'often' WHERE name = 'boot';",
    "a boot that is a piece of a number": "UPDATE meta SET value = 1.5 WHERE name = 'boot';",
    "a boot below 0": "UPDATE meta SET value = -7 WHERE name = 'boot';",
    "no boot after this one": "UPDATE meta SET value = 9223372036854775807 WHERE name = 'boot';",
    "no number after the last": "UPDATE sqlite_sequence SET seq = 9223372036854775807;",
    "a last number that is text": "UPDATE sqlite_sequence SET seq = 'last';",
}


@pytest.mark.parametrize("sql", OTHERS.values(), ids=OTHERS)
def test_a_file_with_other_columns_or_counters_is_set_aside(path, sql):
    test_a_damaged_file_is_set_aside_and_a_new_epoch_begins(path, other_columns(sql))


def test_a_window_that_is_no_bytes_and_an_epoch_that_is_none_are_dropped(path):
    spool = Spool.open(path)
    for body in (b"a", b"b", b"c"):
        spool.append(body)
    spool.close()
    other_columns(
        "UPDATE win SET body = 'text' WHERE seq = 2; "
        "UPDATE meta SET value = CAST(x'ff00' AS TEXT) WHERE name = 'epoch';"
    )(path)
    again = Spool.open(path)
    assert [body for _, body in again.after(0, 9)] == [b"a", b"c"]
    assert again.dropped == 1
    assert re.fullmatch("[0-9a-f]{16}", again.epoch)
    assert again.append(b"d") == 4
    again.close()


def test_what_was_set_aside_is_never_overwritten(path):
    for number in range(MOST_SET_ASIDE + 2):
        Spool.open(path).close()
        path.write_bytes(b"%d" % number * 1000)
    Spool.open(path).close()
    kept = {file.name: file.read_bytes()[:1] for file in path.parent.glob("*.bad*")}
    assert kept == {f"porch-1.db.bad{n + 1 if n else ''}": b"%d" % n for n in range(MOST_SET_ASIDE)}


FOREIGN = {
    "another table": "CREATE TABLE orders (a)",
    "a table of our name": "CREATE TABLE meta (key TEXT, value TEXT, other)",
    "another application's": "PRAGMA application_id = 7; CREATE TABLE win (seq, body)",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_database_of_something_else_is_refused_and_left_alone(path, name):
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.executescript(FOREIGN[name])
    connection.close()
    before = path.read_bytes()
    for refuse in (Spool.open, refuse_foreign):
        with pytest.raises(TelemetryError, match="not a telemetry spool", check=has_code("telemetry-spool")):
            refuse(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["porch-1.db"]


def test_a_spool_from_before_spools_were_marked_is_taken_up(path):
    spool = Spool.open(path)
    spool.append(b"a")
    spool.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA application_id = 0")
    connection.close()
    refuse_foreign(path)
    again = Spool.open(path)
    assert (again.epoch, seqs(again)) == (spool.epoch, [1])
    again.close()


def test_a_file_of_something_else_is_refused_when_the_bundle_is_opened(tmp_path):
    bundle, reporting = tiny.bundle(tmp_path), partial(TelemetryOptions, "mqtt://127.0.0.1:1", "porch-1")
    (tmp_path / "photo.png").write_bytes(b"holiday photo" * 100)
    with pytest.raises(TelemetryError, match="not a telemetry spool", check=has_code("telemetry-spool")):
        open_bundle(bundle, telemetry=reporting(spool=tmp_path / "photo.png"))
    one = tmp_path / "x.db"
    with pytest.raises(OptionError, match="use the same file"):
        open_bundle(bundle, telemetry=reporting(spool=one), cache=CacheOptions(disk=str(one)))
    open_bundle(bundle, cache=CacheOptions(disk=tmp_path / "answers.db")).close()
    with pytest.raises(TelemetryError, match="not a telemetry spool", check=has_code("telemetry-spool")):
        open_bundle(bundle, telemetry=reporting(spool=tmp_path / "answers.db"))


def test_an_emptied_file_is_a_new_spool(path):
    Spool.open(path).close()
    path.write_bytes(b"")
    spool = Spool.open(path)
    assert spool.append(b"z") == 1
    spool.close()


def test_a_file_in_use_is_refused_and_not_shared(path):
    spool = Spool.open(path)
    with pytest.raises(TelemetryError, match="locked", check=has_code("telemetry-spool")):
        Spool.open(path)
    spool.append(b"still mine")
    spool.close()


def test_a_folder_that_cannot_be_written_is_a_spool_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TelemetryError, check=has_code("telemetry-spool")):
        Spool.open(tmp_path / "file" / "porch-1.db")


def test_a_disk_that_is_full_is_a_spool_error_and_loses_nothing_committed(path):
    spool = Spool.open(path)
    spool.append(b"before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(TelemetryError, check=has_code("telemetry-spool")):
            spool.append(b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert [body for _, body in spool.after(0, 10)] == [b"before"]
    assert spool.append(b"after") == 2
    spool.close()


def test_a_killed_process_has_lost_nothing_that_was_committed(path):
    script = (
        "import sys, pathlib\nfrom edgekit_runtime.telemetry.spool import Spool\nspool = "
        "Spool.open(pathlib.Path(sys.argv[1]))\nwhile True: print(spool.append(b'w' * 800), flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    said = [int(child.stdout.readline()) for _ in range(60)]
    child.kill()
    said += [int(line) for line in child.stdout.read().splitlines() if line.strip()]
    child.wait()
    spool = Spool.open(path)
    assert set(said) <= set(seqs(spool))
    spool.close()


def test_every_commit_is_flushed(path):
    spool = Spool.open(path)
    ((level,),) = spool._db.execute("PRAGMA synchronous").fetchall()
    ((journal,),) = spool._db.execute("PRAGMA journal_mode").fetchall()
    assert (level, journal) == (2, "wal")
    spool.close()


def test_in_memory_it_is_the_same_spool():
    spool = Spool.in_memory()
    spool.append(b"a")
    spool.forget(spool.append(b"b") - 1)
    assert spool.after(0, 10) == [(2, b"b")]
    spool.close()


def test_sqlite_is_imported_when_it_is_needed_and_not_before():
    script = "import sys, edgekit_runtime.telemetry; print('sqlite3' in sys.modules, 'ssl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False False\n"
    assert sqlite3.sqlite_version_info >= (3, 35)


def test_events_outlive_the_windows_beside_them_and_leave_no_gap():
    spool = Spool.in_memory(256 * 1024)
    for n in range(900):
        spool.append(EVENT + str(n).encode() if n in (3, 4, 500) else b"w" * 500)
    kept = dict(spool.after(0, 10_000))
    assert spool.dropped > 100
    assert sorted(kept) == list(range(spool.floor, spool.last + 1))
    assert {body for body in kept.values() if body.startswith(EVENT)} == {EVENT + n for n in (b"3", b"4", b"500")}
    assert [kept[seq] for seq in spool.events()] == [kept[seq] for seq in sorted(kept) if kept[seq].startswith(EVENT)]
    assert spool.bodies([spool.last, 10**6]) == {spool.last: kept[spool.last]}
    assert spool.dropped < spool.floor
    spool.close()


def test_a_flood_of_events_is_bounded_like_anything_else():
    spool = Spool.in_memory(256 * 1024)
    for n in range(3000):
        spool.append(EVENT + b"e" * 400 if n % 3 else b"w" * 400)
    assert spool.dropped > 1000
    assert len(spool.after(0, 10_000)) == spool.last + 1 - spool.floor
    spool.close()


def test_a_note_is_kept_beside_the_windows(tmp_path):
    spool = Spool.open(tmp_path / "s.db")
    assert [spool.swap_note("ran", "one"), spool.swap_note("ran", "two")] == [None, "one"]
    spool.close()
    spool = Spool.open(tmp_path / "s.db")
    assert (spool.swap_note("ran", "two"), spool.note("ran"), spool.note("epoch")) == ("two", "two", None)
    spool.close()


EVENT = b'{"kind":"install","text":'
