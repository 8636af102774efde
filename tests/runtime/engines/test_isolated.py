"""An engine in a process of its own: what happens there does not happen here. All processes are real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tiny
from native import compiled

from edgekit_runtime.engines.gpu_engine_cache import BUILD_S
from edgekit_runtime.engines.isolated import MOST_DEATHS, IsolatedHost, _Artifact
from edgekit_runtime.engines.registry import ENGINES, EngineSetup, available
from edgekit_runtime.system.children import environment
from edgekit_runtime.system.errors import EngineError, EngineHung
from edgekit_runtime.system.watchdog import FACTOR, LEAST_LIMIT_S

ENGINE = min(available())
RECIPE = tiny.RECIPE_OF_ENGINE[ENGINE]
FORMAT = ENGINES[ENGINE].formats[0]


@pytest.fixture
def host():
    made = IsolatedHost()
    yield made
    made.close()


def load(host, setup=EngineSetup()):  # noqa: B008
    return host.load(ENGINE, FORMAT, tiny.model_bytes(RECIPE), setup)


def given(engine, value=1):
    shape = [1 if n == -1 else n for n in engine.inputs[0].shape]
    return [np.full(shape, value, engine.inputs[0].dtype)]


def gone(pid):
    """Neither running nor left unreaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def wait_until_gone(pid, limit_s=20):
    """By the kernel's word, where it gives one: a process's own descriptor becomes readable when it ends."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    import select

    assert select.select([handle], [], [], limit_s)[0], "it is still there"
    os.close(handle)


def test_answers_as_the_engine_does_in_this_process(host):
    from edgekit_runtime.engines.registry import load_engine

    engine = load(host)
    with load_engine(FORMAT, tiny.model_bytes(RECIPE), engine=ENGINE) as here:
        for value in (1, 7, 3):
            np.testing.assert_array_equal(engine.run(given(engine, value))[0], here.run(given(here, value))[0])
        assert (engine.info, engine.inputs, engine.outputs) == (here.info, here.inputs, here.outputs)


def test_several_variants_share_one_process(host):
    engines = [load(host) for _ in range(3)]
    wanted = engines[0].run(given(engines[0]))[0]
    for engine in engines:
        np.testing.assert_array_equal(engine.run(given(engine))[0], wanted)
    pid = host.pid
    for engine in engines[:2]:
        engine.close()
    np.testing.assert_array_equal(engines[2].run(given(engines[2]))[0], wanted)
    engines[2].close()
    assert gone(pid)


def test_a_process_that_is_killed_is_an_error_and_then_started_again(host):
    engine = load(host)
    wanted = engine.run(given(engine))[0]
    os.kill(host.pid, signal.SIGSEGV)
    before = host.pid
    wait_until_gone(before)
    np.testing.assert_array_equal(engine.run(given(engine))[0], wanted)
    assert host.restarts == 1
    assert host.pid != before
    assert gone(before)


def stop(host):
    """The child holds still, as one that hangs in a kernel does."""
    os.kill(host.pid, signal.SIGSTOP)


def test_a_run_that_hangs_ends_the_process_and_the_next_one_answers():
    host = IsolatedHost(limit_s=lambda: 0.3)
    try:
        engine = load(host)
        wanted = engine.run(given(engine))[0]
        pid = host.pid
        stop(host)
        with pytest.raises(EngineHung, match=r"did not answer within 0\.3 s"):
            engine.run(given(engine))
        assert gone(pid)
        np.testing.assert_array_equal(engine.run(given(engine))[0], wanted)
    finally:
        host.close()


def test_it_can_be_killed_from_another_thread_while_it_hangs(host):
    engine = load(host)
    engine.run(given(engine))
    stop(host)
    killer = threading.Timer(0.1, host.kill)
    killer.start()
    with pytest.raises(EngineError, match="SIGKILL"):
        engine.run(given(engine))
    killer.join()
    engine.run(given(engine))


def test_one_that_dies_again_and_again_is_not_started_for_ever():
    host = IsolatedHost(limit_s=lambda: 0.05)
    try:
        engine = load(host)
        for _ in range(MOST_DEATHS):
            with pytest.raises(EngineHung):
                host._running()
                stop(host)
                engine.run(given(engine))
        with pytest.raises(EngineError, match="not be restarted"):
            engine.run(given(engine))
    finally:
        host.close()


def test_a_crash_while_loading_is_a_typed_error(tmp_path):
    if FORMAT != "tflite":
        pytest.skip("delegates are TFLite's")
    library = compiled(Path(__file__).parent / "delegate.c", tmp_path / "libnothing.so")
    host = IsolatedHost()
    with pytest.raises(EngineError, match="SIGABRT"):
        load(host, EngineSetup(delegate=f"{library},mode=crash"))
    host.close()


def test_closing_leaves_no_process_and_no_descriptor():
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").is_dir() else None
    for _ in range(3):
        host = IsolatedHost()
        engine = load(host)
        engine.run(given(engine))
        pid = host.pid
        engine.close()
        assert gone(pid)
    if before is not None:
        assert len(list(Path("/proc/self/fd").iterdir())) <= before


PARENT = """
import sys, tiny, numpy as np
from edgekit_runtime.engines.registry import ENGINES, EngineSetup
from edgekit_runtime.engines.isolated import IsolatedHost
host = IsolatedHost()
engine = host.load({engine!r}, ENGINES[{engine!r}].formats[0], tiny.model_bytes({recipe!r}), EngineSetup())
print(host.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux only")
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in a kernel"])
def test_the_death_of_the_application_ends_the_child(busy):
    program = PARENT.format(engine=ENGINE, recipe=RECIPE)
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True
    )
    child = int(parent.stdout.readline())
    if busy:  # not scheduled at all: nothing of its own could end it
        os.kill(child, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    if busy:
        os.kill(child, signal.SIGCONT)
    wait_until_gone(child)
    parent.stdin.close()
    parent.stdout.close()


def test_it_works_beside_other_threads(host):
    stopping = threading.Event()
    others = [threading.Thread(target=stopping.wait) for _ in range(8)]
    for thread in others:
        thread.start()
    engine = load(host)
    assert engine.run(given(engine))
    stopping.set()
    for thread in others:
        thread.join()


def test_a_larger_input_than_before_finds_room(host):
    if FORMAT != "onnx":
        pytest.skip("needs a free batch axis")
    engine = load(host)
    for count in (1, 64, 2, 3000):
        x = np.zeros((count, *engine.inputs[0].shape[1:]), engine.inputs[0].dtype)
        assert len(engine.run([x])[0]) == count


def test_no_process_where_none_can_be_started(monkeypatch):
    monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")
    with pytest.raises(EngineError, match="isolate=False"):
        IsolatedHost()


def test_the_first_run_on_a_gpu_may_take_as_long_as_building_for_it(host):
    """Drivers compile then; a software device took a minute, and was ended after ten seconds."""
    assert host._patience_s() == LEAST_LIMIT_S
    host._artifacts.append(_Artifact("ncnn", "ncnn", b"", EngineSetup(kernels="vulkan")))
    assert host._patience_s() == BUILD_S
    host._slowest_s = 60.0
    assert host._patience_s() == FACTOR * 60.0
