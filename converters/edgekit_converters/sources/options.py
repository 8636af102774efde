"""What a person may say about a model file that the file does not say itself.

Rules: a shape names its input and every size, the batch first and 1; a constant names its input and one number; code in
a model runs only where somebody said that the file is trusted.

    LoadOptions(shapes=dict([parse_shape("image=1,3,48,192")]))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from edgekit_converters.errors import SourceError

__all__ = ["LoadOptions", "described_json", "parse_constant", "parse_shape"]

_T = TypeVar("_T")
_LARGEST = 2**31 - 1
_NOTHING: Mapping[str, int | float] = MappingProxyType({})


@dataclass(frozen=True)
class LoadOptions:
    """shapes: input -> all its sizes, (1, 3, 48, 192); the first is the batch and must be 1, which leaves a free batch
    free. constants: input -> the number that it always has; the input is then gone. signature: which function of a
    SavedModel. trust_model: code that the file holds (Lambda layers, classes of its author's, pickles) may run. as_is: the
    file is not read as an original, but as what boards run already.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    constants: Mapping[str, int | float] = field(default_factory=lambda: _NOTHING)
    signature: str | None = None
    trust_model: bool = False
    as_is: bool = False

    @classmethod
    def parse(
        cls,
        *,
        shapes: Iterable[str] = (),
        constants: Iterable[str] = (),
        signature: str | None = None,
        trust_model: bool = False,
    ) -> LoadOptions:
        """From a command line's words. Raises SourceError naming the option, also where an input is named twice."""
        return cls(
            _once(shapes, parse_shape, "--shape"),
            _once(constants, parse_constant, "--constant"),
            signature,
            trust_model,
        )


def described_json(options: LoadOptions) -> dict[str, Any]:
    """For the process that opens the file, and for the key of what came of it. `as_is` is of neither."""
    return {
        "shapes": {name: list(sizes) for name, sizes in options.shapes.items()},
        "constants": dict(options.constants),
        "signature": options.signature,
        "trust_model": options.trust_model,
    }


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """`image=1,3,48,192` -> ("image", (1, 3, 48, 192)). Raises SourceError for anything else."""
    name, sizes = _halves(text, "--shape", "NAME=1,3,224,224")
    try:
        numbers = tuple(int(size) for size in sizes.split(","))
    except ValueError as error:
        raise _refused("--shape", text, "a size is no whole number", "NAME=1,3,224,224") from error
    if not all(0 < number <= _LARGEST for number in numbers):
        raise _refused("--shape", text, "every size must be 1 or more", "NAME=1,3,224,224")
    if numbers[0] != 1:
        raise SourceError(
            f"the first size is the batch and must be 1, not {numbers[0]}: a board answers one item at a time",
            where=f"--shape {text}",
            do=f"Write --shape {name}={','.join(map(str, (1, *numbers[1:])))}",
        )
    return name, numbers


def parse_constant(text: str) -> tuple[str, int | float]:
    """`sr=16000` -> ("sr", 16000). Raises SourceError for anything else."""
    name, number = _halves(text, "--constant", "NAME=16000")
    try:
        return name, int(number)
    except ValueError:
        pass
    try:
        value = float(number)
    except ValueError as error:
        raise _refused("--constant", text, f"'{number}' is no number", "NAME=16000") from error
    if not math.isfinite(value):
        raise _refused("--constant", text, f"'{number}' is not finite", "NAME=16000")
    return name, value


def _halves(text: str, option: str, example: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")  # a name may hold an equals sign, numbers do not
    if not equals or not name.strip() or not value.strip():
        raise _refused(option, text, "this names no input and value", example)
    return name.strip(), value.strip()


def _refused(option: str, text: str, what: str, example: str) -> SourceError:
    return SourceError(what, where=f"{option} {text}", do=f"Write {option} {example}")


def _once(texts: Iterable[str], parse: Callable[[str], tuple[str, _T]], option: str) -> dict[str, _T]:
    found: dict[str, _T] = {}
    for text in texts:
        name, value = parse(text)
        if name in found:
            raise SourceError(f"the input '{name}' is named twice", where=f"{option} {text}", do="Keep one of the two")
        found[name] = value
    return found
