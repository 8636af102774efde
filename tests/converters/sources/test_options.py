"""What --shape, --constant, --signature and --trust-model may say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.sources.load_options import LoadOptions, parse_constant, parse_shape


@given(st.text("abc=/:. 0", min_size=1).map(str.strip).filter(bool), st.lists(st.integers(1, 2**31 - 1), max_size=5))
def test_what_is_written_as_a_shape_is_read_back(name: str, sizes: list[int]) -> None:
    shape = (1, *sizes)
    assert parse_shape(f"{name}={','.join(map(str, shape))}") == (name, shape)


@pytest.mark.parametrize(
    ("text", "says", "do"),
    [
        ("1,3,48,192", "an input's name and a value", "--shape NAME=1,3,224,224"),
        ("=1,3", "an input's name and a value", "--shape NAME"),
        ("x=", "an input's name and a value", "--shape NAME"),
        ("x=1,three", "must be whole numbers", "--shape NAME"),
        ("x=1,0", "1 or more", "--shape NAME"),
        ("x=1,-1", "1 or more", "--shape NAME"),
        ("x=4,3,48,192", "the first size is the batch and must be 1, not 4", "--shape x=1,3,48,192"),
        ("x=1,99999999999", "1 or more", "--shape NAME"),
    ],
)
def test_a_shape_that_makes_no_sense_is_refused(text: str, says: str, do: str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_shape(text)
    assert says in caught.value.what
    assert caught.value.where == f"--shape {text}"
    assert do in caught.value.do


@pytest.mark.parametrize(("text", "value"), [("sr=16000", ("sr", 16000)), ("a=b=-0.5", ("a=b", -0.5))])
def test_a_constant_is_a_number(text: str, value: tuple[str, float]) -> None:
    assert parse_constant(text) == value
    assert type(parse_constant(text)[1]) is type(value[1])


@pytest.mark.parametrize("text", ["sr", "sr=", "sr=high", "sr=nan", "sr=inf"])
def test_a_constant_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SourceError, match="--constant NAME=16000"):
        parse_constant(text)


def test_an_input_is_named_once() -> None:
    options = LoadOptions.parse(shapes=["x=1,2", "y=1"], constants=["sr=1"], signature="serve", trust_model=True)
    assert options == LoadOptions({"x": (1, 2), "y": (1,)}, {"sr": 1}, "serve", True)
    with pytest.raises(SourceError, match="duplicate input 'x'"):
        LoadOptions.parse(shapes=["x=1,2", "x=1,3"])
