"""An answer is a value: it can be copied, and sent to another process, and stays what it was."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import spots
import tiny

from edgekit_runtime import open_bundle

WAYS = {
    "copy": copy.copy,
    "deep copy": copy.deepcopy,
    **{
        f"pickle, protocol {protocol}": (lambda answer, p=protocol: pickle.loads(pickle.dumps(answer, p)))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    },
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    with open_bundle(tiny.bundle(folder)) as classifier, open_bundle(spots.bundle(folder)) as detector:
        yield {
            "a classifier": classifier.predict(tiny.RED, budget_ms=10_000),
            "a classifier, out of the cache": classifier.predict(tiny.RED),
            "a detector": detector.predict(spots.spot(32, 16, 4, 4, 6)),
        }


@pytest.mark.parametrize("of", ["a classifier", "a classifier, out of the cache", "a detector"])
@pytest.mark.parametrize("way", WAYS)
def test_a_copy_says_the_same(answers, of, way):
    answer = answers[of]
    again = WAYS[way](answer)
    assert again is not answer
    assert again.outputs.keys() == answer.outputs.keys()
    assert all(np.array_equal(again.outputs[name], array) for name, array in answer.outputs.items())
    assert (again.source, again.met_budget, again.distance) == (answer.source, answer.met_budget, answer.distance)
    assert again.timings == answer.timings
    assert again.boxes == answer.boxes if of == "a detector" else again.top(4) == answer.top(4)


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_is_read_only_too(answers, way):
    (probs,) = WAYS[way](answers["a classifier"]).outputs.values()
    with pytest.raises(ValueError, match="read-only"):
        probs[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        probs.setflags(write=True)


def test_a_deep_copy_shares_no_memory(answers):
    answer = answers["a classifier"]
    assert not np.shares_memory(copy.deepcopy(answer).outputs["probs"], answer.outputs["probs"])
