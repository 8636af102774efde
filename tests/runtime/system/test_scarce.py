"""A process that may take little address space: it opens and answers, or says that memory is what it lacks."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
import threading

import pytest
import tiny

from edgekit_runtime import CacheOptions, open_bundle
from edgekit_runtime.engines.registry import available
from edgekit_runtime.system.children import environment
from edgekit_runtime.system.errors import EngineError, MemoryExceeded
from edgekit_runtime.system.memory import scarce

resource = pytest.importorskip("resource", reason="limits of the address space are POSIX's")

OPENS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]) << 20,) * 2)
from edgekit_runtime import EdgekitError, open_bundle
try:
    with open_bundle(sys.argv[1]) as model:
        import numpy as np
        print("answered", model.predict(np.zeros((8, 8, 3), np.uint8)).source)
except EdgekitError as error:
    print(type(error).__name__, error)
"""


def opened(path, mib, tmp_path, **env):
    variables = {**environment(), "EDGEKIT_STATE_DIR": str(tmp_path / "state"), "OPENBLAS_NUM_THREADS": "1", **env}
    command = [sys.executable, "-c", OPENS, str(path), str(mib)]
    return subprocess.run(command, env=variables, capture_output=True, text=True)


@pytest.mark.parametrize("tune", ["off", "1"])
def test_half_a_gibibyte_is_enough(tmp_path, tune):
    path = tiny.bundle_for(min(available()), tmp_path)
    done = opened(path, 512, tmp_path, EDGEKIT_TUNE=tune)
    assert done.stdout == "answered device\n", done.stdout + done.stderr


def test_little_is_told_as_little_and_never_as_anything_else(tmp_path):
    path = tiny.bundle_for(min(available()), tmp_path)
    told = set()
    for mib in range(130, 405, 25):
        done = opened(path, mib, tmp_path, EDGEKIT_TUNE="off")
        # Not even the package, or NumPy, could be imported; how much OpenBLAS takes depends on the processor.
        if not done.stdout and re.search("import|OpenBLAS error", done.stderr):
            continue
        said = done.stdout.split(" ")[0].strip()
        assert said in ("answered", "MemoryExceeded"), (mib, done.stdout, done.stderr)
        told.add(said)
    assert told, "none of them came to open it"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libx.so: failed to map segment from shared object"),
        RuntimeError("std::bad_alloc"),
        EngineError("engine 'litert' cannot be imported: libx.so: failed to map segment from shared object"),
    ],
)
def test_whatever_the_lack_of_memory_breaks_is_told_as_that(error):
    with (
        pytest.raises(MemoryExceeded, match=r"faces\.ekb: this process has no memory left") as caught,
        scarce("faces.ekb"),
    ):
        raise error
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error", [RuntimeError("odd"), OSError(errno.ENOENT, "no file"), EngineError("odd"), ValueError("x")]
)
def test_anything_else_stays_what_it_is(error):
    with pytest.raises(type(error)) as caught, scarce("faces.ekb"):
        raise error
    assert caught.value is error


def test_a_thread_that_the_system_refuses_is_one_error_and_the_next_request_is_answered(tmp_path, monkeypatch):
    """The watchdog starts with the first request, the batcher's thread with the first that has to wait."""
    start, refused = threading.Thread.start, []

    def refuse(thread):
        if thread.name.startswith("edgekit-") and thread.name not in refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    with open_bundle(tiny.bundle_for(min(available()), tmp_path), cache=False) as model:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(MemoryExceeded, match=r"edgekit-watchdog: .*more threads .* \(ulimit -u, TasksMax\)"):
            model.predict(tiny.RED)
        assert model.predict(tiny.RED).source == "device"
        with pytest.raises(
            MemoryExceeded, match=r"edgekit-batcher: .*cannot start more threads .*\(ulimit -u, TasksMax\)"
        ):
            model.submit(tiny.RED)
        assert model.submit(tiny.RED).result(30).source == "device"


def test_a_cache_on_disk_goes_without_a_thread_and_the_answer_stands(tmp_path, monkeypatch):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == "edgekit-disk-cache":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    path = tiny.bundle_for(min(available()), tmp_path)
    with open_bundle(path, cache=CacheOptions(disk=tmp_path / "a.db")) as model:
        assert model.predict(tiny.RED).source == "device"
