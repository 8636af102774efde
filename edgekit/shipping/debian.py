"""Which of Debian's packages stand in for wheels that do not exist on 32-bit ARM.

Rules: facts are data, in `edgekit_profiles`; on 32-bit ARM everything compiled that the image's Debian release has comes
from there, so that a wheel never meets a compiled library of another origin; elsewhere wheels exist and are taken.

    supplied(load("raspberry-pi-4-32"))["numpy"].package         # "python3-numpy"
"""

from __future__ import annotations

from edgekit_profiles import Profile
from edgekit_profiles.wheels import DebianPackage, debian_packages, wheels
from edgekit_runtime.engines.registry import ENGINES

__all__ = ["supplied"]


def supplied(profile: Profile) -> dict[str, DebianPackage]:
    """Distribution -> Debian's package for it on this image; empty for machines whose wheels exist. Pure."""
    if profile.arch != "armv7l" or not profile.os.debian:
        return {}
    engines = [
        DebianPackage(ENGINES[row.engine].distribution, row.package, row.version)
        for row in wheels()
        if row.package and row.debian == profile.os.debian and profile.arch in row.arch
    ]
    return {one.distribution: one for one in [*engines, *debian_packages(profile)]}
