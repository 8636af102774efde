"""`record`: a frozen dataclass whose class is made in a fifth of the time (ADR 0053).

    @record(frozen=True)
    class Quantization:
        scale: float
        zero_point: int = 0

`dataclasses` (`fields`, `replace`, `asdict`) and type checkers take it for a dataclass.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, asdict, field, fields, replace  # noqa: F401 - one import for those who make records
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(*, frozen):
        return _made


def _made(cls: type[Any]) -> type[Any]:
    """Compile one method, where `dataclass` compiles six."""
    made = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
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
    compared = attrgetter(*[one.name for one in fields(made) if one.compare])

    def equals(self: Any, other: object) -> Any:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    methods: dict[str, Any] = {"__eq__": equals, "__hash__": lambda self: hash(compared(self)), "__repr__": _repr}
    methods |= {"__init__": scope["__init__"], "__setattr__": _refuse, "__delattr__": _refuse}
    for name in methods.keys() - cls.__dict__.keys():
        setattr(made, name, methods[name])
    return made


def _repr(self: Any) -> str:
    shown = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(self: Any, name: str, value: object = None) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
