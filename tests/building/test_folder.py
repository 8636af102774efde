"""The folder that bundles go to."""

from __future__ import annotations

import threading

import pytest

from edgekit.building.build_journey import check_cache, output_folder
from edgekit.packaging.output_errors import OutputError


def test_a_folder_is_made_and_nothing_is_left_in_it(tmp_path):
    with output_folder(tmp_path / "a" / "b"):
        assert list((tmp_path / "a" / "b").iterdir()) == []


def test_what_was_made_for_a_build_that_failed_goes_away(tmp_path):
    with pytest.raises(KeyError), output_folder(tmp_path / "a" / "b"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_finished_file_keeps_its_folder(tmp_path):
    with pytest.raises(KeyError), output_folder(tmp_path / "a"):
        (tmp_path / "a" / "done.ekb").write_bytes(b"x")
        raise KeyError
    assert (tmp_path / "a" / "done.ekb").exists()


def test_a_place_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"), output_folder(tmp_path / "file" / "out"):
        pass


@pytest.mark.parametrize("inside", ["file", "file/deeper/still"])
def test_a_file_is_refused_as_the_cache_before_any_work(tmp_path, inside):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"not a directory\. Choose a folder with --cache"):
        check_cache(tmp_path / inside)


def test_a_cache_that_is_not_there_yet_is_not_made_by_looking_for_it(tmp_path):
    check_cache(tmp_path / "new" / "cache")
    check_cache(tmp_path)
    check_cache(None)
    assert list(tmp_path.iterdir()) == []


def test_a_second_build_waits_for_the_first_and_says_so(tmp_path):
    order, waiting = [], threading.Event()

    def progress(stage, done, total):
        order.append(stage.split(" in ")[0])
        waiting.set()

    def second():
        with output_folder(tmp_path / "out", progress):
            order.append("second")

    with output_folder(tmp_path / "out"):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(20)
        order.append("first is done")
    thread.join(20)
    assert order == ["waiting for another build", "first is done", "second"]


def test_a_second_build_goes_on_where_the_first_took_its_folder_away(tmp_path):
    waiting, found = threading.Event(), []

    def second():
        with output_folder(tmp_path / "out", lambda *_: waiting.set()):
            found.append((tmp_path / "out").is_dir())

    thread = threading.Thread(target=second)
    with pytest.raises(KeyError), output_folder(tmp_path / "out"):
        thread.start()
        assert waiting.wait(20)
        raise KeyError
    thread.join(20)
    assert found == [True]
