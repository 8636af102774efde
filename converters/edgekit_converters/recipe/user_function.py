"""`module:function` in a user's own code: found, and its faults as errors in one line.

if is_function_name("my_data:examples"):
    function = find_function("my_data:examples", CalibrationError, "Name a function that yields examples")
...
except (Exception, SystemExit) as error:  # a function that exits is one that fails, not the end of a build
    raise failed("my_data:examples", error, CalibrationError) from error
"""

from __future__ import annotations

import difflib
import importlib
import re
import traceback
from collections.abc import Callable
from typing import Any

from edgekit_converters.recipe.conversion_errors import one_line
from edgekit_converters.recipe.foreign_code import working_folder_on_path
from edgekit_runtime.system.errors import EdgekitError

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_function_name(text: object) -> bool:
    """Whether it is `package.module:function`."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def find_function(spec: str, error_type: type[EdgekitError], wanted: str) -> Callable[..., Any]:
    """Import the module, which is searched in the current folder first.

    wanted: what to do if it has no such function.
    Raises `error_type` for a missing module or function, or whatever the module raises.
    """
    module_name, function_name = spec.split(":", 1)
    try:
        with working_folder_on_path():
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            do = "Run edgekit in the folder that holds it, or install it"
            raise error_type(f"there is no module '{missing}'", where=spec, do=do) from error
        raise failed(spec, error, error_type) from error
    function = getattr(module, function_name, None)
    if callable(function):
        found: Callable[..., Any] = function
        return found
    if function is not None:
        kind = type(function).__name__
        raise error_type(f"'{function_name}' is not a function: its type is {kind}", where=spec, do=wanted)
    known = [name for name in dir(module) if not name.startswith("_") and callable(getattr(module, name, None))]
    near = difflib.get_close_matches(function_name, known, 1)
    do = f"Did you mean '{module_name}:{near[0]}'?" if near else wanted
    raise error_type(f"'{module_name}' has no function '{function_name}'", where=spec, do=do)


def failed(spec: str, error: BaseException, kind: type[EdgekitError], do: str = "Mend the function") -> EdgekitError:
    """Return the error that names the line which raised, instead of a traceback."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    place = "".join(f" ({frame.filename}, line {frame.lineno})" for frame in last)
    text = one_line(error) if str(error).strip() else "no message"
    return kind(f"raised {type(error).__name__}: {text}{place}", where=spec, do=do)
