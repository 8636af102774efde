"""Boards as data: one TOML a board, the loader that checks it, and the latency estimate.

profile = load("raspberry-pi-4")
installable(profile)                              # which engines have a wheel for its Python, glibc and machine
estimate(profile, workload, "litert")             # low, middle and high milliseconds, and what they rest on
"""

from __future__ import annotations

from edgekit_profiles.errors import CannotEstimateError, ProfileError, UnknownProfileError
from edgekit_profiles.estimate import Estimate, Grade, estimate, measured, milliseconds
from edgekit_profiles.loader import load, names, parse
from edgekit_profiles.profile import Anchor, Caches, Core, Memory, Profile, System, Thermal
from edgekit_profiles.wheels import RuntimeSupport, installable
from edgekit_profiles.workload import Op, OpKind, Precision, Workload, mobilenet_v1

__all__ = [
    "Anchor",
    "Caches",
    "CannotEstimateError",
    "Core",
    "Estimate",
    "Grade",
    "Memory",
    "Op",
    "OpKind",
    "Precision",
    "Profile",
    "ProfileError",
    "RuntimeSupport",
    "System",
    "Thermal",
    "UnknownProfileError",
    "Workload",
    "estimate",
    "installable",
    "load",
    "measured",
    "milliseconds",
    "mobilenet_v1",
    "names",
    "parse",
]
