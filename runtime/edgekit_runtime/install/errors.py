"""Why an install was refused, one class a reason: each has a code of its own, which events.jsonl and `--json` tell.

    try: install("net.ekb", "/var/lib/edgekit/camera")
    except DowngradeError: ...                     # an older bundle than one that was accepted here before

Rules:
- whatever is raised, `current` is what it was;
- where the reason is the bundle itself (its bytes, its signature, its self-test) the error is one of the bundle's own:
  IntegrityError, SignatureError, ModelFileError, SelfTestError, MissingExtraError.
"""

from __future__ import annotations

from edgekit_runtime.errors import EdgekitError

__all__ = [
    "BundleExpiredError",
    "BundleNotYetValidError",
    "DiskFullError",
    "DowngradeError",
    "DownloadError",
    "DownloadSizeError",
    "DownloadSlowError",
    "FinalError",
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
]


class InstallError(EdgekitError):
    """A bundle cannot be installed, activated or rolled back."""

    code = "install"


class InstallRootError(InstallError):
    """The folder is no install root, or what edgekit keeps there cannot be read."""

    code = "install-root"


class InstallBusyError(InstallError):
    """Another install works in this root, and did not end in time."""

    code = "install-busy"


class PlantedError(InstallError):
    """Something lies in the root that edgekit did not put there: a link, a second name of a file, a folder for a file."""

    code = "planted"


class StorageError(InstallError):
    """The disk failed, or does not allow what an install must do."""

    code = "storage"


class DiskFullError(StorageError):
    """There is no room for the bundle."""

    code = "disk-full"


class ReadOnlyError(StorageError):
    """The root lies on a file system that is mounted read-only."""

    code = "read-only"


class DownloadError(InstallError):
    """The bundle cannot be fetched; what arrived is kept, and the next install goes on from there."""

    code = "download"


class FinalError(DownloadError):
    """The same would be said again, so that it is not asked again at once. `fetch` passes it on as its base."""


class DownloadSlowError(DownloadError):
    """It comes too slowly, or takes too long in all."""

    code = "download-slow"


class DownloadSizeError(DownloadError):
    """It is longer than a bundle may be, or of another length than its signed head says."""

    code = "download-size"


class IncompatibleError(InstallError):
    """The bundle is for other boards."""

    code = "incompatible"


class DowngradeError(InstallError):
    """An older rollout_seq than one that was accepted here before."""

    code = "downgrade"


class SequenceReusedError(InstallError):
    """The rollout_seq of another bundle that was accepted here before."""

    code = "rollout-seq-reused"


class BundleExpiredError(InstallError):
    """The bundle is past its `expires`, by the clock that the message names."""

    code = "expired"


class BundleNotYetValidError(InstallError):
    """The bundle's `not_before` is still to come, by the clock that the message names."""

    code = "not-yet-valid"


class TrialFailedError(InstallError):
    """The bundle did not keep its promise on this board: too slow, too large, or its engine failed."""

    code = "trial-failed"


class TrialPendingError(InstallError):
    """A generation is on trial with the application: nothing else can be installed until that is decided."""

    code = "trial-pending"


class NoGenerationError(InstallError):
    """There is no such generation in the root, or none to go back to."""

    code = "no-generation"
