"""The build cache: bytes under a digest of what they were made from."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit_converters.recipe.store import NO_STORE, DiskStore, default_folder, key, unfinished_folder

A, B, C = (key(name) for name in "abc")


def test_what_was_put_is_got_by_another_process(tmp_path: Path):
    DiskStore(tmp_path / "deep" / "cache").put(A, b"float model")
    code = (
        "import sys; from pathlib import Path; from edgekit_converters.recipe.store import DiskStore, key; "
        "sys.stdout.buffer.write(DiskStore(Path(sys.argv[1])).get(key('a')))"
    )
    got = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "deep" / "cache")], capture_output=True, check=True, timeout=60
    )
    assert got.stdout == b"float model"


def test_what_never_was_put_is_none(tmp_path: Path):
    assert DiskStore(tmp_path / "missing").get(A) is None


def test_no_store_remembers_nothing():
    NO_STORE.put(A, b"x")
    assert NO_STORE.get(A) is None


@pytest.mark.parametrize("damage", [b"", b"short", b"edgekit2" + bytes(16) + b"changed"])
def test_a_damaged_entry_is_not_there_and_goes_away(tmp_path: Path, damage: bytes):
    store = DiskStore(tmp_path)
    store.put(A, b"content")
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(damage)
    assert store.get(A) is None
    assert not entry.exists()


def test_an_entry_that_was_put_under_another_key_is_not_there(tmp_path: Path):
    store = DiskStore(tmp_path)
    store.put(A, b"of a")
    (tmp_path / f"{A}.entry").rename(tmp_path / f"{B}.entry")
    assert store.get(B) is None


def test_a_truncated_entry_is_not_there(tmp_path: Path):
    store = DiskStore(tmp_path)
    store.put(A, b"content" * 100)
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(entry.read_bytes()[:-1])
    assert store.get(A) is None


def test_the_least_recently_used_go_first(tmp_path: Path):
    store = DiskStore(tmp_path, max_bytes=3000)
    for age, name in ((300, A), (200, B)):
        store.put(name, bytes(1200))
        os.utime(tmp_path / f"{name}.entry", (1e9 - age, 1e9 - age))
    assert store.get(A) is not None  # used: now B is the oldest
    store.put(C, bytes(1200))
    assert store.get(B) is None
    assert store.get(A) is not None
    assert store.get(C) is not None


def test_the_bound_holds_for_entries_of_earlier_runs_too(tmp_path: Path):
    for index in range(20):
        DiskStore(tmp_path, max_bytes=5000).put(key(index), bytes(1000))
    assert sum(entry.stat().st_size for entry in tmp_path.iterdir()) <= 5000


def test_an_entry_above_the_bound_is_not_kept_and_pushes_nothing_out(tmp_path: Path):
    store = DiskStore(tmp_path, max_bytes=1000)
    store.put(A, bytes(500))
    store.put(B, bytes(2000))
    assert store.get(A) is not None
    assert store.get(B) is None


def test_a_folder_that_cannot_be_written_fails_no_build_and_says_why(tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    store = DiskStore(tmp_path / "file" / "cache")
    store.put(A, b"x")
    assert store.get(A) is None
    assert "file" in store.failure


def test_what_others_could_have_written_is_not_there_and_nothing_is_put_beside_it(tmp_path: Path):
    store = DiskStore(tmp_path / "cache")
    store.put(A, b"x")
    (entry,) = (tmp_path / "cache").iterdir()
    entry.chmod(0o666)
    assert store.get(A) is None
    entry.chmod(0o644)
    (tmp_path / "cache").chmod(0o777)
    store.put(B, b"y")
    assert (store.get(A), store.get(B)) == (None, None)
    assert f"Run: chmod go-w {tmp_path}/cache" in store.failure


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes in the file system are POSIX")
def test_a_pipe_in_place_of_an_entry_is_not_waited_for(tmp_path: Path):
    store = DiskStore(tmp_path)
    store.put(A, b"x")
    (entry,) = tmp_path.iterdir()
    entry.unlink()
    os.mkfifo(entry)
    assert store.get(A) is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = DiskStore(tmp_path)
    full = Path.open

    def opened(self: Path, mode: str = "r", *rest, **options):
        if mode == "xb":
            full(self, mode).close()  # the entry's name exists by the time that the disk is full
            return full(Path("/dev/full"), "wb", buffering=0)
        return full(self, mode, *rest, **options)

    monkeypatch.setattr(Path, "open", opened)
    store.put(A, b"x" * 100)
    assert list(tmp_path.iterdir()) == []
    assert "space" in store.failure


def test_partial_files_of_a_build_that_died_go_away(tmp_path: Path):
    stale = tmp_path / f"{A}.dead.partial"
    stale.write_bytes(b"half")
    os.utime(stale, (1e9, 1e9))
    DiskStore(tmp_path).put(B, b"x")
    assert not stale.exists()


def test_what_an_interrupted_build_left_stays_for_two_weeks(tmp_path: Path):
    waiting, abandoned = unfinished_folder(tmp_path, A), unfinished_folder(tmp_path, B)
    for path, age_days in ((waiting, 13), (abandoned, 15)):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age_days * 86_400,) * 2)
    DiskStore(tmp_path).put(A, b"x")
    assert waiting.exists()
    assert not abandoned.exists()


def test_two_builds_at_once_see_whole_entries_only(tmp_path: Path):
    contents = [bytes([value]) * 100_000 for value in range(4)]
    wrong = []

    def work(content: bytes):
        store = DiskStore(tmp_path)
        for _ in range(50):
            store.put(A, content)
            if store.get(A) not in contents:
                wrong.append(content[0])

    threads = [threading.Thread(target=work, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert [entry.suffix for entry in tmp_path.iterdir()] == [".entry"]


@pytest.mark.parametrize("name", ["", "../escape", "a/b", "a.b"])
def test_a_key_is_never_a_path(tmp_path: Path, name: str):
    with pytest.raises(ValueError, match="no key"):
        DiskStore(tmp_path).put(name, b"x")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
PARTS = st.lists(st.binary(max_size=6) | JSON, max_size=4)


@settings(max_examples=200)
@given(PARTS, PARTS)
def test_keys_are_equal_exactly_where_the_parts_are(first: list[object], second: list[object]):
    def plain(parts):
        import json

        return [part if isinstance(part, bytes) else json.dumps(part, sort_keys=True) for part in parts]

    assert (key(*first) == key(*second)) == (plain(first) == plain(second))


def test_the_order_of_a_mapping_is_no_part_of_a_key():
    assert key({"a": 1, "b": 2}) == key({"b": 2, "a": 1})
    assert key("ab", "c") != key("a", "bc")


def test_the_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_folder({"XDG_CACHE_HOME": "/var/cache/me"}) == Path("/var/cache/me/edgekit/build")
    assert default_folder({}) == Path("/home/someone/.cache/edgekit/build")
    assert default_folder({"XDG_CACHE_HOME": "relative"}) == Path("/home/someone/.cache/edgekit/build")
