"""From one network timed on a board to another on the same board: what an anchored estimate is made of.

    carried(terms, anchor_terms, anchor_ms)              # by the roofline's ratio
    blended(carried_ms, host.ratio * anchor_ms)          # together with the ratio measured on the workstation

Rules:
- the roofline's error on the anchor is carried over whole for the kind of work that the anchor spends most time on, half
  (in the logarithm) for what it does not do; so the anchor gets its own time, and more work never takes less;
- a ratio measured on the workstation counts three quarters, the roofline's one quarter: both are off, in other ways;
- an anchor holds for its kernels, precision and threads, and a measured one for its engine and that engine's version.

How far such estimates were off on boards that the fit had not seen stands in `roofline.toml` beside the bands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgekit_profiles.profile import Anchor, Profile
from edgekit_profiles.roofline import constants

__all__ = ["ANCHOR_MODEL", "HostTimes", "blended", "carried", "choose_anchor"]

ANCHOR_MODEL = "mobilenet_v1_1.0_224"
_ORDER = {"measured": 0, "published": 1, "derived": 2}


@dataclass(frozen=True)
class HostTimes:
    """Milliseconds on one core of the workstation, the least of many runs, one thread, both taken in one run.

    ms: of the artifact. reference_ms: of MobileNetV1 1.0 224 in the same precision. engine: what ran both (`litert`).
    """

    ms: float
    reference_ms: float
    engine: str
    engine_version: str = ""
    machine: str = ""

    @property
    def ratio(self) -> float:
        return self.ms / self.reference_ms


def carried(
    terms: Mapping[str, float],
    anchor_terms: Mapping[str, float],
    anchor_ms: float,
    fitted: Mapping[str, Any] | None = None,
) -> float:
    """Milliseconds of the network with these terms of the roofline, where the anchor's terms took anchor_ms instead.

    Every kind of work is corrected by the same factor to a power: 1 for what the anchor spends most time on, down to
    `carried_at_least` for what it does not do. The factor is the one that gives the anchor its own time.
    """
    least = (constants() if fitted is None else fitted)["anchoring"]["carried_at_least"]
    largest = max(anchor_terms.values())
    power = {kind: least + (1.0 - least) * ms / largest for kind, ms in anchor_terms.items()}
    error = _factor(anchor_terms, power, anchor_ms)
    return sum(ms * math.exp(error * power.get(kind, least)) for kind, ms in terms.items())


def _factor(terms: Mapping[str, float], power: Mapping[str, float], wanted_ms: float) -> float:
    """Logarithm of the factor by which the terms, each to its power, add up to wanted_ms. By Newton's method: the
    logarithm of the sum is convex and rises everywhere, so that it converges from anywhere."""
    found = 0.0
    for _ in range(100):
        parts = {kind: ms * math.exp(found * power[kind]) for kind, ms in terms.items()}
        total = sum(parts.values())
        slope = sum(part * power[kind] for kind, part in parts.items()) / total
        step = math.log(total / wanted_ms) / slope
        found -= step
        if abs(step) < 1e-12:
            break
    return found


def blended(carried_ms: float, by_host_ms: float, fitted: Mapping[str, Any] | None = None) -> float:
    """The weighted geometric mean of what the roofline and the workstation say."""
    weight = (constants() if fitted is None else fitted)["anchoring"]["host_weight"]
    return math.exp(weight * math.log(by_host_ms) + (1.0 - weight) * math.log(carried_ms))


def choose_anchor(
    profile: Profile, given: Sequence[Anchor], engine: str, kernels: str, precision: str, threads: int
) -> Anchor | None:
    """The anchor to go by: one measured with this engine first, then a published one, then a derived, the nearest clock
    first. given: of anchor files, besides the profile's."""
    found = [
        anchor
        for anchor in (*given, *profile.anchors)
        if (anchor.model, anchor.threads) == (ANCHOR_MODEL, threads)
        and precision in anchor.ms
        and (anchor.engine == engine if anchor.engine else anchor.framework == kernels)
    ]
    found.sort(key=lambda a: (_ORDER[a.grade], abs(a.clock_ghz - profile.core.clock_ghz)))
    return found[0] if found else None
