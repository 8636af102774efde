"""A child gets its job, and its result, its facts or its error come back as they were."""

from __future__ import annotations

import json
import subprocess

import pytest

from edgekit_runtime.bundle.jobs import ask
from edgekit_runtime.system.children import python_code
from edgekit_runtime.system.errors import MemoryExceeded, MissingExtraError, StorageError, install_command

SERVE = "import sys\nfrom edgekit_runtime.bundle.jobs import serve\n{work}\nsys.exit(serve(work))"


def came_of(work, job=None, **options):
    options.setdefault("silence_s", 60.0)
    return ask(python_code(SERVE.format(work=work)), job or {}, **options)


def test_the_job_goes_there_and_facts_and_result_come_back():
    work = (
        "def work(job, say):\n"
        "    for n in range(job['count']): say({'at': n})\n"
        "    return {'sum': sum(range(job['count']))}"
    )
    came = came_of(work, {"count": 3})
    assert (came.facts, came.result, came.error) == ([{"at": 0}, {"at": 1}, {"at": 2}], {"sum": 3}, None)


def test_what_an_engine_writes_to_stdout_is_no_fact():
    came = came_of(
        "def work(job, say):\n    print('INFO: [1]', 7, '{\"cut')\n    print('[1]')\n    return {'ok': True}"
    )
    assert (came.facts, came.result) == ([], {"ok": True})


def test_an_error_of_the_child_is_raised_as_what_it_was_there():
    work = (
        "from edgekit_runtime.system.errors import *\n"
        "def work(job, say):\n    raise MissingExtraError('image', 'a picture')"
    )
    came = came_of(work)
    assert type(came.error) is MissingExtraError
    assert came.error.do == f"Run: {install_command('image')}"
    assert came.result is None


def test_the_code_and_the_systems_number_of_an_error_come_back():
    work = (
        "from edgekit_runtime.system.errors import StorageError\ndef work(job, say):\n    raise StorageError('full', "
        "where='/x', code='disk-full') from OSError(28, 'No space left')"
    )
    error = came_of(work).error
    assert (type(error), error.code, error.what, error.where) == (StorageError, "disk-full", "full", "/x")
    assert error.errno == 28


def test_too_little_memory_is_a_typed_error():
    came = came_of("def work(job, say):\n    raise MemoryError", {"path": "net.ekb"})
    assert type(came.error) is MemoryExceeded
    assert came.error.where == "net.ekb"


def test_what_was_said_before_a_crash_counts():
    came = came_of("import os\ndef work(job, say):\n    say({'entered': 1})\n    os.kill(os.getpid(), 11)")
    assert (came.facts, came.crashed, came.interrupted, came.result) == ([{"entered": 1}], "SIGSEGV", "", None)


def test_what_was_said_before_it_fell_silent_counts():
    came = came_of("import time\ndef work(job, say):\n    say({'entered': 1})\n    time.sleep(60)", silence_s=2.0)
    assert (came.facts, came.silent) == ([{"entered": 1}], True)


def test_a_fault_of_its_own_leaves_its_last_words():
    came = came_of("def work(job, say):\n    raise RuntimeError('by mistake')")
    assert (came.result, came.error) == (None, None)
    assert came.last_words == "RuntimeError: by mistake"


@pytest.mark.parametrize("said", ["[" * 100_000, '{"error": 1, "at": 2}', "null", "\ud800"])
def test_no_line_of_a_child_breaks_its_parent(said):
    def run(command, **options):
        return subprocess.CompletedProcess(command, 0, said + '\n{"result": {"n": 1}}\n', "")

    assert ask([], {}, silence_s=1.0, run=run).result == {"n": 1}


def test_the_job_is_no_argument():
    def run(command, **options):
        assert "s3cret" not in " ".join(command)
        assert json.loads(options["input"]) == {"key": "s3cret"}
        return subprocess.CompletedProcess(command, 0, "", "")

    assert ask(["python"], {"key": "s3cret"}, silence_s=1.0, run=run).result is None
