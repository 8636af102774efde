"""Boards as data: one TOML a board, the loader that checks it, and the latency estimate.

profile = load("raspberry-pi-4")                  # or `raspberry-pi-4-32bit`, `jetson-nano@5w`, a path to a .toml
catalogue = open_catalogue([Path("boards")])      # the user's own folders besides, and what other packages bring
installable(profile)                              # which engines have a wheel for its Python, glibc and machine
estimate(profile, workload, "litert")             # low, middle and high milliseconds, and what they rest on
"""

from __future__ import annotations

from edgekit_profiles.anchors import HostTimes
from edgekit_profiles.catalogue import Catalogue, load, names, open_catalogue, parse
from edgekit_profiles.errors import AnchorError, CannotEstimateError, ProfileError, UnknownProfileError
from edgekit_profiles.estimate import (
    Estimate,
    Grade,
    Known,
    caution,
    estimate,
    has_anchor,
    has_rates,
    layer_terms,
    measured,
    milliseconds,
)
from edgekit_profiles.profile import (
    Accelerator,
    Anchor,
    Caches,
    Core,
    CoreType,
    Marks,
    Memory,
    Mode,
    Power,
    Profile,
    System,
    Thermal,
    features_of,
    identify,
    in_mode,
    known_types,
)
from edgekit_profiles.wheels import DebianPackage, RuntimeSupport, debian_packages, installable, runtime_python
from edgekit_profiles.workload import Op, OpKind, Precision, Workload, mobilenet_v1

__all__ = [
    "Accelerator",
    "Anchor",
    "AnchorError",
    "Caches",
    "CannotEstimateError",
    "Catalogue",
    "Core",
    "CoreType",
    "DebianPackage",
    "Estimate",
    "Grade",
    "HostTimes",
    "Known",
    "Marks",
    "Memory",
    "Mode",
    "Op",
    "OpKind",
    "Power",
    "Precision",
    "Profile",
    "ProfileError",
    "RuntimeSupport",
    "System",
    "Thermal",
    "UnknownProfileError",
    "Workload",
    "caution",
    "debian_packages",
    "estimate",
    "features_of",
    "has_anchor",
    "has_rates",
    "identify",
    "in_mode",
    "installable",
    "known_types",
    "layer_terms",
    "load",
    "measured",
    "milliseconds",
    "mobilenet_v1",
    "names",
    "open_catalogue",
    "parse",
    "runtime_python",
]
