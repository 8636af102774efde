"""Errors of the workstation and the host, and the line that prints an error."""

from __future__ import annotations

import importlib.util

from edgekit_runtime.system.errors import EdgekitError, MissingExtraError

EXTRAS_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("amqtt", "h11", "msgspec", "starlette", "uvicorn"), ("fleet",)),
    "jinja2": ("convert", "fleet"),
    **dict.fromkeys(
        ("h5py", "keras", "onnx", "onnxslim", "rfc8785", "rich", "sentencepiece", "tensorflow", "tf2onnx", "yaml"),
        ("convert",),
    ),
    **dict.fromkeys(("ai_edge_litert", "flatbuffers"), ("litert",)),
    **dict.fromkeys(("onnxscript", "torch"), ("torch",)),
    **dict.fromkeys(("onnx2tf", "tf_keras"), ("onnx-tflite",)),
    "PIL": ("image",),
    "av": ("video",),
    "ethosu": ("vela",),
    "litert_torch": ("torch-tflite",),
    "model_signing": ("openssf",),
    "onnxruntime": ("onnx",),
    "onnxruntime_ep_webgpu": ("onnx-webgpu",),
    "packaging": ("ship",),
    "paho": ("telemetry",),
    "opentelemetry": ("otlp",),
    "psycopg": ("fleet-postgres",),
    "redis": ("shared-cache",),
    "tflite_runtime": ("tflite",),
    "tokenizers": ("text",),
    "xllamacpp": ("llm",),
}
"""Lazily imported module -> the extras that install it, the preferred one first."""


class PackagingError(EdgekitError):
    """A bundle cannot be written or signed."""

    code = "packaging"


class ComparedFileError(EdgekitError):
    """A file given with --compare is not of the model that is built."""

    code = "compared-file"


class OutputError(EdgekitError):
    """The result cannot be written."""

    code = "output"


class PythonVersionError(EdgekitError):
    """This Python is older than the command needs."""

    code = "python-version"


class DemoError(EdgekitError):
    """The demo's models or photos are missing."""

    code = "demo"


class KeysError(EdgekitError):
    """A key cannot be made, found or used, or a root.json cannot be changed as asked."""

    code = "keys"


def error_line(error: EdgekitError) -> str:
    """The line on stderr, which ends with the code."""
    return f"error: {error} [{error.code}]"


def missing_extra(error: BaseException, command: str) -> MissingExtraError | None:
    """The error for a failed import of a missing extra, or None.

    command: preferred if an extra has its name
    """
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if module not in EXTRAS_OF or importlib.util.find_spec(module) is not None:  # there, and damaged
        return None
    extras = EXTRAS_OF[module]
    return MissingExtraError(command if command in extras else extras[0], "what was asked for")
