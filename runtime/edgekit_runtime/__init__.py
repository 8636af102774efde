"""The runtime for boards: open a bundle and run it. Needs NumPy, an engine and little else.

    from edgekit_runtime import open_bundle

    with open_bundle("efficientnet_lite0-raspberry-pi-4.ekb") as model:     # verified, self-tested, warm
        answer = model.predict("cat.jpg", budget_ms=100)
        print(answer.top(3), answer.source, answer.timings["total"])

All errors are in `edgekit_runtime.system.errors`; the four most common are also exported here.

Rule: importing this package turns ONNX Runtime's telemetry off in this process and its children, unless the variable is
already set. Since 1.29, importing onnxruntime writes a device identity into ~/.cache/Microsoft and reports usage to
Microsoft. Only a variable set before that import prevents both.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from edgekit_runtime.system.lazy import lazily

# ONNX Runtime 1.32 reads the first name. The second is the spelling that Microsoft's other tools read.
for _name in ("ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED"):
    os.environ.setdefault(_name, "1")

if TYPE_CHECKING:
    from edgekit_runtime.cache.similar import Semantic
    from edgekit_runtime.camera import stream
    from edgekit_runtime.contract.adapt import Prediction
    from edgekit_runtime.contract.detect import Box
    from edgekit_runtime.contract.frame import Frame
    from edgekit_runtime.opening import open_bundle
    from edgekit_runtime.policy.options import CacheOptions, Host, ModelLimits
    from edgekit_runtime.serving.model import Model, Stats
    from edgekit_runtime.serving.request import Answer
    from edgekit_runtime.serving.session import Session
    from edgekit_runtime.system.errors import BudgetExceeded, EdgekitError, OptionError, QueueFull
    from edgekit_runtime.system.memory import MemoryBudget
    from edgekit_runtime.system.watchdog import Health
    from edgekit_runtime.telemetry.reporter import TelemetryOptions

__all__ = [
    "Answer",
    "Box",
    "BudgetExceeded",
    "CacheOptions",
    "EdgekitError",
    "Frame",
    "Health",
    "Host",
    "MemoryBudget",
    "Model",
    "ModelLimits",
    "OptionError",
    "Prediction",
    "QueueFull",
    "Semantic",
    "Session",
    "Stats",
    "TelemetryOptions",
    "open_bundle",
    "stream",
]

__getattr__ = lazily(
    __name__,
    {
        "edgekit_runtime.serving.request": ("Answer",),
        "edgekit_runtime.cache.similar": ("Semantic",),
        "edgekit_runtime.camera": ("stream",),
        "edgekit_runtime.contract.detect": ("Box",),
        "edgekit_runtime.contract.adapt": ("Prediction",),
        "edgekit_runtime.contract.frame": ("Frame",),
        "edgekit_runtime.system.errors": ("BudgetExceeded", "EdgekitError", "OptionError", "QueueFull"),
        "edgekit_runtime.system.memory": ("MemoryBudget",),
        "edgekit_runtime.serving.model": ("Model", "Stats"),
        "edgekit_runtime.opening": ("open_bundle",),
        "edgekit_runtime.policy.options": ("CacheOptions", "Host", "ModelLimits"),
        "edgekit_runtime.serving.session": ("Session",),
        "edgekit_runtime.telemetry.reporter": ("TelemetryOptions",),
        "edgekit_runtime.system.watchdog": ("Health",),
    },
)
