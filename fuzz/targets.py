"""Everything that is fuzzed, by name; what is not asked for is not imported.

INSTRUMENTS stands here and not beside the targets: it must be known before what it names is imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzz.target import Target

_BUNDLE = (
    "edgekit_runtime.bundle", "edgekit_runtime.contract.detect", "edgekit_runtime.system.strict_json",
)  # fmt: skip
_TABLE: dict[str, tuple[str, tuple[str, ...]]] = {
    "bundle": ("fuzz.bundles:bundle", _BUNDLE),
    "signed": ("fuzz.bundles:signed", _BUNDLE),
    "header": ("fuzz.bundles:header", _BUNDLE),
    "manifest": ("fuzz.bundles:manifest", _BUNDLE),
    "root": (
        "fuzz.trust:root",
        ("edgekit_runtime.bundle", "edgekit_runtime.system.strict_json", "edgekit_runtime.bundle.signature"),
    ),
    "journal": ("fuzz.journal:journal", ("edgekit_runtime.install.journal", "edgekit_runtime.system.strict_json")),
    "tflite": ("fuzz.models:tflite", ("edgekit_runtime.modelfile",)),
    "onnx": ("fuzz.models:onnx", ("edgekit_runtime.modelfile",)),
    "gguf": ("fuzz.models:gguf", ("edgekit_runtime.modelfile",)),
    "picture": ("fuzz.pictures:picture", ("edgekit_runtime.contract",)),
    "frame": ("fuzz.pictures:frame", ("edgekit_runtime.contract",)),
    "answer": ("fuzz.answers:answer", ("edgekit_runtime.cache.stored_answers", "edgekit_runtime.contract.adapt")),
    "array": ("fuzz.arrays:array", ("edgekit_runtime.contract.array_file",)),
    "window": ("fuzz.telemetry:window", ("edgekit_runtime.telemetry",)),
    "event": ("fuzz.telemetry:event", ("edgekit_runtime.telemetry",)),
    "state": ("fuzz.telemetry:state", ("edgekit.fleet.store.records",)),
    "request": ("fuzz.wire:request", ("edgekit_runtime.remote",)),
    "response": ("fuzz.wire:response", ("edgekit_runtime.remote",)),
    "http": ("fuzz.wire:http", ("edgekit.host.http1",)),
}
TARGETS = {name: place for name, (place, _) in _TABLE.items()}
"""Name -> module:function that gives the `Target`."""

INSTRUMENTS = {name: packages for name, (_, packages) in _TABLE.items()}
"""Name -> the packages whose branches guide the search."""


def target(name: str) -> Target:
    module, attribute = TARGETS[name].split(":")
    made: Target = getattr(importlib.import_module(module), attribute)()
    return made
