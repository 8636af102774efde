"""Boards as data: one TOML a board, the loader that checks it, and the latency estimate.

profile = load("raspberry-pi-4")                  # or `raspberry-pi-4-32bit`, `jetson-nano@5w`, a path to a .toml
catalogue = open_catalogue([Path("boards")])      # with the user's own folders and other packages
installable(profile)                              # which engines have a wheel for its Python, glibc and machine
estimate(profile, workload, "litert")             # low, middle and high milliseconds, and what they rest on
"""

from __future__ import annotations

from edgekit_profiles.anchors import HostTimes
from edgekit_profiles.catalogue import Catalogue, load, names, open_catalogue, parse
from edgekit_profiles.errors import AnchorError, CannotEstimateError, ProfileError, UnknownProfileError
from edgekit_profiles.estimate import (
    Estimate,
    EstimateEvidence,
    Grade,
    caution,
    estimate,
    has_anchor,
    has_rates,
    layer_terms,
    measured_estimate,
    milliseconds,
)
from edgekit_profiles.profile import (
    Accelerator,
    Anchor,
    BoardMarks,
    Caches,
    Core,
    CoreType,
    Memory,
    Mode,
    OsImage,
    Power,
    Profile,
    Thermal,
    features_of,
    identify,
    in_mode,
    known_types,
)
from edgekit_profiles.wheels import DebianPackage, RuntimeSupport, debian_packages, installable, runtime_python
from edgekit_profiles.workload import Op, OpKind, Precision, Workload, mobilenet_v1

__all__ = [
    "Accelerator", "Anchor", "AnchorError", "BoardMarks", "Caches", "CannotEstimateError", "Catalogue", "Core",
    "CoreType", "DebianPackage", "Estimate", "EstimateEvidence", "Grade", "HostTimes", "Memory", "Mode", "Op",
    "OpKind", "OsImage", "Power", "Precision", "Profile", "ProfileError", "RuntimeSupport", "Thermal",
    "UnknownProfileError", "Workload", "caution", "debian_packages", "estimate", "features_of", "has_anchor",
    "has_rates", "identify", "in_mode", "installable", "known_types", "layer_terms", "load", "measured_estimate",
    "milliseconds", "mobilenet_v1", "names", "open_catalogue", "parse", "runtime_python",
]  # fmt: skip
