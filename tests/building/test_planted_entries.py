"""A build believes no entry of its cache that is another's, or whose figures cannot be."""

from __future__ import annotations

import contextlib
import json
import math

import numpy as np
import pytest
from linear import onnx_bytes

from edgekit.building.build_journey import build
from edgekit.building.build_request import BuildRequest
from edgekit_converters.recipe.store import DiskStore
from edgekit_runtime.system.errors import EdgekitError
from edgekit_runtime.system.sealed import SEAL_BYTES

pytestmark = [pytest.mark.convert, pytest.mark.slow]
RNG = np.random.default_rng(5)
WEIGHTS = RNG.normal(size=(4, 3)).astype(np.float32)
ROWS = RNG.normal(size=(160, 4)).astype(np.float32)
HEAD = len(b"edgekit2") + SEAL_BYTES


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Two builds, of networks that differ in their weights, and what the first found."""
    folder, store = tmp_path_factory.mktemp("planted"), tmp_path_factory.mktemp("store")
    found = [figures(folder, store, weights) for weights in (WEIGHTS, WEIGHTS[::-1] + 1)]
    assert found[0] != found[1]
    return folder, store, found[0], {path: path.read_bytes() for path in store.rglob("*.entry")}


def figures(folder, store, weights=WEIGHTS):
    (folder / "net.onnx").write_bytes(onnx_bytes(np.ascontiguousarray(weights), np.zeros(3, np.float32), (-1, 4)))
    np.savez(folder / "calibration.npz", x=ROWS[:60])
    np.savez(folder / "set.npz", x=ROWS[60:], y=np.argmax(ROWS[60:] @ WEIGHTS, axis=1))
    request = BuildRequest(
        folder / "net.onnx", ("x86-64",), output=folder / "out", calibration=str(folder / "calibration.npz"),
        evaluation=str(folder / "set.npz"), recipes=("onnx-f32", "onnx-int8-qdq"), cache=store,
    )  # fmt: skip
    report = build(request)
    kept = ("items", "metric", "original", "artifact", "drop", "agreement", "cosine", "sqnr_db", "quantized_macs")
    return [
        (one["recipe"], one.get("failed"), one["sha256"], [one["fidelity"][name] for name in kept])
        for one in report.candidates
    ]


def plant(entries, change):
    """Write every entry as `change` has it, sealed as the store does it. How many it changed."""
    changed = 0
    for path, stored in entries.items():
        path.write_bytes(stored)
        body = change(stored[HEAD:])
        if body is not None and body != stored[HEAD:]:
            DiskStore(path.parent).put(path.stem, body)
            changed += 1
    return changed


def numbers_as(poison):
    """Every number of an entry in JSON, put to `poison`."""

    def poisoned(value):
        if isinstance(value, dict):
            return {name: poisoned(one) for name, one in value.items()}
        if isinstance(value, list):
            return [poisoned(one) for one in value]
        return poison if isinstance(value, float) else value

    def change(body):
        try:
            return json.dumps(poisoned(json.loads(body))).encode()
        except ValueError:
            return None

    return change


def test_entries_under_anothers_key_are_none(built):
    folder, store, found, entries = built
    names = sorted(entries)
    for path, other in zip(names, names[1:] + names[:1], strict=True):
        path.write_bytes(entries[other])
    assert figures(folder, store) == found


@pytest.mark.parametrize("poison", [-5.0, math.nan, 1e308, -math.inf, "many", None, [1.0]])
def test_figures_that_cannot_be_are_measured_again(built, poison):
    folder, store, found, entries = built
    assert plant(entries, numbers_as(poison)) >= 3
    assert figures(folder, store) == found


@pytest.mark.parametrize("body", [b"", b"{}", b"[" * 100_000, bytes(1000), b"\xff" * 8 + b"x" * 100])
def test_bytes_that_nothing_reads_are_made_again(built, body):
    folder, store, found, entries = built
    assert plant(entries, lambda _: body) >= len(entries) - 2  # which hold just that
    assert figures(folder, store) == found


def test_flipped_bits_are_made_again(built):
    """Sealed anew, so that the readers meet them."""
    folder, store, _, entries = built
    drawn = np.random.default_rng(1)

    def flipped(body):
        if body[:1] in b"{[" or not body:  # of figures, a flipped digit is another figure
            return None
        damaged = bytearray(body)
        damaged[int(drawn.integers(min(len(body), 200)))] ^= 1 << int(drawn.integers(8))
        return bytes(damaged)

    for _ in range(10):
        plant(entries, flipped)
        with contextlib.suppress(EdgekitError):  # a weight may differ now, and nothing but the seal could say so
            figures(folder, store)
