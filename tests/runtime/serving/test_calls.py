"""What opening and asking cost, in calls of Python functions: the same on every machine.

Counted with everything imported, in whatever package a function is defined. Times are in benchmarks/runtime.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import statistics
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import tiny

from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.checks import parse_manifest
from edgekit_runtime.bundle.header import read_header
from edgekit_runtime.engines.registry import version_of
from edgekit_runtime.modelfile import check
from edgekit_runtime.serving import device
from edgekit_runtime.system.children import python_code
from edgekit_runtime.system.strict_json import canonical_bytes

MOST_OF_OPENING = 9_000
MOST_COMPILED, MOST_MODULES = 110, 89
"""What a later opening compiles, as `dataclass` does, and imports of ours: each takes a quarter of a millisecond."""
MOST_OF_ASKING = 40
"""Of a picture that is looked up in the cache, in vain."""
MOST_WITHOUT_A_CACHE = 16
MOST_OF_AWAITING = 40
"""Of edgekit's own functions in the loop's thread, where another thread infers."""


_OPENING = """
import builtins, json, re, sys
import numpy
honest, compiled = builtins.exec, []
def counting(source, *more):  # methods: Python 3.13 compiles all of a class at once
    compiled.extend(re.findall("def __(?!create_fn)", source) if isinstance(source, str) else ())
    return honest(source, *more)
builtins.exec = counting
from edgekit_runtime import open_bundle
with open_bundle(sys.argv[1], allow_unsigned=True) as model:
    kept = sum(map(len, model._journey.opened.bundle._blobs.values()))
    ours = [name for name in sys.modules if name.startswith("edgekit_runtime.")]
    print(json.dumps({"compiled": len(compiled), "modules": len(ours), "kept": kept}))
"""


def calls(do):
    """Function -> how often `do` called it; generators count each time they go on."""
    counted = Counter()

    def count(frame, event, _):
        if event == "call":
            counted[frame.f_code.co_filename, frame.f_code.co_name] += 1

    gc.disable()  # Hypothesis has itself called at each collection
    sys.setprofile(count)
    try:
        do()
    finally:
        sys.setprofile(None)
        gc.enable()
    return counted


def usual_calls(model, items, budget_ms):
    """Of most requests: now and then one does more, such as sampling values or folding counts."""
    for item in items[:8]:
        model.predict(item, budget_ms=budget_ms)
    counted = [calls(lambda item=item: model.predict(item, budget_ms=budget_ms)).total() for item in items[8:]]
    return statistics.mode(counted)


def test_opening_the_demos_bundle_and_asking_it(demo):
    path = demo.folder / "bundles" / "efficientnet_lite0-raspberry-pi-4.ekb"
    open_bundle(path, allow_unsigned=True).close()  # imports, measures the candidates, runs in children
    check._SOUND.clear()
    counted = calls(lambda: open_bundle(path, allow_unsigned=True).close())
    assert counted.total() <= MOST_OF_OPENING, counted.most_common(20)
    pictures = np.random.default_rng(0).integers(0, 255, (28, 224, 224, 3), np.uint8)
    with open_bundle(path, allow_unsigned=True) as model:
        assert usual_calls(model, pictures, 1000.0) <= MOST_OF_ASKING


def test_what_a_later_opening_compiles_imports_and_keeps(tmp_path):
    path = tiny.bundle(tmp_path, "tflite-int8")
    open_bundle(path, allow_unsigned=True).close()
    done = subprocess.run(python_code(_OPENING, str(path)), capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["compiled"] <= MOST_COMPILED
    assert found["modules"] <= MOST_MODULES
    assert found["kept"] == 0, "bytes of blobs: the engine has its own"


@pytest.mark.parametrize("collects", [True, False])
def test_opening_leaves_the_collector_as_the_application_has_it(tmp_path, collects):
    (gc.enable if collects else gc.disable)()
    try:
        open_bundle(tiny.bundle(tmp_path, "tflite-int8"), allow_unsigned=True).close()
        assert gc.isenabled() == collects
    finally:
        gc.enable()


@pytest.mark.parametrize("budget_ms", [None, 1000.0])
@pytest.mark.parametrize(("cache", "most"), [(True, MOST_OF_ASKING), (False, MOST_WITHOUT_A_CACHE)])
@pytest.mark.parametrize("form", ["pixels", "floats"])
def test_asking_a_small_model(tmp_path, form, cache, most, budget_ms):
    pictures = np.random.default_rng(0).integers(0, 255, (28, 8, 8, 3), np.uint8)
    items = pictures if form == "pixels" else (pictures / 255).astype(np.float32)
    with open_bundle(tiny.bundle(tmp_path, "tflite-int8"), allow_unsigned=True, cache=cache, settled=True) as model:
        assert usual_calls(model, items, budget_ms) <= most + 2 * (form == "floats")


def test_a_task_of_an_event_loop_makes_no_future_of_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(device, "ON_LOOP_S", 0.0)  # no inference is short enough for the loop
    pictures = np.random.default_rng(0).integers(0, 255, (36, 8, 8, 3), np.uint8)
    with open_bundle(tiny.bundle(tmp_path, "tflite-int8"), allow_unsigned=True, cache=False, settled=True) as model:

        async def ask(count):
            await asyncio.gather(*(model.apredict(picture) for picture in pictures[:count]))

        asyncio.run(ask(8))  # the first makes more
        few, many = (calls(lambda count=count: asyncio.run(ask(count))) for count in (4, 36))
    assert not any("concurrent" in file and name == "__init__" for file, name in many - few)
    ours = Counter({name: count for name, count in (many - few).items() if "edgekit_runtime" in name[0]})
    assert ours.total() <= 32 * MOST_OF_AWAITING, ours.most_common(20)


def test_a_manifest_is_read_at_the_speed_of_c(tmp_path):
    """A thousand more labels are a thousand more strings, and no more calls."""
    header = read_header(tiny.bundle(tmp_path, "tflite-int8").read_bytes(), "x.ekb")
    manifest = parse_manifest(header.manifest_bytes, "x.ekb").as_json()

    def with_labels(count):
        contract = manifest["contract"] | {"labels": [f"label {number}" for number in range(count)]}
        digest = hashlib.sha256(canonical_bytes(contract)).hexdigest()
        return canonical_bytes(manifest | {"contract": contract, "contract_digest": digest})

    few, many = with_labels(4), with_labels(1004)
    parse_manifest(few, "x.ekb")
    counted = [calls(lambda data=data: parse_manifest(data, "x.ekb")).total() for data in (few, many)]
    assert counted[0] == counted[1] < 1500


def test_a_package_is_looked_up_once_and_seen_when_it_is_installed_meanwhile(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    assert version_of("edgekit-of-tomorrow") is None
    again = calls(lambda: version_of("edgekit-of-tomorrow"))
    assert {name for _, name in again} == {"<lambda>", "version_of"}
    info = tmp_path / "edgekit_of_tomorrow-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: edgekit-of-tomorrow\nVersion: 1.2\n")
    assert version_of("edgekit-of-tomorrow") == "1.2"
