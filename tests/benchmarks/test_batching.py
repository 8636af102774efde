"""The figures of batching are those of an application: predict() on a bundle that was packed, beside peers on the same
artifacts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny

pytest.importorskip("ai_edge_litert")

HERE = Path(__file__).resolve().parents[2] / "benchmarks" / "runtime"


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    import batching
    import figures
    import peers

    return batching, peers, figures


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny.bundle(tmp_path_factory.mktemp("batching"))


def test_ours_answers_by_predict_what_the_interpreter_answers(scripts, path):
    _, peers, _ = scripts
    engine = peers.Variants(path)
    ours, lock = peers.ours(engine), peers.lock(engine)
    try:
        answer, raw = ours.ask(engine.item), lock.ask(engine.item)
        assert answer.source == "device"
        assert answer.outputs["probs"].argmax() == np.asarray(raw).argmax()
        assert ours.described()["batches"] == {1: 1}
        assert [one.shape for one in engine.run([engine.item] * 3)] == [(1, 4)] * 3, "one by one without a variant"
    finally:
        ours.close()


def test_a_block_measures_callers_and_a_lone_one(scripts, path):
    batching, peers, _ = scripts
    engine = peers.Variants(path)
    ours = peers.ours(engine)
    try:
        block = batching.crowd(ours.ask, engine.item, 4, 0.05)
        block["lone_ms"] = batching.lone(ours.ask, engine.item, 5)
        found = batching.row("ours", [block], [block], 4)
    finally:
        ours.close()
    assert found["per_s"] > 0
    assert (found["ratio"], found["lone_ratio"]) == (1.0, 1.0)


def test_every_figure_of_many_callers_says_that_it_is_predict_s(scripts):
    _, _, figures = scripts
    rows = [figure.what for figure in figures.figures(HERE.parents[1] / "benchmarks" / "results")]
    assert all("predict()" in row or row.startswith("the same") for row in rows if "callers" in row)
