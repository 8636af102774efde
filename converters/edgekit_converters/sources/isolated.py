"""An untrusted model, opened in an isolated process without network and with its own folder.

    source = open_isolated(Path("net.keras"), LoadOptions())
    source.predict([batch])                 # asked of that process

Rules:
- Keras, TensorFlow and PyTorch open the file, answer, and write the float model in `isolated_source_child`;
  this process gets arrays and the bytes of .tflite and .onnx files, and unpickles nothing;
- its answers are untrusted: the digest of the file is computed here and must agree;
- it gets the variables that frameworks need, and none that may hold a secret;
- its memory and files are bounded by the model's size; each answer by processor time and by `_ANSWER_S`;
- the process lives as long as the source; it ends when this one does;
- if the system lacks a part of the sandbox, a note of the source says so; EDGEKIT_ISOLATE=off opens models in this
  process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.recipe import conversion_errors as errors
from edgekit_converters.sources.load_options import LoadOptions, described_json
from edgekit_converters.sources.source_model import (
    Description,
    Note,
    SourceModel,
    changed_error,
    model_sha256,
    saved_model_sha256,
)
from edgekit_runtime.system import errors as runtime_errors
from edgekit_runtime.system.children import (
    CPU_S,
    allowed_bytes,
    crash_signal,
    environment,
    machine_bytes,
    python_module,
)
from edgekit_runtime.system.errors import BundleError, EdgekitError
from edgekit_runtime.system.strict_json import from_json, load_json

_MODULE = "edgekit_converters.isolated_source_child"
_LARGEST, _LARGEST_HEAD = 1 << 32, 1 << 24
_MEMORY_BYTES = 8 << 30
"""Besides what the file's size allows. Frameworks reserve some 2 GiB, more on machines of many cores."""
_ANSWER_S, _LOOK_S = 3600.0, 1.0
_NONSENSE = (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError, RecursionError, MemoryError)
_PARTS = {"files": "keep it from writing files outside its folder", "network": "keep it from the network"}

_VARIABLES = {
    *("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV", "ORT_DISABLE_TELEMETRY"),
    *("EDGEKIT_CONVERTER_LOG", "EDGEKIT_STATE_DIR", "EDGEKIT_PARENT", "MALLOC_ARENA_MAX"),
    *("SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE"),
}
_FAMILIES = (
    *("LC_", "PYTHON", "OMP_", "OPENBLAS_", "MKL_", "KMP_", "NUMEXPR_", "KERAS_", "XDG_"),
    *("TF_CPP_", "TF_ENABLE_", "TF_DISABLE_", "TF_NUM_", "TF_USE_", "TF_XLA_", "TF_FORCE_", "TF_DETERMINISTIC_"),
)
"""TF_ alone is Terraform's as well, with its tokens."""

_ELSEWHERE = "Build on Linux 5.13 or later, on x86-64 or ARM64"


def is_on() -> bool:
    """Whether to isolate: not with EDGEKIT_ISOLATE=off, or if Python cannot be started."""
    return os.environ.get("EDGEKIT_ISOLATE") != "off" and bool(sys.executable) and not getattr(sys, "frozen", False)


@dataclass(frozen=True, eq=False, kw_only=True)
class IsolatedSource(SourceModel):
    """A SourceModel that runs in its own process."""

    child: _SourceChild = field(repr=False)

    def predict(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        arrays = [np.ascontiguousarray(array, spec.dtype) for array, spec in zip(inputs, self.inputs, strict=True)]
        head, data = self.child.ask({"do": "predict", "arrays": _described(arrays)}, *arrays)
        with _understood(self.path):
            answers = unpack(head["arrays"], data)
        if [(str(a.dtype), a.ndim) for a in answers] != [(spec.dtype, len(spec.shape)) for spec in self.outputs]:
            raise errors.SourceError("its answers have other types or axes than it described", where=str(self.path))
        return self.sized(answers, len(arrays[0]))

    @cached_property
    def _onnx(self) -> bytes:
        return self._converted({"do": "onnx"})

    def float_model(self, format: str, batch: int) -> bytes:  # noqa: A002
        """Return the float model as `stored_bytes` writes it. Raises ConversionError."""
        from edgekit_converters.recipe.artifact import FloatModel, from_stored

        data = self._converted({"do": "float-model", "format": format, "batch": batch})
        with _understood(self.path):
            from_stored(FloatModel, data)
        return data

    def _converted(self, head: dict[str, Any]) -> bytes:
        return self.child.ask({**head, "arrays": _described(self.items)}, *self.items)[1]


def _described(arrays: Sequence[NDArray[Any]]) -> list[Any]:
    return [[array.dtype.str, list(array.shape)] for array in arrays]


def open_isolated(path: Path, options: LoadOptions) -> IsolatedSource:
    """Open the model. Raises what `load` raises, and SourceError if the process dies."""
    child = _SourceChild(path)
    chosen = {**described_json(options), "path": str(path.absolute())}
    try:
        head, _ = child.ask({"do": "open", "options": chosen})
        with _understood(path):
            described = replace(from_json(Description, head["source"], "a model's description"), path=path)
            missing = [part for part in head["missing"] if part in _PARTS]
        # Everything made of a model is stored under its digest, so the process may not choose one
        try:
            own = saved_model_sha256(path, options) if path.is_dir() else model_sha256(path, options)
        except OSError as error:
            raise changed_error(path) from error
        if described.sha256 != own:
            what = "the process that opened it describes another file, or the file changed meanwhile"
            raise errors.SourceError(what, where=str(path), do="Run the build again when nothing writes to the file")
    except BaseException:
        child.close()
        raise
    notes = tuple(Note("not-isolated", f"this system cannot {_PARTS[part]}", _ELSEWHERE) for part in missing)
    fields = {**vars(described), "notes": (*described.notes, *notes)}
    return IsolatedSource(child=child, **fields)


@contextlib.contextmanager
def _understood(path: Path) -> Iterator[None]:
    """Turn any fault in reading an answer into one SourceError."""
    try:
        yield
    except (BundleError, *_NONSENSE) as error:
        raise _not_understood(path) from error


def _not_understood(path: Path) -> EdgekitError:
    do = "Do not use a model of an author you do not know; otherwise set EDGEKIT_CONVERTER_LOG=1 and run it again"
    return errors.SourceError("the process that opened it returned a damaged answer", where=str(path), do=do)


class _SourceChild:
    """The child process; threads take turns."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock, self._given_up = path, threading.Lock(), ""
        self._folder = tempfile.TemporaryDirectory(prefix="edgekit-model-")
        own, keras = self._folder.name, os.environ.get("KERAS_HOME") or str(Path.home() / ".keras")
        sizes = (file.stat().st_size for file in (path.rglob("*") if path.is_dir() else [path]))
        self._memory = allowed_bytes(sum(sizes), machine_bytes(), _MEMORY_BYTES)
        log = None if os.environ.get("EDGEKIT_CONVERTER_LOG") else subprocess.DEVNULL
        # What Python, the frameworks and edgekit's own modules need. No passphrase, token or key of another program.
        needed = {k: v for k, v in environment().items() if k in _VARIABLES or k.startswith(_FAMILIES)}
        environ = {**needed, "HOME": own, "TMPDIR": own, "KERAS_HOME": keras, "CUDA_VISIBLE_DEVICES": "-1"}
        self._process = subprocess.Popen(
            python_module(_MODULE, own, str(path.absolute()), keras, str(self._memory)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=own,
            env={**environ, "TORCHINDUCTOR_CACHE_DIR": own, "XDG_CACHE_HOME": own, "PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=True,  # no terminal, and Ctrl-C is this process's to answer
        )
        self.close = weakref.finalize(self, _end, self._process, self._folder)

    def ask(self, head: dict[str, Any], *arrays: NDArray[Any]) -> tuple[dict[str, Any], bytes]:
        """Send one request. Raises the process's error, or SourceError if the process died."""
        answered = threading.Event()
        with self._lock:
            threading.Thread(target=self._watch, args=(answered,), daemon=True).start()
            try:
                write_frame(cast(IO[bytes], self._process.stdin), head, *(array.tobytes() for array in arrays))
                answer, data = read_frame(cast(IO[bytes], self._process.stdout))
            except (OSError, EOFError) as error:
                raise self._ended() from error
            except (ValueError, MemoryError) as error:  # where the next answer begins is unknown
                _kill(self._process)
                raise _not_understood(self._path) from error
            finally:
                answered.set()
        if "error" in answer:
            with _understood(self._path):
                reply = answer["error"]
                if not all(isinstance(reply[part], str) for part in ("type", "what", "where", "do")):
                    raise TypeError("an error has four texts")
                kind = getattr(errors, reply["type"], None) or getattr(runtime_errors, reply["type"], None)
                if not (isinstance(kind, type) and issubclass(kind, EdgekitError)):
                    kind = errors.SourceError
                raised = kind.__new__(kind)
                where = reply["where"].replace(str(self._path.absolute()), str(self._path))
                EdgekitError.__init__(raised, reply["what"], where=where, do=reply["do"])
            raise raised
        return answer, data

    def _watch(self, answered: threading.Event) -> None:
        """End the process if it takes too long or fills the disk."""
        until = time.monotonic() + _ANSWER_S
        while not self._given_up and not answered.wait(min(_LOOK_S, max(0.0, until - time.monotonic()))):
            late, full = time.monotonic() >= until, _bytes_in(Path(self._folder.name)) > self._memory
            self._given_up = "time" if late else "files" if full else ""
        if self._given_up:
            _kill(self._process)

    def _ended(self) -> EdgekitError:
        _kill(self._process)
        code = self._process.wait()
        if self._given_up == "files":
            what = f"it wrote more than the {self._memory / 1e9:.1f} GB that a model of its size may take"
            return errors.SourceError(what, where=str(self._path), do="Export the network without its own files")
        if self._given_up or crash_signal(code) == "SIGXCPU":
            bound = f"{_ANSWER_S:.0f} s" if self._given_up else f"{CPU_S} s of processor time for each core"
            what = f"one answer took longer than {bound}, and was given up"
            do = "If it may wait for something outside, export it to ONNX or TFLite; else use a smaller model"
            return errors.SourceError(what, where=str(self._path), do=do)
        what = f"the process that opened it ended ({crash_signal(code) or code})"
        do = f"Set EDGEKIT_CONVERTER_LOG=1 to see what it said; it may take {self._memory / 1e9:.0f} GB of memory"
        return errors.SourceError(what, where=str(self._path), do=do)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and, where permitted, its children."""
    if process.poll() is None and hasattr(os, "killpg"):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _bytes_in(folder: Path) -> int:
    found = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found += Path(place, name).lstat().st_blocks * 512
    return found


def _end(process: subprocess.Popen[bytes], folder: tempfile.TemporaryDirectory[str]) -> None:
    _kill(process)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    folder.cleanup()


def write_frame(pipe: IO[bytes], head: dict[str, Any], *parts: bytes) -> None:
    """Write one frame: a length, JSON, then as many bytes as it says."""
    text = json.dumps({**head, "bytes": sum(map(len, parts))}).encode()
    pipe.write(len(text).to_bytes(8, "little") + text)
    for part in parts:
        pipe.write(part)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    """Read one frame.
    Raises EOFError if the other side is gone, ValueError for another format, MemoryError for too much."""
    size = int.from_bytes(_exactly(pipe, 8), "little")
    if size > _LARGEST_HEAD:
        raise ValueError(f"a head of {size} bytes")
    head = load_json(_exactly(pipe, size))
    if not isinstance(head, dict) or type(head.get("bytes")) is not int or not 0 <= head["bytes"] <= _LARGEST:
        raise ValueError("no frame")
    return head, _exactly(pipe, head["bytes"])


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    """Read exactly `size` bytes."""
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data


def unpack(shapes: list[Any], data: bytes) -> list[NDArray[Any]]:
    """Split bytes into arrays. Raises ValueError unless they add up exactly."""
    arrays, position = list[NDArray[Any]](), 0
    for kind, sizes in shapes:
        dtype = np.dtype(str(kind))
        if dtype.hasobject:
            raise ValueError("no numbers")
        count = int(np.prod(sizes, dtype=np.int64))
        array: NDArray[Any] = np.frombuffer(data, dtype, count, position).reshape(sizes).copy()
        arrays.append(array)
        position += array.nbytes
    if position != len(data):
        raise ValueError(f"{len(data)} bytes for {position}")
    return arrays
