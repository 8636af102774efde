"""`with pytest.raises(InstallError, check=has_code("downgrade"))`: an error of this class that carries this code."""

from __future__ import annotations

from collections.abc import Callable

from edgekit_runtime.system.errors import EdgekitError


def has_code(*codes: str) -> Callable[[EdgekitError], bool]:
    return lambda error: error.code in codes
