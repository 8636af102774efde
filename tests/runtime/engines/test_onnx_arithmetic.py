"""ONNX INT8 gives the same answers on every processor. An x86 without VNNI is emulated; QEMU executes what its kernels
execute.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime", reason="comes with the extra 'onnx'")
pytest.importorskip("onnx", reason="comes with the extra 'convert'")

import avx2_only
import saturating
import tiny
from parts import leave_out
from saturating import ARM, AVX2_ONLY, WITH_VNNI

from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines import onnxruntime as onnx
from edgekit_runtime.engines.registry import EngineSetup, load_with
from edgekit_runtime.engines.variants import RecordingEngine
from edgekit_runtime.loading.candidates import TuningOptions, candidates
from edgekit_runtime.loading.replay import check_same_bits, replay
from edgekit_runtime.system.errors import SelfTestError

WITHOUT_VNNI = """
import json, sys
import numpy as np
from pathlib import Path
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import EngineSetup, load_with
from edgekit_runtime.loading.candidates import TuningOptions, candidates
from edgekit_runtime.loading.tuning_trial import Trial

picture = np.array(json.loads(sys.argv[1]), np.float32)
said = {"answers": {}, "facts": {}}
for path in sys.argv[2:]:
    bundle = read_bundle(path)
    entry = bundle.artifact()
    for kernels in ("default", "fast"):
        with load_with("onnxruntime", "onnx", bundle.blob(entry.blob), EngineSetup(kernels=kernels)) as engine:
            said["answers"].setdefault(path, {})[kernels] = engine.run([picture])[0].tolist()
    offer = candidates(bundle.manifest, {"onnxruntime": "1"}, TuningOptions(threads=1), cores=1)
    facts = said["facts"][path] = []
    Trial(bundle, offer, facts.append).run(1.0)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """Of a network whose 8-bit sums saturate in 16 bits, and of one whose sums cannot."""
    folder = tmp_path_factory.mktemp("saturating")
    return {"saturates": saturating.bundle(folder / "a", 127), "cannot": saturating.bundle(folder / "b", 60)}


@pytest.fixture(scope="module")
def without_vnni(bundles):
    if not avx2_only.X86_LINUX:
        pytest.skip("an x86 with AVX2 alone is simulated on x86 Linux alone")
    if why := avx2_only.missing():
        leave_out(why)
    picture = (saturating.YELLOW.transpose(2, 0, 1)[None] / 255).astype("float32")
    said = json.loads(saturating.without_vnni(WITHOUT_VNNI, json.dumps(picture.tolist()), *bundles.values()))
    here = {}
    for name, path in bundles.items():
        bundle = read_bundle(path)
        with load_with("onnxruntime", "onnx", bundle.blob(bundle.artifact().blob), EngineSetup()) as engine:
            here[name] = engine.run([picture])[0].tolist()
    return {
        name: {"here": here[name], "answers": said["answers"][str(path)], "facts": said["facts"][str(path)]}
        for name, path in bundles.items()
    }


def test_an_x86_without_vnni_gives_the_same_bits_as_this_machine(without_vnni):
    assert without_vnni["saturates"]["answers"]["default"] == without_vnni["saturates"]["here"]
    assert without_vnni["cannot"]["answers"]["default"] == without_vnni["cannot"]["here"]


def test_the_simulated_processor_does_saturate_without_exact_arithmetic(without_vnni):
    assert without_vnni["saturates"]["answers"]["fast"] != without_vnni["saturates"]["here"]


def test_the_trial_refuses_fast_sums_that_saturate(without_vnni):
    facts = without_vnni["saturates"]["facts"]
    refused = [fact["error"]["what"] for fact in facts if fact.get("refused") == 1]
    assert refused, facts
    assert [fact["entered"] for fact in facts if "entered" in fact] == [0]


def test_the_trial_admits_fast_sums_that_keep_the_bits_of_the_golden_answers(without_vnni):
    assert [fact["entered"] for fact in without_vnni["cannot"]["facts"] if "entered" in fact] == [0, 1]


@pytest.mark.parametrize(
    ("cpu", "kernels"),
    [(AVX2_ONLY, ["default", "fast"]), (WITH_VNNI, ["default"]), (ARM, ["default"])],
    ids=["AVX2 alone", "VNNI", "ARM"],
)
def test_fast_sums_are_offered_only_where_they_differ_and_never_first(bundles, cpu, kernels):
    manifest = read_bundle(bundles["saturates"]).manifest
    offer = candidates(manifest, {"onnxruntime": "1"}, TuningOptions(threads=1), cores=1, cpu=cpu)
    assert [one.kernels for one in offer] == kernels


@pytest.mark.parametrize(("cpu", "option"), [(AVX2_ONLY, "1"), (WITH_VNNI, "0")], ids=["AVX2 alone", "VNNI"])
def test_the_slower_exact_kernels_are_asked_for_only_where_the_fast_ones_saturate(monkeypatch, cpu, option):
    monkeypatch.setattr(onnx, "cpu", lambda: cpu)
    options = onnx.session_options(onnxruntime, 1)
    assert options.get_session_config_entry("session.x64quantprecision") == option
    assert (
        onnx.session_options(onnxruntime, 1, exact=False).get_session_config_entry("session.x64quantprecision") == "0"
    )


def test_a_float_artifact_has_no_fast_sums(tmp_path):
    manifest = read_bundle(tiny.bundle(tmp_path, "onnx-f32")).manifest
    offer = candidates(manifest, {"onnxruntime": "1"}, TuningOptions(threads=1), cores=1, cpu=AVX2_ONLY)
    assert [one.kernels for one in offer] == ["default"]


class Nearly(RecordingEngine):
    """Answers within every tolerance, and not with the same bits."""

    def run(self, inputs):
        return [np.nextafter(output, np.float32(9)) for output in super().run(inputs)]


def test_fast_sums_must_keep_every_bit_whatever_the_tolerance_allows(bundles):
    bundle = read_bundle(bundles["cannot"])
    entry = bundle.artifact()
    exact, other = (load_with("onnxruntime", "onnx", bundle.blob(entry.blob), EngineSetup()) for _ in range(2))
    with exact, other:
        check_same_bits(bundle, entry, other, exact)
        replay(bundle, entry, Nearly(other))
        with pytest.raises(SelfTestError, match="saturate"):
            check_same_bits(bundle, entry, Nearly(other), exact)


def test_a_model_says_which_arithmetic_it_uses(bundles):
    with open_bundle(bundles["saturates"], allow_unsigned=True) as model:
        assert model.describe()["engine"]["arithmetic"] == "exact"
        assert model.stats().arithmetic == "exact"
