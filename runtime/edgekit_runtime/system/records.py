"""`record`: a frozen dataclass whose class is made in a fifth of the time (ADR 0053).

    @record(frozen=True)
    class Quantization:
        scale: float
        zero_point: int = 0

`dataclasses` (`fields`, `replace`, `asdict`) and type checkers take it for a dataclass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, asdict, field, fields, replace  # noqa: F401 - one import for those who make records
from inspect import get_annotations, signature
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(*, frozen):
        return _made


@dataclasses.dataclass
class _Pattern:
    """What `dataclasses` marks a class and its fields with."""

    one: int


_KIND = fields(_Pattern)[0]._field_type  # type: ignore[attr-defined]


def _made(cls: Any) -> Any:
    """Compile nothing yet, where `dataclass` compiles six methods, and look at no annotation."""
    found: dict[str, Any] = {}
    for base in cls.__mro__[-1:0:-1]:
        found |= getattr(base, "__dataclass_fields__", {})
    for name, kind in get_annotations(cls).items():
        default = cls.__dict__.get(name, MISSING)
        one: Any = default if isinstance(default, dataclasses.Field) else field(default=default)
        found[name] = one
        one.name, one.type, one._field_type, one.kw_only = name, kind, _KIND, False
        if one.default is not MISSING:
            setattr(cls, name, one.default)
        elif one is default:
            delattr(cls, name)
    cls.__dataclass_fields__, cls.__dataclass_params__ = found, _Pattern.__dataclass_params__  # type: ignore[attr-defined]

    def first(self: Any, *given: Any, **named: Any) -> None:
        cls.__init__ = _compiled(cls)
        cls.__init__(self, *given, **named)

    compared = attrgetter(*[one.name for one in found.values() if one.compare])

    def equals(self: Any, other: object) -> Any:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    methods: dict[str, Any] = {"__eq__": equals, "__hash__": lambda self: hash(compared(self)), "__repr__": _repr}
    methods |= {"__init__": first, "__setattr__": _refuse, "__delattr__": _refuse, "__signature__": _Signature()}
    for name in methods.keys() - cls.__dict__.keys():
        setattr(cls, name, methods[name])
    return cls


class _Signature:
    """Of a class, for `inspect`."""

    def __get__(self, _: object, made: type[Any]) -> Any:
        made.__init__ = _compiled(made)
        own = signature(made.__init__)
        return own.replace(parameters=list(own.parameters.values())[1:])


def _compiled(made: type[Any]) -> Callable[..., None]:
    """`__init__`, made with the first object: half of the classes have none."""
    given, lines = ["self"], ["_values = self.__dict__"]
    scope: dict[str, Any] = {}
    for one in fields(made):
        name, default = one.name, one.default if one.default_factory is MISSING else one.default_factory
        given.append(name if default is MISSING else f"{name}={name}_")
        scope[f"{name}_"] = default
        made_now = f"{name}_() if {name} is {name}_ else " if one.default_factory is not MISSING else ""
        lines.append(f"_values[{name!r}] = {made_now}{name}")
    lines += ["self.__post_init__()"] if hasattr(made, "__post_init__") else []
    exec(f"def __init__({', '.join(given)}):\n " + "\n ".join(lines), scope)  # noqa: S102 - as dataclasses do
    compiled: Callable[..., None] = scope["__init__"]
    return compiled


def _repr(self: Any) -> str:
    shown = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(self: Any, name: str, value: object = None) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
