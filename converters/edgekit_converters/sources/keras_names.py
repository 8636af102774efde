"""Layers' names that TensorFlow takes: a space or a letter with an accent in one ends a trace, because each names a scope.

Rules: only what TensorFlow refuses is replaced, and in memory alone; inputs and outputs keep the author's names in the
contract, so those are asked for before.

    scope("out put")                # "out_put"
    make_layers_scopes(model)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from typing import Any

__all__ = ["make_layers_scopes", "scope"]

_NO_SCOPE = re.compile(r"[^A-Za-z0-9_.\\/>-]")


def scope(name: str) -> str:
    """The name where TensorFlow takes it for a scope's, else one that is near it."""
    allowed = _NO_SCOPE.sub("_", name)
    return allowed if re.match(r"[A-Za-z0-9.]", allowed) else f"t{allowed}"


def make_layers_scopes(model: Any) -> None:
    """Rename the layers of a Keras 3 model, those of models inside it too, and their weights, in place; names stay unique."""
    named = list(_named(model))
    taken = {part.name for part in named}
    for part in named:
        wanted = scope(part.name)
        if wanted == part.name:
            continue
        free = next(name for number in count() if (name := f"{wanted}_{number}" if number else wanted) not in taken)
        taken.add(free)
        part.name = free
    for variable in model.variables:
        value = variable.value
        name, colon, output = value.name.partition(":")
        if scope(name) != name:
            value._handle_name = f"{scope(name)}{colon}{output}"  # what TensorFlow calls it where it saves the graph


def _named(model: Any) -> Iterator[Any]:
    """Layers at any depth, and the plain operations between them."""
    for layer in model._flatten_layers(include_self=True, recursive=True):
        yield layer
        yield from getattr(layer, "operations", ())
