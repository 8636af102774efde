"""Every code that edgekit prints is explained, and what other software says is found by its words."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from pathlib import Path
from typing import get_args

import pytest

from edgekit.boards.catalogue import UnexplainedError, entries, entry, explain, find_entries
from edgekit_runtime.system.errors import EdgekitError

ROOT = Path(__file__).parents[2]
PACKAGES = ("edgekit", "edgekit_converters", "edgekit_profiles", "edgekit_runtime")
FOLDERS = [ROOT / "edgekit", ROOT / "converters", ROOT / "device_profiles", ROOT / "runtime"]


def sources() -> str:
    return "\n".join(path.read_text() for folder in FOLDERS for path in sorted(folder.rglob("*.py")))


def error_codes() -> set[str]:
    """Of every error class there is, wherever it is defined."""
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            text = Path(module.module_finder.path, f"{module.name.rpartition('.')[2]}.py")  # type: ignore[union-attr]
            if module.name.endswith("errors") or (text.is_file() and "Error)" in text.read_text()):
                try:
                    importlib.import_module(module.name)
                except ImportError:  # its tools are an extra that is not installed here
                    continue
    found, waiting = set(), [EdgekitError]
    while waiting:
        kind = waiting.pop()
        if kind.__module__.partition(".")[0] in PACKAGES:
            found |= {kind.code, *kind.reasons}
        waiting += kind.__subclasses__()
    return found


def test_every_error_has_an_entry():
    found = error_codes()
    assert len(found) > 45
    assert found - set(entries()) == set()


def test_every_refusal_and_barrier_has_an_entry():
    from edgekit_converters.choose import RefusalCode
    from edgekit_converters.formats.needs import BarrierCode

    refusals = {code for part in get_args(RefusalCode) for code in (get_args(part) or (part,))}
    assert {"drop", "op-version"} <= refusals
    assert (refusals | set(get_args(BarrierCode))) - set(entries()) == set()


def test_every_finding_of_data_and_of_checks_has_an_entry():
    said = set(re.findall(r"(?:[Ff]inding|Note)\(\s*\"([a-z0-9-]+)\"", sources()))
    causes = set(re.findall(r"Cause\(\s*[^,]+,\s*\"([a-z-]+)\"", sources()))
    assert len(causes) >= 15
    assert causes - set(entries()) == set()
    told = set(re.findall(r"\"code\": \"([a-z-]+)\"", sources()))
    assert {"few-samples", "numpy-2", "as-is"} <= said
    assert {"usage", "interrupted", "internal"} <= told
    assert (said | told) - set(entries()) == set()


@pytest.mark.parametrize("code", entries())
def test_an_entry_says_what_why_and_what_to_do(code):
    found = entry(code)
    assert found.kind in ("check", "refusal", "error", "data", "damage", "message")
    assert found.level in ("error", "warning")
    assert found.what
    assert not found.what.endswith(".")
    assert found.why.endswith((".", "?"))
    assert found.do
    assert not found.do.endswith(".")
    for pattern in found.messages:
        re.compile(pattern)
    assert found.messages or found.kind != "message"


MESSAGES = {
    "gpu": "tensorrt-rtx: no NVIDIA driver is installed: libcuda.so.1: cannot open shared object file: No such file",
    "op-version": "ValueError: Didn't find op for builtin opcode 'FULLY_CONNECTED' version '12'. "
    "An older version of this\n        builtin might be supported. "
    "Are you using an old TFLite binary with a newer model?\nRegistration failed.",
    "op-unknown": "Op builtin_code out of range: 150. Are you using old TFLite binary with newer model?Registration "
    "failed.",
    "op-custom": "RuntimeError: Encountered unresolved custom op: Mine.\nNode number 0 (Mine) failed to prepare.",
    "op-flex": "Select TensorFlow op(s), included in the given model, is(are) not supported by this interpreter.",
    "numpy-2": "SystemError: <built-in method CreateWrapperFromFile of PyCapsule object at 0x7f> returned a result "
    "with an exception set",
    "onnx-ir": "Unsupported model IR version: 11, max supported IR version: 10",
    "op-kernel": "NOT_IMPLEMENTED : Could not find an implementation for Conv(11) node with name 'c'",
    "onnx-opset": "NOT_IMPLEMENTED : Could not find an implementation for QuantizeLinear(23) node with name 'q'",
    "runtime-unavailable": "ERROR: Could not find a version that satisfies the requirement "
    "tflite-runtime==2.14.0 (from versions:\n        none)",
    "illegal-instruction": "[1]    9408 illegal hardware instruction  python3",
    "emulated-signal": "qemu: uncaught target signal 11 (Segmentation fault) - core dumped",
    "map-segment": "ImportError: libfoo.so: failed to map segment from shared object",
    "memory": "terminate called after throwing an instance of 'std::bad_alloc'",
    "replay-crashed": "Segmentation fault (core dumped)",
    "glibc-too-old": "ImportError: /lib/aarch64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by ...)",
    "wrong-machine": "OSError: [Errno 8] Exec format error: '/usr/bin/python3'",
    "managed-python": "error: externally-managed-environment",
    "tensor-size": "ValueError: Cannot set tensor: Got value of type FLOAT32 but expected type INT8 for input 0",
    "gather-out-of-range": "RuntimeError: gather index out of boundsNode number 3 (GATHER) failed to invoke.",
    "harmless-schema": "Schema error: Trying to register schema with name TreeEnsembleClassifier (domain: ai.onnx.ml "
    "version: 1)",
    "no-systemd": "System has not been booted with systemd as init system (PID 1). Can't operate.",
    "emulation-userland": "File has unexpected size (55832 != 55836). Mirror sync in progress?",
    "missing-extra": "ModuleNotFoundError: No module named 'ai_edge_litert.interpreter'",
    "calibration": "ValueError: For full integer quantization, a `representative_dataset` must be specified.",
    "no-wheel": "ERROR: numpy-2.4.6-cp311-manylinux_2_17_x86_64.whl is not a supported wheel on this platform.",
}


@pytest.mark.parametrize(("code", "message"), MESSAGES.items(), ids=MESSAGES)
def test_a_message_is_found_by_its_words(code, message):
    assert find_entries(message)[0].code == code


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("Didn't find op for builtin opcode FULLY_CONNECTED version 12", "op-version"),  # as a shell leaves it
        ("Killed", "memory"),
        ("[ 93.1] Out of memory: Killed process 812 (python3) total-vm:812000kB", "memory"),
    ],
)
def test_a_message_is_found_as_people_meet_it(code, message):
    assert find_entries(message)[0].code == code


def test_every_entry_for_messages_is_found_by_one_of_them():
    told = {found.code for message in MESSAGES.values() for found in find_entries(message)}
    quiet = {"harmless-delegate", "conversion", "not-a-model"}
    assert {code for code, found in entries().items() if found.messages} - told == quiet


@pytest.mark.parametrize("code", entries())
def test_the_error_line_of_every_code_is_explained(code):
    """As `edgekit` prints it, as --json does, and as a log keeps it, without the code."""
    told = entry(code)
    message = str(EdgekitError(told.what, where="/srv/net.ekb", do=told.do))
    assert explain(f"error: {message} [{code}]").code == code
    assert explain(json.dumps({"error": {"code": code, "what": told.what, "where": "", "do": told.do}})).code == code
    if told.kind != "message":
        assert explain(message).code == code


@pytest.mark.parametrize("code", MESSAGES)
def test_a_message_is_explained_whatever_stands_around_it(code):
    assert explain(f"Traceback (most recent call last):\n{MESSAGES[code]}").code == code


def test_the_last_line_of_a_traceback_is_explained_by_its_class():
    told = "edgekit_runtime.system.errors.IntegrityError: net.ekb: blob 3 is 17 bytes short"
    assert explain(told).code == "bundle-integrity"


def test_what_no_entry_knows_is_said():
    with pytest.raises(UnexplainedError, match="no entry matches this message"):
        explain("all is well with the world today")


def test_a_code_that_is_misspelt_is_answered_with_the_nearest():
    with pytest.raises(UnexplainedError) as caught:
        entry("op-versions")
    assert "op-version" in caught.value.do


def test_a_message_that_nobody_knows_is_found_in_no_entry():
    assert find_entries("all is well") == []


def test_the_page_of_codes_is_what_the_catalogue_says():
    """Written by: python -m edgekit.boards.catalogue > docs/codes.md"""
    from edgekit.boards.catalogue import markdown

    assert (ROOT / "docs" / "codes.md").read_text(encoding="utf-8") == markdown()
