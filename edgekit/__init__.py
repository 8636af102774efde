"""edgekit: the host side, what a person runs.
The command is in `edgekit.cli`; `build`, `compress`: in Python.
"""

from typing import TYPE_CHECKING

from edgekit_runtime.system.lazy import lazily

if TYPE_CHECKING:
    from edgekit.api import build, compress

__all__ = ["__version__", "build", "compress"]

__version__ = "0.1.0"
__getattr__ = lazily(__name__, {"edgekit.api": ("build", "compress")})
