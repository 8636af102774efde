"""What inputs and outputs are called: the contract's names, and those that TensorFlow allows.

unique_names(["image:0"], where="net.keras", kind="input")      # ("image",)
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from edgekit_converters.errors import SourceError
from edgekit_runtime.tensors import TensorSpec

__all__ = ["graph_names", "unique_names"]


def unique_names(names: Sequence[str], *, where: str, kind: str) -> tuple[str, ...]:
    """Names without TensorFlow's ':0'. Raises SourceError when two are the same: a contract could not tell them apart."""
    clean = tuple(name.removesuffix(":0") for name in names)
    for name in clean:
        if not name or clean.count(name) > 1:
            raise SourceError(
                f"two {kind}s are called '{name}'" if name else f"an {kind} has no name",
                where=where,
                do="Give each its own name and save the model again",
            )
    return clean


def graph_names(specs: Sequence[TensorSpec]) -> list[str]:
    """The contract's names where TensorFlow allows them (letters, digits, underscores), made so and unique elsewhere."""
    names: list[str] = []
    for index, spec in enumerate(specs):
        name = re.sub(r"\W", "_", spec.name, flags=re.ASCII)
        name = name if re.match(r"[A-Za-z]", name) else f"t_{name}"
        names.append(name if name not in names else f"{name}_{index}")
    return names
