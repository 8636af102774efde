"""The vector of a model that embeds, scaled to length 1 where its contract says so."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.contract.adapt import vector
from edgekit_runtime.contract.spec import Contract, EmbeddingSpec, OutputContract
from edgekit_runtime.system.errors import ContractError


def contract(normalize):
    outputs = (OutputContract("other", (2,), "float32"), OutputContract("e", (1, 1, 3), "float32"))
    return Contract("embedding", (), outputs, embedding=EmbeddingSpec("e", normalize))


def ask(values, normalize=True):
    return vector({"other": np.zeros(2), "e": np.array(values, np.float32).reshape(1, 1, 3)}, contract(normalize))


def test_the_vector_is_the_named_output_along_one_axis():
    assert ask([3, 0, 4], normalize=False).tolist() == [3, 0, 4]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=3, max_size=3))
def test_a_normalised_vector_has_length_one_and_the_same_direction(values):
    found = ask(values).astype(np.float64)
    if not any(values):
        assert found.tolist() == [0, 0, 0]
        return
    assert np.linalg.norm(found) == pytest.approx(1, abs=1e-5)
    given_ = np.array(values, np.float64)
    assert found @ given_ == pytest.approx(np.linalg.norm(given_), rel=1e-4)


def test_it_is_a_copy_that_nobody_can_write_to():
    with pytest.raises(ValueError, match="read-only"):
        ask([3, 0, 4], normalize=False)[0] = 1


def test_vectors_are_for_models_that_embed():
    with pytest.raises(ContractError, match="this model's task is raw"):
        vector({}, Contract("raw", (), ()))
