"""A record is a frozen dataclass, but for the time that it takes to make its class."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace

import pytest

from edgekit_runtime.system.records import record
from edgekit_runtime.system.strict_json import from_json, to_json


def body():
    """The same class body twice: made by `record`, and by `dataclass`."""
    return {
        "__module__": __name__,
        "__qualname__": "Point",
        "__annotations__": {"x": "int", "y": "int", "tags": "list[str]", "note": "str"},
        "y": 0,
        "tags": field(default_factory=list, compare=False),
        "note": field(default="", repr=False),
        "area": property(lambda self: self.x * self.y),
    }


Point = record(frozen=True)(type("Point", (), body()))
Dataclass = dataclass(frozen=True)(type("Point", (), body()))
GIVEN = [((1,), {}), ((1, 2), {}), ((1,), {"tags": ["a"]}), ((), {"x": 3, "note": "n"}), ((1, 2, ["b"], "m"), {})]


@pytest.mark.parametrize(("values", "named"), GIVEN)
def test_it_holds_shows_and_compares_what_a_frozen_dataclass_does(values, named):
    ours, theirs = Point(*values, **named), Dataclass(*values, **named)
    assert asdict(ours) == asdict(theirs)
    assert (repr(ours), hash(ours), ours.area) == (repr(theirs), hash(theirs), theirs.area)
    assert ours == Point(*values, **named) != replace(ours, x=9)
    assert ours == replace(ours, tags=["not compared"])
    assert ours != theirs
    assert Point(1).tags is not Point(1).tags


def test_it_is_a_dataclass_to_whoever_asks():
    names = [[one.name for one in fields(kind)] for kind in (Point, Dataclass)]
    assert names[0] == names[1]
    assert dataclasses.is_dataclass(Point)
    assert from_json(Point, to_json(Point(1, 2)), "point") == Point(1, 2)
    for again in (pickle.loads(pickle.dumps(Point(1, 2))), copy.deepcopy(Point(1, 2))):
        assert again == Point(1, 2)


def test_it_is_frozen_and_wants_what_has_no_default():
    for change in (lambda: setattr(Point(1), "x", 2), lambda: delattr(Point(1), "x")):
        with pytest.raises(FrozenInstanceError, match="'x'"):
            change()
    for wrong in ((), (1, 2, [], "", 5)):
        with pytest.raises(TypeError):
            Point(*wrong)


def test_methods_of_its_own_stay():
    @record(frozen=True)
    class Even:
        number: int

        def __post_init__(self):
            if self.number % 2:
                raise ValueError("odd")

        def __repr__(self):
            return "even"

    assert repr(Even(2)) == "even"
    with pytest.raises(ValueError, match="odd"):
        Even(1)
