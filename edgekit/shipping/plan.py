"""What a package for a board consists of: decided from a bundle and a profile, before anything is fetched or written.

Rules:
- the engine is the one that the profile's image can install for the bundle's first artifact, in the runtime's order;
- its version is the one that made the bundle's golden answers, where the index still has it for the board: what was
  proven is what is shipped;
- names are fit for files, for Debian and for systemd, whatever the bundle is called.

    plan = planned(read_bundle("digits.ekb"), load("raspberry-pi-4"), None)
    plan.name, plan.engine, plan.extras              # "digits", "litert", ("image",)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgekit.shipping.errors import NoWheelError
from edgekit_profiles import Profile, installable
from edgekit_runtime.bundle import Bundle, Manifest
from edgekit_runtime.contract.kinds import kind_of
from edgekit_runtime.engines.registry import ENGINES

__all__ = ["Plan", "package_name", "planned"]


@dataclass(frozen=True)
class Plan:
    """name: of files and folders on the board. version: Debian's. extras: of edgekit, beside the engine's.

    proven: the engine's version that made the golden answers, None where another engine made them.
    notes: sentences that a person should read.
    """

    name: str
    title: str
    version: str
    engine: str
    extras: tuple[str, ...]
    proven: str | None
    notes: tuple[str, ...] = ()


def planned(bundle: Bundle, profile: Profile, engine: str | None, extras: tuple[str, ...] = ()) -> Plan:
    """engine: None to choose. extras: more than the bundle itself needs. Raises NoWheelError."""
    manifest = bundle.manifest
    chosen = _engine(manifest, profile, engine)
    kinds = {extra for spec in manifest.contract.caller_inputs for extra in kind_of(spec).extras}
    return Plan(
        name=package_name(manifest.name),
        title=f"{manifest.name} version {manifest.version} for {profile.name}",
        version=_debian_version(manifest.version),
        engine=chosen,
        extras=tuple(sorted({*kinds, *extras})),
        proven=_proven(manifest, chosen),
        notes=tuple(_notes(manifest, profile)),
    )


def package_name(name: str) -> str:
    """Lower case, and of a-z, 0-9, '.' and '-' only, beginning with a letter or digit: what Debian and systemd take."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "model"


def _debian_version(version: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9.+~]+", "+", version).strip("+.~") or "0"
    return plain if plain[0].isdigit() else f"0~{plain}"


def _engine(manifest: Manifest, profile: Profile, asked: str | None) -> str:
    formats: list[str] = [artifact.format for artifact in manifest.artifacts]  # the primary one stands first
    fitting = [support for support in installable(profile) if support.format in formats]
    if asked is not None:
        fitting = [support for support in fitting if support.engine == asked]
    able = sorted((support for support in fitting if support.ok), key=lambda one: formats.index(one.format))
    if able:
        return able[0].engine
    why = "; ".join(dict.fromkeys(support.reason for support in fitting))
    if not why and asked is not None and not set(formats).isdisjoint(ENGINES[asked].formats):
        why = f"edgekit knows no wheel of {asked} for boards"
    if asked is not None and why:
        do = "Leave out --engine, or name another; `edgekit profiles show` lists what installs there"
        raise NoWheelError(f"{asked} is not for {profile.name}: {why}", where=profile.name, do=do)
    why = why or f"it holds {', '.join(sorted(set(formats)))} only"
    raise NoWheelError(
        f"no engine for {manifest.name} installs on {profile.name}: {why}",
        where=profile.name,
        do="`edgekit profiles show` lists what installs there; build for another image, or for the other format",
    )


def _proven(manifest: Manifest, engine: str) -> str | None:
    recipes = [artifact.recipe for artifact in manifest.artifacts if artifact.format in ENGINES[engine].formats]
    made = [a for golden in manifest.golden for a in golden.answers if a.engine == engine and a.recipe in recipes]
    return made[0].engine_version if made else None


def _notes(manifest: Manifest, profile: Profile) -> list[str]:
    if manifest.target.profile == profile.name:
        return []
    return [f"the bundle was built for {manifest.target.profile}: its latencies were not judged for {profile.name}"]
