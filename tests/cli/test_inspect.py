"""What inspect says of an artifact's distance from the original."""

from __future__ import annotations

import pytest

from edgekit.cli.inspect import _far

NUMBER = {"kind": "numbers", "spread_error": 0.034}
VECTOR = {"kind": "vector", "spread_error": None}


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        ([NUMBER], "error 3.4 % of what the answers vary by"),
        ([NUMBER, VECTOR], "cosine 0.9876"),
        ([VECTOR], "cosine 0.9876"),
        ([], "cosine 0.9876"),
    ],
)
def test_a_cosine_is_left_out_where_it_says_nothing(outputs, says):
    assert _far({"cosine": 0.98761, "outputs": outputs}) == says


def test_a_bundle_of_an_earlier_version_is_shown_too():
    assert _far({"cosine": 1.0, "outputs": [{"name": "y"}]}) == "cosine 1.0000"
