"""Built engines on disk: one builder, keys of all that they depend on, and nothing that is damaged."""

from __future__ import annotations

import os
import threading

import pytest

from edgekit_runtime.engines.gpu_engine_cache import MOST, key_of, load_or_build

KEY = {"data": b"model", "library": "tensorrt 10.13", "shapes": "1", "gpu": "H200, SM 9.0, driver 13.0"}


@pytest.mark.parametrize("part", KEY)
def test_each_part_of_the_key_makes_another_file(part):
    other = {**KEY, part: KEY[part] + (b"!" if part == "data" else "!")}
    assert key_of(**KEY) != key_of(**other)
    assert key_of(**KEY) == key_of(**KEY)


def test_what_was_built_is_read_and_what_was_damaged_is_built_again(tmp_path):
    made = []

    def build():
        made.append(1)
        return b"plan %d" % len(made)

    assert [load_or_build(tmp_path, "a", build) for _ in range(3)] == [b"plan 1"] * 3
    file = tmp_path / "a.engine"
    file.write_bytes(file.read_bytes()[:-1])
    assert [load_or_build(tmp_path, "a", build) for _ in range(2)] == [b"plan 2"] * 2


def test_nothing_is_kept_where_nothing_may_be_and_a_folder_that_cannot_be_written_costs_no_answer(tmp_path):
    assert load_or_build(None, "a", lambda: b"plan") == b"plan"
    (tmp_path / "file").write_bytes(b"")
    assert load_or_build(tmp_path / "file" / "folder", "a", lambda: b"plan") == b"plan"


@pytest.mark.skipif(os.name != "posix", reason="looks at modes")
def test_what_another_user_could_replace_is_built_again(tmp_path):
    folder = tmp_path / "engines"
    made = iter([b"first", b"second"])
    assert load_or_build(folder, "a", lambda: next(made)) == b"first"
    folder.chmod(0o777)
    assert load_or_build(folder, "a", lambda: next(made)) == b"second"


def test_two_that_want_the_same_build_it_once(tmp_path):
    begun, go, made, found = threading.Event(), threading.Event(), [], []

    def build():
        made.append(1)
        begun.set()
        assert go.wait(10)
        return b"plan"

    threads = [threading.Thread(target=lambda: found.append(load_or_build(tmp_path, "a", build))) for _ in range(2)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    go.set()
    for thread in threads:
        thread.join()
    assert (made, found) == ([1], [b"plan"] * 2)


def test_the_least_recently_used_goes_first(tmp_path):
    for number in range(MOST):
        load_or_build(tmp_path, f"{number}", lambda: b"plan")
        os.utime(tmp_path / f"{number}.engine", (number, number))
    load_or_build(tmp_path, "0", lambda: b"another")
    load_or_build(tmp_path, "new", lambda: b"plan")
    kept = {file.stem for file in tmp_path.glob("*.engine")}
    assert kept == {"0", "new", *(str(number) for number in range(2, MOST))}
