"""Group 22: a model that never answers, and one that takes its process with it, are refusals like any other."""

from __future__ import annotations

import signal
import struct
import subprocess
import time

import pytest
from hostile import forge
from hostile import onnx_by_hand as by_hand
from hostile.board import asked, refuses

from edgekit_runtime.engines.registry import available
from edgekit_runtime.install import TrialOptions


def endless() -> bytes:
    """An ONNX network that goes round 2^62 times before it gives its input back."""
    state, going = by_hand.value("v", [1, 4]), by_hand.value("c", [], by_hand.BOOL)
    body = by_hand.graph(
        [by_hand.node("Identity", ["v"], ["w"]), by_hand.node("Identity", ["c"], ["d"])],
        [by_hand.value("i", [], by_hand.INT64), going, state],
        [by_hand.value("d", [], by_hand.BOOL), by_hand.value("w", [1, 4])],
    )
    often = by_hand.tensor("n", [], by_hand.INT64, raw=struct.pack("<q", 2**62))
    yes = by_hand.tensor("yes", [], by_hand.BOOL, raw=b"\1")
    loop = by_hand.node("Loop", ["n", "yes", "x"], ["y"], by_hand.attribute_graph("body", body))
    x, y = by_hand.value("x", [1, 4]), by_hand.value("y", [1, 4])
    return by_hand.model(loop, inputs=[x], outputs=[y], tensors=[often, yes])


@pytest.fixture
def bundle(tmp_path):
    """Signed and well-formed: only running it tells."""
    if "onnxruntime" not in available():
        pytest.skip("ONNX Runtime is not installed: pip install onnxruntime")
    data, item = endless(), struct.pack("<4f", 1, 2, 3, 4)
    value = forge.manifest(data, rollout_seq=6)
    value["contract"] = {
        "task": "raw", "state": "none", "inputs": [{"name": "x", "shape": [4], "dtype": "float32"}],
        "outputs": [{"name": "y", "shape": [4], "dtype": "float32"}],
    }  # fmt: skip
    tensors = {name: {"name": name, "tensor": name, "dtype": "float32", "shape": [1, 4]} for name in "xy"}
    value["artifacts"][0] |= {
        "recipe": "onnx-f32", "format": "onnx", "precision": "float32", "inputs": [tensors["x"]],
        "outputs": [tensors["y"]],
    }  # fmt: skip
    answer = value["golden"][0]["answers"][0]
    answer |= {
        "recipe": "onnx-f32",
        "engine": "onnxruntime",
        "engine_version": "1.31.1",
        "outputs": {"y": forge.sha256(item)},
    }
    value["golden"] = [{"inputs": {"x": forge.sha256(item)}, "dtypes": {"x": "float32"}, "answers": [answer]}]
    value["blobs"] = forge.entries([data, item])
    path = tmp_path / "endless.ekb"
    path.write_bytes(forge.pack(forge.digested(value), [data, item], sign=["ours"]))
    return path


def test_group_22_a_self_test_that_hangs_is_ended(bundle, root, child):
    """S16"""
    start = time.monotonic()
    refuses(root, bundle, asked(proving=TrialOptions(silence_s=3)), "selftest", "did not respond within 3 s")
    assert time.monotonic() - start < 30


def ended_by(number: signal.Signals):
    """Starts the child, and sends it a signal while it runs the model: what a fault of the engine's own does to it."""

    def run(command, *, timeout, input, **_options):
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            process.communicate(input, timeout=2)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    return run


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGILL])
def test_group_22_a_self_test_that_crashes_is_named_after_its_signal(number, bundle, root, child):
    """S16"""
    refuses(root, bundle, asked(proving=TrialOptions(run=ended_by(number))), "selftest", number.name)


def test_group_22_a_child_that_was_killed_from_outside_proves_nothing_and_changes_nothing(bundle, root, child):
    refuses(root, bundle, asked(proving=TrialOptions(run=ended_by(signal.SIGKILL))), "[a-z-]+", "SIGKILL")
