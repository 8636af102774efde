"""`[state]` in a contract file: which outputs are the next call's inputs, what the first call is given, how frames follow.

    [state]
    carried = { h0 = "hn" }           # input = output; instead of what was recognised by the names
    initial = { h0 = 0.5 }            # a number throughout, or a list of all values in C order; zeros where nothing is said
    hop = 512                         # of recordings: a frame begins so many samples after the last one

Rules: a pair has one dtype and one shape; something besides the states goes in and comes out; a state that the model keeps
inside has neither pairs nor initial values to name.
"""

from __future__ import annotations

import math
from typing import Any

from edgekit_converters.sources.model import SourceModel
from edgekit_profiles.schema import Table
from edgekit_runtime.contract.spec import Carried
from edgekit_runtime.tensors import TensorSpec

__all__ = ["StateKeys", "carried_by_names", "read_state"]

StateKeys = dict[str, Any]
"""`state`, `carried` and `hop` of a Contract."""


def carried_by_names(source: SourceModel) -> StateKeys:
    """What the model itself tells."""
    pairs = tuple(Carried(name, output) for name, output in source.state_pairs)
    return {"state": source.state, "carried": pairs or None}


def read_state(document: Table, source: SourceModel) -> StateKeys:
    """What the model tells, and a person in the contract file. Raises ContractFileError."""
    found = carried_by_names(source)
    table = document.optional_table("state")
    if table is None:
        return found
    table.done(("carried", "initial", "hop"))
    if source.state == "internal":
        for key in ("carried", "initial"):
            if table.has(key):
                table.stop(key, "has no meaning for a model that keeps its state inside", "Remove it")
    named = table.optional_table("carried")
    if named is not None:
        pairs = tuple(_pair(named, source, name) for name in named.data)
        found = {"state": "explicit" if pairs else "none", "carried": pairs or None}
    if found["state"] == "none":
        for key in ("initial", "hop"):
            if table.has(key):
                table.stop(key, "has no meaning for a model without state", "Remove it, or name carried = { ... }")
    if found["carried"] is not None:
        initial = table.optional_table("initial")
        found["carried"] = _begun(found["carried"], initial, source)
        _check_rest(table, source, found["carried"])
    return {**found, "hop": table.optional_integer("hop")}


def _pair(named: Table, source: SourceModel, name: str) -> Carried:
    value = named.data[name]
    into = next((spec for spec in source.inputs if spec.name == name), None)
    if into is None:
        named.stop(name, f"the model has no input '{name}'", f"Its inputs: {_names(source.inputs)}")
    out = next((spec for spec in source.outputs if spec.name == value), None)
    if out is None:
        named.stop(name, f"the model has no output '{value}'", f"Its outputs: {_names(source.outputs)}")
    if (into.dtype, into.shape[1:]) != (out.dtype, out.shape[1:]):
        named.stop(
            name,
            f"'{name}' is {into.dtype} {list(into.shape[1:])} and '{value}' is {out.dtype} {list(out.shape[1:])}",
            "A state comes out as it went in",
        )
    return Carried(name, str(value))


def _begun(pairs: tuple[Carried, ...], initial: Table | None, source: SourceModel) -> tuple[Carried, ...]:
    if initial is None:
        return pairs
    initial.done([pair.input for pair in pairs])
    shapes = {spec.name: spec.shape[1:] for spec in source.inputs}
    return tuple(Carried(pair.input, pair.output, _values(initial, pair.input, shapes[pair.input])) for pair in pairs)


def _values(initial: Table, name: str, shape: tuple[int, ...]) -> tuple[float, ...] | None:
    value, count = initial.data.get(name), math.prod(shape)
    if value is None:
        return None
    listed = value if isinstance(value, list) else [value]
    if len(listed) not in (1, count):
        initial.stop(name, f"has {len(listed)} values, and the state has {count}", "Write one number, or all")
    for number in listed:
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            initial.stop(name, f"{number} is not a finite number", f"Write {name} = 0.5, or a list of numbers")
    return tuple(float(number) for number in listed)


def _check_rest(table: Table, source: SourceModel, pairs: tuple[Carried, ...]) -> None:
    inputs, outputs = [pair.input for pair in pairs], [pair.output for pair in pairs]
    twice = next((name for name in outputs if outputs.count(name) > 1), None)
    if twice is not None:
        table.stop("carried", f"'{twice}' is carried twice", "Name each output once")
    if len(inputs) == len(source.inputs) or len(outputs) == len(source.outputs):
        table.stop("carried", "nothing goes in, or nothing comes out, besides the state", "Carry fewer")


def _names(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(spec.name for spec in specs)
