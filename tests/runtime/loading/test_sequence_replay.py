"""A stateful bundle's golden examples are sequences, replayed in order, each from a fresh state."""

from __future__ import annotations

from dataclasses import replace

import memory
import numpy as np
import pytest

from edgekit.packaging.assemble import assemble
from edgekit.packaging.output_errors import PackagingError
from edgekit.packaging.writer import write_bundle
from edgekit_runtime.bundle.checks import parse_manifest
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.contract.spec import CarriedState
from edgekit_runtime.engines.registry import load_engine
from edgekit_runtime.loading.replay import replay
from edgekit_runtime.loading.selftest import first_open
from edgekit_runtime.system.errors import BundleError, SelfTestError
from edgekit_runtime.system.strict_json import to_json

KIND = pytest.mark.parametrize("kind", memory.HERE)


class Elsewhere:
    """The same engine as another version of itself, or with other numbers from some frame on."""

    def __init__(self, engine, *, version=None, wrong_from=10**9):
        self._engine, self._left = engine, wrong_from
        self.info = replace(engine.info, version=version or engine.info.version)

    def run(self, inputs):
        self._left -= 1
        outputs = self._engine.run(inputs)
        return outputs if self._left >= 0 else [array + array.dtype.type(100) for array in outputs]

    def reset(self):
        self._engine.reset()


@pytest.fixture
def packed(tmp_path):
    def made(kind, **changes):
        bundle = read_bundle(memory.bundle(tmp_path, kind, **changes))
        return bundle, bundle.artifact()

    return made


def loaded(bundle, entry):
    return load_engine(entry.format, bundle.blob(entry.blob))


@KIND
def test_every_frame_is_given_back_and_the_engine_is_fresh_afterwards(packed, kind):
    bundle, entry = packed(kind)
    with loaded(bundle, entry) as engine:
        for _ in range(3):
            found = replay(bundle, entry, engine)
            assert (found.examples, found.same_engine, found.worst_steps) == (2, True, 0.0)


@KIND
def test_golden_sequences_hold_a_callers_frames_and_answers_alone(packed, kind):
    bundle, _ = packed(kind)
    for golden in bundle.manifest.golden:
        assert golden.steps == 6
        assert bundle.golden_items(golden)["x"].shape == (6, 3)
        assert {name for answer in golden.answers for name in answer.outputs} == {"y"}


@KIND
def test_a_frame_that_is_off_is_named(packed, kind):
    bundle, entry = packed(kind)
    with (
        loaded(bundle, entry) as engine,
        pytest.raises(SelfTestError, match=r"golden example 0 of 'y' differs .* at frame"),
    ):
        replay(bundle, entry, Elsewhere(engine, wrong_from=3))


@KIND
def test_a_state_that_is_not_reset_between_sequences_is_noticed(packed, kind):
    bundle, entry = packed(kind)
    with loaded(bundle, entry) as engine:
        forgetful = Elsewhere(engine)
        forgetful.reset = lambda: None
        if kind == "inside":
            with pytest.raises(SelfTestError, match="golden example 1"):
                replay(bundle, entry, forgetful)
        else:  # there is nothing in the engine to forget
            assert replay(bundle, entry, forgetful).worst_steps == 0


@KIND
def test_what_rounding_grows_to_along_the_sequence_is_allowed(packed, kind):
    """Another processor's kernels: every number that goes in, the state too, is a little off in every frame."""
    bundle, entry = packed(kind)

    class Off:
        def __init__(self, engine):
            self.engine, self.info, self.rng = engine, engine.info, np.random.default_rng(5)

        def run(self, inputs):
            return self.engine.run([self.off(array) for array in inputs])

        def reset(self):
            self.engine.reset()

        def off(self, array):
            sign = self.rng.choice((-1, 1), array.shape)
            if array.dtype == np.int8:
                return np.clip(array.astype(np.int16) + sign, -128, 127).astype(np.int8)
            return (array + sign * 1e-5 * np.abs(array).max()).astype(np.float32)

    with loaded(bundle, entry) as engine:
        assert replay(bundle, entry, Off(engine)).worst_steps > 0
    assert all(answer.tolerance.steps < 100 for golden in bundle.manifest.golden for answer in golden.answers)


def test_another_version_may_differ_a_little_on_a_silent_sequence(packed):
    silent = [{"x": np.zeros((4, 3), np.float32)}]
    kind = next(kind for kind in memory.HERE if kind != "inside")
    bundle, entry = packed(kind, golden=silent)
    with loaded(bundle, entry) as engine:
        assert not replay(bundle, entry, Elsewhere(engine, version="0.0")).same_engine


@KIND
def test_a_child_replays_sequences_at_the_first_open(packed, kind, tmp_path):
    bundle, entry = packed(kind)
    with loaded(bundle, entry) as engine:
        assert first_open(bundle, entry, engine.info, folder=tmp_path / "state")


def test_a_contract_without_state_has_the_digest_it_always_had():
    import tiny

    said = to_json(tiny.CONTRACT)
    assert not {"carried", "hop"} & said.keys()
    assert said["state"] == "none"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"carried": None}, "must say both that state is carried and which"),
        ({"state": "none"}, "must say both that state is carried and which"),
        ({"carried": (CarriedState("h_in", "y"),)}, "'h_in' cannot be carried"),
        ({"carried": (CarriedState("gone", "h_out"),)}, "'gone' cannot be carried"),
        ({"carried": (CarriedState("h_in", "h_out", (1.0, 2.0)),)}, "has an initial state of another size"),
        ({"carried": (CarriedState("h_in", "h_out"), CarriedState("h_in", "h_out"))}, "carried twice"),
        ({"hop": 0}, "the hop is not a number of samples"),
    ],
    ids=["no pairs", "stateless pairs", "other shape", "unknown", "initial", "twice", "hop"],
)
def test_a_contract_that_contradicts_itself_is_refused(changes, why):
    draft, manifest = assemble(memory.content(next(kind for kind in memory.HERE if kind != "inside")))
    manifest = replace(manifest, contract=replace(manifest.contract, **changes), blobs=draft.entries())
    with pytest.raises(BundleError, match=why):
        parse_manifest(encoded(manifest), "x.ekb")


def test_a_stateful_bundle_whose_examples_are_no_sequences_is_refused(tmp_path):
    draft, manifest = assemble(memory.content("inside"))
    singles = tuple(replace(golden, steps=None) for golden in manifest.golden)
    manifest = replace(manifest, golden=singles, blobs=draft.entries())
    with pytest.raises(PackagingError, match="stateful models have sequences"):
        write_bundle(tmp_path / "x.ekb", draft, manifest)
    with pytest.raises(BundleError, match="stateful models have sequences"):
        parse_manifest(encoded(manifest), "x.ekb")


def encoded(manifest):
    from edgekit.packaging.writer import canonical_json

    return canonical_json(manifest.as_json())
