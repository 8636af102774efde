"""The NVIDIA driver's own interface (libcuda): the GPU, memory on it, and copies.

    gpu().name, gpu().sm                         # "NVIDIA H200", (9, 0); EngineError without a GPU
    with closing(CudaLane()) as lane:            # a stream, and memory that lives as long as it
        lane.upload(lane.buffer(array.nbytes), array)

Rules:
- it needs the driver alone, no CUDA toolkit or package; importing this module loads nothing;
- without a driver or a GPU, one failed `dlopen` tells which of the two is missing;
- the context is the device's primary one, shared with the engines' libraries; CudaLane makes it current per call;
- the first GPU that CUDA_VISIBLE_DEVICES shows is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.system.errors import EngineError

_DRIVER = "libcuda.so.1"
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (ctypes.c_uint,),
    "cuDriverGetVersion": (ctypes.POINTER(ctypes.c_int),),
    "cuDeviceGetCount": (ctypes.POINTER(ctypes.c_int),),
    "cuDeviceGet": (ctypes.POINTER(ctypes.c_int), ctypes.c_int),
    "cuDeviceGetName": (ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
    "cuDeviceGetAttribute": (ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_int),
    "cuDevicePrimaryCtxRelease_v2": (ctypes.c_int,),
    "cuCtxSetCurrent": (ctypes.c_void_p,),
    "cuMemAlloc_v2": (ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t),
    "cuMemFree_v2": (ctypes.c_uint64,),
    "cuMemAllocHost_v2": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t),
    "cuMemFreeHost": (ctypes.c_void_p,),
    "cuMemcpyHtoDAsync_v2": (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p),
    "cuMemcpyDtoHAsync_v2": (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p),
    "cuStreamCreate": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint),
    "cuStreamDestroy_v2": (ctypes.c_void_p,),
    "cuStreamSynchronize": (ctypes.c_void_p,),
}
_NON_BLOCKING = 1


@dataclass(frozen=True)
class Gpu:
    """sm: compute capability, (9, 0) for an H100 or H200.
    driver: the CUDA version that the driver supports.
    """

    name: str
    sm: tuple[int, int]
    driver: str

    @property
    def label(self) -> str:
        return f"{self.name}, SM {self.sm[0]}.{self.sm[1]}"


@functools.cache
def gpu() -> Gpu:
    """The first visible GPU. Raises EngineError."""
    driver = _driver()
    count, index = ctypes.c_int(), ctypes.c_int()
    _call(driver, "cuDeviceGetCount", ctypes.byref(count))
    if count.value < 1:
        raise EngineError("the NVIDIA driver shows no GPU", do="Unset CUDA_VISIBLE_DEVICES, or pass the GPU through")
    _call(driver, "cuDeviceGet", ctypes.byref(index), 0)
    name = ctypes.create_string_buffer(256)
    _call(driver, "cuDeviceGetName", name, len(name), index.value)
    found = [ctypes.c_int(), ctypes.c_int()]
    for value, attribute in zip(found, (_MAJOR, _MINOR), strict=True):
        _call(driver, "cuDeviceGetAttribute", ctypes.byref(value), attribute, index.value)
    version = ctypes.c_int()
    _call(driver, "cuDriverGetVersion", ctypes.byref(version))
    return Gpu(
        name.value.decode(errors="replace"),
        (found[0].value, found[1].value),
        f"{version.value // 1000}.{version.value % 1000 // 10}",
    )


def absent() -> str:
    """Why no GPU can be used here; empty if one can."""
    try:
        gpu()
    except EngineError as error:
        return error.what
    return ""


def identity() -> str:
    """The GPU and its driver, on which verdicts and built engines depend; empty without a GPU."""
    return "" if absent() else f"{gpu().label}, driver {gpu().driver}"


class Buffer:
    """Memory on the GPU and as much pinned memory here. address: on the GPU."""

    def __init__(self, driver: Any, size: int) -> None:
        self._driver, self.size = driver, max(1, size)
        device, host = ctypes.c_uint64(), ctypes.c_void_p()
        _call(driver, "cuMemAlloc_v2", ctypes.byref(device), self.size)
        self.address = int(device.value)
        try:
            _call(driver, "cuMemAllocHost_v2", ctypes.byref(host), self.size)
        except BaseException:
            driver.cuMemFree_v2(self.address)
            raise
        self.host = int(host.value or 0)
        self._bytes = np.ctypeslib.as_array((ctypes.c_uint8 * self.size).from_address(self.host))

    def view(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Its pinned memory as an array, valid until the buffer is freed."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        array: NDArray[Any] = self._bytes[:size].view(dtype).reshape(shape)
        return array

    def free(self) -> None:
        self._driver.cuMemFree_v2(self.address)
        self._driver.cuMemFreeHost(self.host)


class CudaLane:
    """A stream on the first visible GPU, and its buffers. One thread at a time."""

    def __init__(self) -> None:
        gpu()
        self._driver = _driver()
        self._device, self._context, self._stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        _call(self._driver, "cuDeviceGet", ctypes.byref(self._device), 0)
        _call(self._driver, "cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device.value)
        self._buffers: list[Buffer] = []
        self._open = True
        with self.current():
            _call(self._driver, "cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING)

    @property
    def stream(self) -> int:
        return int(self._stream.value or 0)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Within it, CUDA calls of this thread, a library's too, use the GPU of this lane."""
        _call(self._driver, "cuCtxSetCurrent", self._context)
        yield

    def buffer(self, size: int) -> Buffer:
        with self.current():
            made = Buffer(self._driver, size)
        self._buffers.append(made)
        return made

    def upload(self, buffer: Buffer, array: NDArray[Any]) -> None:
        """Enqueue the copy to the GPU. The array has been read when this returns."""
        np.copyto(buffer.view(array.dtype, array.shape), array)
        _call(self._driver, "cuMemcpyHtoDAsync_v2", buffer.address, buffer.host, array.nbytes, self._stream)

    def download(self, buffer: Buffer, size: int) -> None:
        """Enqueue the copy to the buffer's pinned memory, which has it after `wait`."""
        _call(self._driver, "cuMemcpyDtoHAsync_v2", buffer.host, buffer.address, size, self._stream)

    def wait(self) -> None:
        _call(self._driver, "cuStreamSynchronize", self._stream)

    def close(self) -> None:
        """Idempotent."""
        if not self._open:
            return
        self._open = False
        with contextlib.suppress(EngineError), self.current():
            for buffer in self._buffers:
                buffer.free()
            self._driver.cuStreamDestroy_v2(self._stream)
        self._buffers.clear()
        self._driver.cuDevicePrimaryCtxRelease_v2(self._device.value)


@functools.cache
def _driver() -> Any:
    """Raises EngineError."""
    try:
        driver = ctypes.CDLL(_DRIVER)
        for name, arguments in _SIGNATURES.items():
            getattr(driver, name).argtypes = arguments
    except (OSError, AttributeError) as error:
        raise EngineError(
            f"no NVIDIA driver is installed: {error}", do="Install the driver, or run it on the processor"
        ) from error
    _call(driver, "cuInit", 0)
    return driver


def _call(driver: Any, name: str, *arguments: Any) -> None:
    code = getattr(driver, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        with contextlib.suppress(AttributeError):
            driver.cuGetErrorString(code, ctypes.byref(text))
        raise EngineError(f"the NVIDIA driver refuses {name}: {(text.value or b'').decode() or 'error'} ({code})")
