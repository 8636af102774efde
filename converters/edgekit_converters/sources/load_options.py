"""Options for reading a model file, and their parsing.

    options = LoadOptions(shapes=dict([parse_shape("image=1,3,48,192")]))

Rules:
- a shape names its input and every size, the batch first and 1; a constant names its input and one number;
- code in a model runs only if the user trusts the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.recipe.option import option

_T = TypeVar("_T")
_LARGEST = 2**31 - 1
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class LoadOptions:
    """How to read a model: `--help` says what each option does.

    as_is: the file is read as what boards run already, not as an original.
    keep_label: a classifier's label stays an output, because it is not the class with the best score.
    """

    shapes: Mapping[str, tuple[int, ...]] = option(
        _NOTHING, "Fix the size of an input with free dimensions; repeatable.", "--shape", metavar="NAME=1,3,48,192"
    )
    constants: Mapping[str, int | float] = option(
        _NOTHING,
        "Fix an input to this value and remove it from the inputs; repeatable.",
        "--constant",
        metavar="NAME=16000",
    )
    signature: str | None = option(None, "The SavedModel signature to use, if it has several.", metavar="NAME")
    trust_model: bool = option(
        False,
        "Allow code inside the model file to run (Lambda layers, pickles). Only for files whose author you trust.",
    )
    as_is: bool = False
    keep_label: bool = False

    @classmethod
    def parse(
        cls,
        *,
        shapes: Iterable[str] = (),
        constants: Iterable[str] = (),
        signature: str | None = None,
        trust_model: bool = False,
    ) -> LoadOptions:
        """Parse command-line values. Raises SourceError naming the option."""
        pinned, fixed = _once(shapes, parse_shape, "--shape"), _once(constants, parse_constant, "--constant")
        return cls(pinned, fixed, signature, trust_model)


def described_json(options: LoadOptions) -> dict[str, Any]:
    """Serialize for the isolated process and for the store's key.
    Without `as_is` and `keep_label`: such files are opened at once."""
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
        raise _refused("--shape", text, "sizes must be whole numbers", "NAME=1,3,224,224") from error
    if not all(0 < number <= _LARGEST for number in numbers):
        raise _refused("--shape", text, "every size must be 1 or more", "NAME=1,3,224,224")
    if numbers[0] != 1:
        what = f"the first size is the batch and must be 1, not {numbers[0]}: a board answers one item at a time"
        do = f"Write --shape {name}={','.join(map(str, (1, *numbers[1:])))}, or leave it out if '{name}' is a state"
        raise SourceError(what, where=f"--shape {text}", do=do)
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
        raise _refused("--constant", text, f"'{number}' is not a number", "NAME=16000") from error
    if not math.isfinite(value):
        raise _refused("--constant", text, f"'{number}' is not finite", "NAME=16000")
    return name, value


def _halves(text: str, option: str, example: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")  # a name may hold an equals sign, numbers do not
    if not equals or not name.strip() or not value.strip():
        raise _refused(option, text, "expected an input's name and a value", example)
    return name.strip(), value.strip()


def _refused(option: str, text: str, what: str, example: str) -> SourceError:
    return SourceError(what, where=f"{option} {text}", do=f"Write {option} {example}")


def _once(texts: Iterable[str], parse: Callable[[str], tuple[str, _T]], option: str) -> dict[str, _T]:
    found: dict[str, _T] = {}
    for text in texts:
        name, value = parse(text)
        if name in found:
            raise SourceError(f"duplicate input '{name}'", where=f"{option} {text}", do="Keep one of the two")
        found[name] = value
    return found
