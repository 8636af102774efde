"""What a board installs: open a bundle, ask it, get an answer. NumPy, an engine, little else.

from edgekit_runtime import open_bundle

with open_bundle("efficientnet_lite0-raspberry-pi-4.ekb") as model:     # verified, self-tested, warm
    answer = model.predict("cat.jpg", budget_ms=100)
    print(answer.top(3), answer.source, answer.timings["total"])

Rule: ONNX Runtime's telemetry is off in this process and in its children, unless the variable says otherwise. From 1.29 on
`import onnxruntime` writes an identity of the device into ~/.cache/Microsoft and reports its use to Microsoft. Only a variable
that is set before that import prevents both, and any converter or application may be the first to import it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from edgekit_runtime.lazy import lazily

# ONNX Runtime 1.32 reads the first name. The second is the spelling that Microsoft's other tools read.
for _name in ("ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED"):
    os.environ.setdefault(_name, "1")

if TYPE_CHECKING:
    from edgekit_runtime.answer import Answer
    from edgekit_runtime.bundle.secrets import (
        SecretError,
        SecretFormatError,
        SecretMissingError,
        SecretUnreadableError,
        SecretWrongError,
    )
    from edgekit_runtime.cache import CacheFileError, Semantic
    from edgekit_runtime.contract.detect import Box
    from edgekit_runtime.contract.finish import Prediction
    from edgekit_runtime.contract.frame import Frame
    from edgekit_runtime.errors import (
        BudgetExceeded,
        BundleError,
        ClosedError,
        ContractError,
        EdgekitError,
        EngineError,
        EngineHung,
        ForkedError,
        InputError,
        IntegrityError,
        MemoryExceeded,
        MissingExtraError,
        ModelFileError,
        NewerBundleError,
        QueueFull,
        SelfTestError,
        SessionError,
        SignatureError,
        TelemetryError,
    )
    from edgekit_runtime.install.errors import (
        BundleExpiredError,
        BundleNotYetValidError,
        DiskFullError,
        DowngradeError,
        DownloadError,
        DownloadSizeError,
        DownloadSlowError,
        IncompatibleError,
        InstallBusyError,
        InstallError,
        InstallRootError,
        NoGenerationError,
        PlantedError,
        ReadOnlyError,
        SequenceReusedError,
        StorageError,
        TrialFailedError,
        TrialPendingError,
    )
    from edgekit_runtime.memory import MemoryBudget
    from edgekit_runtime.metrics import MetricsError
    from edgekit_runtime.model import Model, Stats
    from edgekit_runtime.opening import open_bundle
    from edgekit_runtime.remote import HostAddressError, HostError
    from edgekit_runtime.session import Session
    from edgekit_runtime.telemetry import SpoolError
    from edgekit_runtime.trust import (
        BadSignatureError,
        KeyExpiredError,
        NoTrustError,
        RevokedKeyError,
        RootExpiredError,
        RootRollbackError,
        TooFewSignaturesError,
        TrustError,
        UnknownKeyError,
        UnsafePathError,
        UnsignedError,
    )
    from edgekit_runtime.watchdog import Health

__all__ = [
    "Answer",
    "BadSignatureError",
    "Box",
    "BudgetExceeded",
    "BundleError",
    "BundleExpiredError",
    "BundleNotYetValidError",
    "CacheFileError",
    "ClosedError",
    "ContractError",
    "DiskFullError",
    "DowngradeError",
    "DownloadError",
    "DownloadSizeError",
    "DownloadSlowError",
    "EdgekitError",
    "EngineError",
    "EngineHung",
    "ForkedError",
    "Frame",
    "Health",
    "HostAddressError",
    "HostError",
    "IncompatibleError",
    "InputError",
    "InstallBusyError",
    "InstallError",
    "InstallRootError",
    "IntegrityError",
    "KeyExpiredError",
    "MemoryBudget",
    "MemoryExceeded",
    "MetricsError",
    "MissingExtraError",
    "Model",
    "ModelFileError",
    "NewerBundleError",
    "NoGenerationError",
    "NoTrustError",
    "PlantedError",
    "Prediction",
    "QueueFull",
    "ReadOnlyError",
    "RevokedKeyError",
    "RootExpiredError",
    "RootRollbackError",
    "SecretError",
    "SecretFormatError",
    "SecretMissingError",
    "SecretUnreadableError",
    "SecretWrongError",
    "SelfTestError",
    "Semantic",
    "SequenceReusedError",
    "Session",
    "SessionError",
    "SignatureError",
    "SpoolError",
    "Stats",
    "StorageError",
    "TelemetryError",
    "TooFewSignaturesError",
    "TrialFailedError",
    "TrialPendingError",
    "TrustError",
    "UnknownKeyError",
    "UnsafePathError",
    "UnsignedError",
    "open_bundle",
]

__getattr__ = lazily(
    __name__,
    {
        "edgekit_runtime.answer": ("Answer",),
        "edgekit_runtime.bundle.secrets": (
            "SecretError",
            "SecretFormatError",
            "SecretMissingError",
            "SecretUnreadableError",
            "SecretWrongError",
        ),
        "edgekit_runtime.cache": ("CacheFileError", "Semantic"),
        "edgekit_runtime.contract.detect": ("Box",),
        "edgekit_runtime.contract.finish": ("Prediction",),
        "edgekit_runtime.contract.frame": ("Frame",),
        "edgekit_runtime.errors": (
            "BudgetExceeded",
            "BundleError",
            "ClosedError",
            "ContractError",
            "EdgekitError",
            "EngineError",
            "EngineHung",
            "ForkedError",
            "InputError",
            "IntegrityError",
            "MemoryExceeded",
            "MissingExtraError",
            "ModelFileError",
            "NewerBundleError",
            "QueueFull",
            "SelfTestError",
            "SessionError",
            "SignatureError",
            "TelemetryError",
        ),
        "edgekit_runtime.install.errors": (
            "BundleExpiredError",
            "BundleNotYetValidError",
            "DiskFullError",
            "DowngradeError",
            "DownloadError",
            "DownloadSizeError",
            "DownloadSlowError",
            "IncompatibleError",
            "InstallBusyError",
            "InstallError",
            "InstallRootError",
            "NoGenerationError",
            "PlantedError",
            "ReadOnlyError",
            "SequenceReusedError",
            "StorageError",
            "TrialFailedError",
            "TrialPendingError",
        ),
        "edgekit_runtime.memory": ("MemoryBudget",),
        "edgekit_runtime.metrics": ("MetricsError",),
        "edgekit_runtime.model": (
            "Model",
            "Stats",
        ),
        "edgekit_runtime.opening": ("open_bundle",),
        "edgekit_runtime.remote": ("HostAddressError", "HostError"),
        "edgekit_runtime.session": ("Session",),
        "edgekit_runtime.telemetry": ("SpoolError",),
        "edgekit_runtime.trust": (
            "BadSignatureError",
            "KeyExpiredError",
            "NoTrustError",
            "RevokedKeyError",
            "RootExpiredError",
            "RootRollbackError",
            "TooFewSignaturesError",
            "TrustError",
            "UnknownKeyError",
            "UnsafePathError",
            "UnsignedError",
        ),
        "edgekit_runtime.watchdog": ("Health",),
    },
)
