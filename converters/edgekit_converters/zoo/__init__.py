"""Real trained networks, rebuilt from ordinary packages.
The demo, the tests and the benchmarks run on them.

save_efficientnet_lite0(Path("efficientnet_lite0.keras"))
"""

from __future__ import annotations

from edgekit_converters.zoo.efficientnet_lite0 import save_efficientnet_lite0
from edgekit_converters.zoo.plain import plain_int8

__all__ = ["plain_int8", "save_efficientnet_lite0"]
