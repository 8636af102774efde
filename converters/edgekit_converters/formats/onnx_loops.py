"""How often an ONNX Loop runs its body, as far as the file says.

    trips_of(body, loop, (stored, starts), ends)         # 20; None if the condition depends on answers

Rules:
- limits are the Loop's own number and comparisons of a counter with a constant after a step; the least counts;
- a counter starts at a constant, and each step adds a constant to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from edgekit_converters.formats.onnx_file import GraphView, array, constants

# Less and the like with the counter first -> (which operand is the counter, how much is added to the limit)
COMPARISONS = {"Less": (0, 0), "LessOrEqual": (0, 1), "Greater": (1, 0), "GreaterOrEqual": (1, 1)}
_ENDLESS = 1 << 31


def trips_of(
    body: GraphView, loop: Any, given: tuple[Mapping[str, Any], Mapping[str, float | None]], ends: Sequence[str]
) -> int | None:
    """How often a Loop runs: as often as it says, or until its counters pass constants.

    given: constants around the loop, and of its state, by the body's names. ends: the condition, then the state, after
    a step. Any other condition may end it earlier: None.
    """
    stored, starts = given
    most, entry = loop.input[:2]
    limits = [number(stored.get(most))] if most else []
    if limits == [None] or (entry and not number(stored.get(entry))):
        return None
    known = dict(constants(body.graph))
    begins = {body.graph.input[0].name: 0.0, **starts}
    strides = {body.graph.input[0].name: 1.0}
    for name, end in zip(starts, ends[1:], strict=False):
        base, stride = follow(body, end)
        strides[name] = stride if base == name else 0.0
    pending = [ends[0]]
    for _ in range(2 * len(body.nodes) + 1):
        if not pending:
            break
        name, _added = follow(body, pending.pop())
        maker = body.maker(name)
        if maker is None:
            if name != body.graph.input[1].name and not number(known.get(name)):
                return None
        elif maker.op_type == "And":
            pending += maker.input
        elif maker.op_type in COMPARISONS:
            at, beyond = COMPARISONS[maker.op_type]
            limit, (base, added) = number(known.get(maker.input[1 - at])), follow(body, maker.input[at])
            start, stride = begins.get(base), strides.get(base, 0)
            if limit is None or start is None or stride <= 0:
                return None
            limits.append(1 + max(0, -(-(limit + beyond - start - added) // stride)))
        else:
            return None
    least = min((limit for limit in limits if limit is not None), default=_ENDLESS)
    return None if pending or not 0 <= least < _ENDLESS else int(least)


def follow(view: GraphView, name: str) -> tuple[str, float]:
    """(the value that it is a copy of, what constants add to it)"""
    added = 0.0
    for _ in view.nodes:
        maker = view.maker(name)
        if maker is None or maker.op_type not in ("Identity", "Cast", "Add"):
            break
        if maker.op_type == "Add":
            numbers = [number(view.initializers.get(one)) for one in maker.input]
            if numbers.count(None) != 1:
                break
            added += sum(one for one in numbers if one is not None)
            name = maker.input[numbers.index(None)]
        else:
            name = maker.input[0]
    return name, added


def number(tensor: Any) -> float | None:
    """Return the value of a one-element constant."""
    return float(array(tensor).reshape(-1)[0]) if tensor is not None and prod(tensor.dims) == 1 else None
