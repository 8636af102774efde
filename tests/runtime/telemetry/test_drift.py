"""Top scores that move are noticed, those that stay are not, and no score leaves the board."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tiny

from edgekit_runtime import open_bundle
from edgekit_runtime.contract.adapt import CLIP_EVERY
from edgekit_runtime.telemetry.histogram import BINS, LEAST, REFERENCE, Drift, psi
from edgekit_runtime.telemetry.meter import Meter


def drawn(n, seed, sure):
    """Scores of a model that is more or less sure of itself."""
    rng = random.Random(seed)
    counts = [0] * BINS
    for _ in range(n):
        counts[min(BINS - 1, int(rng.betavariate(sure, 2.0) * BINS))] += 1
    return counts


def test_the_same_scores_are_no_drift_and_less_sure_ones_are():
    reference = drawn(REFERENCE, 0, 8.0)
    assert max(psi(reference, drawn(LEAST, seed, 8.0)) for seed in range(1, 50)) < 0.2
    assert min(psi(reference, drawn(LEAST, seed, 3.0)) for seed in range(1, 50)) > 0.5


def test_the_first_samples_are_the_reference_and_an_index_needs_enough():
    drift = Drift()
    for _ in range(10):
        assert drift.add(drawn(100, 0, 8.0))
        assert drift.psi is None
    assert sum(drift.reference) == REFERENCE
    seen = []
    for _ in range(6):
        assert not drift.add(drawn(100, 1, 3.0))
        seen.append(drift.psi)
    assert [value is not None for value in seen] == [False, False, True] * 2
    assert drift.reference == Drift(drift.reference).reference


def test_the_bundles_scores_are_the_reference_where_there_are_enough():
    """Also where the board drifts from its first answer on, which its own reference could not tell."""
    usual, unsure = drawn(LEAST, 0, 8.0), drawn(LEAST, 1, 3.0)
    drift, own = Drift(bundled=usual), Drift()
    assert not drift.add(unsure)
    own.add(unsure)
    assert drift.psi > 0.5
    assert own.psi is None
    assert drift.reference == usual
    for few in (drawn(LEAST - 1, 0, 8.0), [LEAST], [-1] + [LEAST] * 9, ()):
        assert (Drift(bundled=few).bundled, sum(Drift(bundled=few).reference)) == (False, 0)


def test_a_model_reports_against_its_bundles_scores(tmp_path):
    from edgekit_runtime.telemetry.reporter import TelemetryOptions

    scores = tuple(drawn(LEAST, 0, 8.0))
    options = TelemetryOptions("mqtt://127.0.0.1:1", "porch-1", 60, tmp_path / "s.db")
    with open_bundle(tiny.bundle(tmp_path, top_scores=scores), cache=False, telemetry=options) as model:
        assert model._reporter._drift.reference == list(scores)
        assert model._reporter._drift.bundled


def test_the_meter_counts_the_top_score_of_what_was_looked_at():
    meter = Meter()
    for score in (0.0, 0.05, 0.95, 1.0, None, float("nan"), 1.5):
        meter.record("device", 1.0, True, {}, (0, 0, score))
    meter.record("device", 1.0, True, {})
    assert meter.cut().scores == [2, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    assert meter.cut().scores == [0] * BINS


def test_one_answer_in_sixteen_of_a_classifier_is_looked_at(tmp_path):
    with open_bundle(tiny.bundle(tmp_path), cache=False) as model:
        rng = np.random.default_rng(0)
        for _ in range(3 * CLIP_EVERY):
            model.predict(rng.integers(0, 256, tiny.RED.shape, dtype=np.uint8))
        counted = model._journey.meter.counted()
    expected = 3 if model._journey.contract.task == "classification" else 0
    assert sum(counted.scores) == expected


@pytest.mark.parametrize("kept", ["[]", '{"sha":"aa","counts":[1]}', '{"sha":"bb","counts":[1,1,1,1,1,1,1,1,1,1]}'])
def test_a_reference_of_another_bundle_is_not_used(tmp_path, kept):
    from edgekit_runtime.telemetry.reporter import Reporter, TelemetryOptions
    from edgekit_runtime.telemetry.spool import Spool
    from edgekit_runtime.telemetry.window import About

    spool = Spool.open(tmp_path / "s.db")
    spool.swap_note("scores", kept)
    spool.close()
    about = About("porch-1", "digits", "1", "aa", "raspberry-pi-4")
    reporter = Reporter(Meter(), about, TelemetryOptions("mqtt://127.0.0.1:1", "porch-1", 60, tmp_path / "s.db"))
    reporter._shielded(reporter._read_reference)
    assert sum(reporter._drift.reference) == 0
    reporter._spooled.close()
