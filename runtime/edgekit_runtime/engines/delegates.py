"""External TFLite delegates: a shared library that takes over the parts of a graph that it can run (Edge TPU, an NPU).

    delegate = load_delegate(interpreter_module, "libedgetpu.so.1,device=usb:0")

Rules:
- what cannot be loaded is a typed error that says why: no such file, no delegate, or the library's own words;
- a library is looked at before the interpreter is asked, which would print a traceback of its own for a missing symbol.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from edgekit_runtime.errors import EngineError

__all__ = ["load_delegate", "split"]

_SYMBOLS = ("tflite_plugin_create_delegate", "tflite_plugin_destroy_delegate")
_DO = "Check the path, and that the library is a TFLite external delegate for this processor"


def split(delegate: str) -> tuple[str, dict[str, str]]:
    """ "PATH,key=value,..." -> the path and the options that the library is given. Raises EngineError."""
    path, *pairs = (part.strip() for part in delegate.split(","))
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise EngineError(f"'{pair}' is no option", where=delegate, do='Write "LIBRARY,key=value,..."')
        options[key.strip()] = value.strip()
    return path, options


def load_delegate(module: ModuleType, delegate: str) -> Any:
    """module: the interpreter's. Returns what its `Interpreter(experimental_delegates=[...])` takes.

    Raises EngineError.
    """
    import ctypes

    path, options = split(delegate)
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise EngineError(f"the delegate cannot be loaded: {error}", where=path, do=_DO) from error
    missing = [symbol for symbol in _SYMBOLS if not hasattr(library, symbol)]
    if missing:
        raise EngineError(f"this library is no TFLite delegate: it has no {missing[0]}", where=path, do=_DO)
    try:
        return module.load_delegate(path, options)
    except (ValueError, RuntimeError, OSError) as error:
        own_words = str(error).removeprefix(f"Failed to load delegate from {path}").split()
        why = " ".join(own_words) or "it gave no reason; the accelerator may be missing"
        raise EngineError(f"the delegate refuses to start: {why}", where=path, do=_DO) from error
