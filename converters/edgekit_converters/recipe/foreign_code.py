"""TensorFlow, Keras and a user's own modules imported, and kept off the terminal.

    with quiet() as log:
        converter.convert()

Rules:
- inside `quiet()` what C++ code writes to file descriptor 2 goes to a scratch file, and Python's own `sys.stderr` still
  reaches the terminal, so that a progress bar is not interrupted;
- several threads may be quiet at once: the first redirects the process's descriptor 2 and the last restores it; each
  sees what was written since it began;
- exceptions pass through; `CapturedOutput.text()` gives what was written, for an error's message;
- EDGEKIT_CONVERTER_LOG=1 lets everything through.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_runtime.system.errors import MissingExtraError

_LOGGERS = ("tensorflow", "absl", "tf2onnx", "onnxslim", "torch", "torch.onnx", "root")
_TAIL_BYTES = 64_000


class CapturedOutput:
    """What was written to stderr while it was quiet."""

    def __init__(self, file: IO[bytes] | None = None) -> None:
        self._file = file
        self._start = 0 if file is None else os.fstat(file.fileno()).st_size

    def text(self) -> str:
        """Return the last 64 kB."""
        if self._file is None or self._file.closed:
            return ""
        descriptor = self._file.fileno()
        size = os.fstat(descriptor).st_size
        start = max(self._start, size - _TAIL_BYTES)
        return os.pread(descriptor, size - start, start).decode("utf-8", "replace")


class _StderrRedirect:
    """The process's stderr redirection, with a count of its users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._stack = contextlib.ExitStack()
        self._scratch: IO[bytes] | None = None

    def enter(self) -> CapturedOutput:
        with self._lock:
            if self._inside == 0:
                with contextlib.ExitStack() as stack:
                    stack.enter_context(warnings.catch_warnings())
                    warnings.simplefilter("ignore")
                    stack.enter_context(_quiet_loggers())
                    self._scratch = stack.enter_context(_redirected())
                    self._stack = stack.pop_all()
            self._inside += 1
            return CapturedOutput(self._scratch)

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._scratch = None
                self._stack.close()


_QUIET = _StderrRedirect()


@contextlib.contextmanager
def quiet() -> Iterator[CapturedOutput]:
    """Keep notices off the terminal while a conversion tool works."""
    if os.environ.get("EDGEKIT_CONVERTER_LOG"):
        yield CapturedOutput()
        return
    captured = _QUIET.enter()
    try:
        yield captured
    finally:
        _QUIET.leave()


@contextlib.contextmanager
def _redirected() -> Iterator[IO[bytes] | None]:
    try:
        saved = os.dup(2)
    except OSError:  # no stderr at all: a daemon
        yield None
        return
    python_stderr, own = sys.stderr, None
    with tempfile.TemporaryFile() as scratch:
        try:
            is_descriptor_2 = False
            with contextlib.suppress(AttributeError, OSError, ValueError):
                is_descriptor_2 = python_stderr.fileno() == 2
            if is_descriptor_2:
                python_stderr.flush()
                own = sys.stderr = _own_stderr(saved)
            os.dup2(scratch.fileno(), 2)
            yield scratch
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            if own is not None:
                if sys.stderr is own:
                    sys.stderr = python_stderr
                with contextlib.suppress(OSError):
                    own.flush()


_OWN: list[IO[str]] = []


def _own_stderr(descriptor: int) -> IO[str]:
    """Return a stream for `sys.stderr`. Never closed: another thread may still use it."""
    if not _OWN:
        _OWN.append(os.fdopen(os.dup(descriptor), "w", buffering=1, encoding="utf-8", errors="replace"))
    os.dup2(descriptor, _OWN[0].fileno(), inheritable=False)
    return _OWN[0]


@contextlib.contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Limit the tools' loggers to errors.
    The null handler stops `logging.warning` from configuring the root logger."""
    root, null = logging.getLogger(), logging.NullHandler()
    loggers = [root if name == "root" else logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    root.addHandler(null)
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        root.removeHandler(null)


def import_tensorflow() -> Any:
    """Import TensorFlow. Raises MissingExtraError with the command that installs it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        with quiet():
            import tensorflow
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise MissingExtraError("convert", "reading a Keras or TensorFlow model, or writing TFLite,") from error
    return tensorflow


def import_keras() -> Any:
    """Import Keras on TensorFlow. Raises SourceError for another backend."""
    import_tensorflow()
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "tensorflow"
    with quiet():
        import keras
    backend = keras.backend.backend()
    if backend != "tensorflow":
        do = "Set KERAS_BACKEND=tensorflow"
        raise SourceError(f"Keras runs on {backend} in this process; the converters need TensorFlow", do=do)
    return keras


@contextlib.contextmanager
def working_folder_on_path() -> Iterator[None]:
    """Let modules of the working folder be imported, as `python -m` does."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
