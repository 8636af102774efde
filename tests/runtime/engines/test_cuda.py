"""The driver's calls, against a stand-in whose GPU memory is the processor's; and a machine that has none."""

from __future__ import annotations

import ctypes
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from native import compiled

from edgekit_runtime.engines import cuda
from edgekit_runtime.system.errors import EngineError

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _afresh():
    """What is known of the driver is known once a process."""
    yield
    cuda.gpu.cache_clear()
    cuda._driver.cache_clear()


@pytest.fixture
def library(tmp_path, monkeypatch):
    made = compiled(HERE / "driver.c", tmp_path / "libcuda.so.1")
    cuda.gpu.cache_clear()
    cuda._driver.cache_clear()
    monkeypatch.setattr(cuda, "_DRIVER", str(made))
    return ctypes.CDLL(str(made))


@pytest.mark.usefixtures("library")
def test_the_gpu_has_a_name_a_capability_and_a_driver():
    assert cuda.gpu() == cuda.Gpu("Stub H200", (9, 0), "13.1")
    assert (cuda.absent(), cuda.identity()) == ("", "Stub H200, SM 9.0, driver 13.1")


def test_what_goes_up_comes_down_from_any_thread_and_everything_is_freed(library):
    array = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
    found = []

    def through(lane):
        buffer = lane.buffer(array.nbytes)
        with lane.current():
            lane.upload(buffer, array[:, ::-1])
            buffer.view(array.dtype, array.shape)[...] = 0
            lane.download(buffer, array.nbytes)
            lane.wait()
        found.append(buffer.view(array.dtype, array.shape).copy())

    with closing(cuda.CudaLane()) as lane:
        thread = threading.Thread(target=through, args=(lane,))
        thread.start()
        thread.join()
        assert library.stub_live() == 3
    lane.close()
    assert library.stub_live() == 0
    np.testing.assert_array_equal(found[0], array[:, ::-1])


def test_memory_that_is_not_there_is_an_engine_error(library):
    with (
        closing(cuda.CudaLane()) as lane,
        pytest.raises(EngineError, match=r"refuses cuMemAlloc_v2: out of memory \(2\)"),
    ):
        lane.buffer(1 << 41)
    assert library.stub_live() == 0


@pytest.mark.parametrize(("variable", "why"), [("STUB_EMPTY", "shows no GPU"), ("STUB_BROKEN", "refuses cuInit")])
@pytest.mark.usefixtures("library")
def test_a_driver_without_a_gpu_says_so(monkeypatch, variable, why):
    monkeypatch.setenv(variable, "1")
    assert why in cuda.absent()
    assert cuda.identity() == ""


def test_a_machine_without_a_driver_says_so(monkeypatch):
    monkeypatch.setattr(cuda, "_DRIVER", "libcuda-that-is-not-there.so.1")
    cuda.gpu.cache_clear()
    cuda._driver.cache_clear()
    with pytest.raises(EngineError, match=r"no NVIDIA driver is installed: libcuda-that"):
        cuda.CudaLane()
