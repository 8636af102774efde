"""How many Python functions of the runtime a warm `predict` enters beside the engine's own: a count, never a time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tiny

import edgekit_runtime
from edgekit_runtime import open_bundle
from edgekit_runtime.engines.registry import available

RUNTIME = Path(edgekit_runtime.__file__).parent
GENERATED = "<string>"
"""The constructors of dataclasses."""
MOST = 8


@pytest.fixture(scope="module", params=sorted(available()))
def path(request, tmp_path_factory):
    return tiny.bundle_for(request.param, tmp_path_factory.mktemp("path"))


def entered(model, picture):
    """Names of the functions that one call enters."""
    names = []

    def note(frame, event, _):
        file = Path(frame.f_code.co_filename)
        ours = file.is_relative_to(RUNTIME) and not file.is_relative_to(RUNTIME / "engines")
        if event == "call" and (ours or file.name == GENERATED):
            names.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        model.predict(picture)
    finally:
        sys.setprofile(before)
    return names


@pytest.mark.parametrize("caching", [False, True], ids=["the device answers", "the cache answers"])
def test_a_warm_predict_enters_few_functions(path, monkeypatch, caching):
    monkeypatch.setenv("EDGEKIT_TUNE", "off")
    with open_bundle(path, cache=caching) as model:
        source = {model.predict(tiny.RED).source for _ in range(3)}.pop()
        fewest = min((entered(model, tiny.RED) for _ in range(4)), key=len)  # some calls fold, sample or time as well
    turned = "f32" in path.name and source == "device"  # pixels become floats, channels first, in a step of its own
    assert len(fewest) <= MOST + turned, (source, fewest)
