"""The journey of a check: open, look, replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgekit.checking.finding import Finding, finding
from edgekit.checking.replay import Replayed, loaded, natively, under_emulation
from edgekit.checking.static import Chosen, chosen_runtimes, static
from edgekit.checking.subject import Subject, opened
from edgekit_converters.progress import Progress, silent
from edgekit_profiles import Profile
from edgekit_runtime.bundle.secrets import Given

__all__ = ["Checked", "Request", "check"]

_ANSWERED = ("replay-refused", "replay-crashed", "replay-differs", "replay-late", "replay-failed", "replay-kernels")


@dataclass(frozen=True)
class Request:
    """path: a bundle, or a .tflite or .onnx file. runtimes: (engine, version) pairs instead of what the profile installs.
    replay: whether anything is run at all. emulate: on the profile's processor too. secret: of an encrypted bundle, see
    `open_bundle`."""

    path: Path
    profile: Profile
    runtimes: tuple[tuple[str, str], ...] = ()
    replay: bool = True
    emulate: bool = False
    secret: Given = None


@dataclass(frozen=True)
class Checked:
    """ok: no finding is an error. replays: one an artifact and place, the primary artifact's first."""

    profile: str
    findings: tuple[Finding, ...]
    replays: tuple[Replayed, ...] = field(default=())

    @property
    def ok(self) -> bool:
        return not any(found.level == "error" for found in self.findings)

    @property
    def replayed(self) -> Replayed | None:
        """The one that says most: emulated before native."""
        return next((one for one in self.replays if one.where == "emulated"), self.replays[0] if self.replays else None)

    def as_json(self) -> dict[str, Any]:
        replayed = self.replayed
        return {
            "profile": self.profile,
            "ok": self.ok,
            "findings": [found.as_json() for found in self.findings],
            "replayed": None if replayed is None else replayed.as_json(),
            "replays": [one.as_json() for one in self.replays],
        }


def check(request: Request, progress: Progress = silent) -> Checked:
    """Raises BundleError for what is neither a bundle nor a model, IntegrityError for a damaged bundle, SecretError."""
    profile = request.profile
    runtimes = chosen_runtimes(profile, request.runtimes)
    with opened(request.path, request.secret) as subject:
        findings = static(subject, profile, runtimes)
        replays: list[Replayed] = []
        if request.replay:
            found, more = _replayed(subject, request, runtimes, progress)
            replays, findings = found, _once(findings, more, subject)
    order = {"error": 0, "warning": 1}
    return Checked(profile.name, tuple(sorted(findings, key=lambda one: order[one.level])), tuple(replays))


def _once(known: Sequence[Finding], replayed: Sequence[Finding], subject: Subject) -> list[Finding]:
    """One finding for each fault: what a runtime says of one that the file shows is part of that finding."""
    found = [*known]
    for one in replayed:
        whose = ((one.artifact, one.runtime), (one.artifact, ""))
        same = [at for at, each in enumerate(known) if each.level == "error" and (each.artifact, each.runtime) in whose]
        if one.code == "replay-refused" and same:
            found[same[0]] = replace(found[same[0]], what=f"{found[same[0]].what}; {one.runtime} says: {one.what}")
        else:
            found.append(one)
    if subject.do_for_replay or not any(one.level == "error" for one in found):
        return found
    return [
        one for one in found if one.code != "replay-impossible"
    ]  # this machine's engine refuses it as the board's does


def _replayed(
    subject: Subject, request: Request, runtimes: Sequence[Chosen], progress: Progress
) -> tuple[list[Replayed], list[Finding]]:
    if subject.bundle is None:
        return [], _loaded_only(subject, runtimes, progress)
    replays: list[Replayed] = []
    findings: list[Finding] = []
    for one in sorted(subject.artifacts, key=lambda each: each.role != "primary"):
        chosen = next((each for each in runtimes if each.format == one.format and each.first), None)
        if chosen is None or one.role == "batch":
            continue
        progress(f"replaying {one.recipe} with {chosen.runtime}", 0, None)
        found, more = natively(subject.bundle, one.recipe, chosen.runtime, subject.secret)
        replays += [] if found is None else [found]
        findings += more
    if request.emulate:
        progress(
            f"installing and replaying it on an emulated {request.profile.name}; the first time takes minutes", 0, None
        )
        on_board, more = under_emulation(subject.bundle, _with_pins(request), subject.secret)
        if on_board and not more:
            findings = [_overruled(one, on_board[0]) for one in findings]
        replays += on_board
        findings += more
    return replays, findings


def _loaded_only(subject: Subject, runtimes: Sequence[Chosen], progress: Progress) -> list[Finding]:
    """A file that this machine's engine cannot answer for: whether the board's own version of the engine loads it at all."""
    found = [finding("replay-impossible", subject.why_no_replay, do=subject.do_for_replay)]
    for one in subject.artifacts:
        chosen = next((each for each in runtimes if each.format == one.format and each.first), None)
        if chosen is not None:
            progress(f"loading {one.recipe} with {chosen.runtime}", 0, None)
            found += loaded(subject.path, one.format, one.recipe, chosen.runtime)
    return found


def _overruled(one: Finding, emulated: Replayed) -> Finding:
    """What a runtime did here counts for less than what the same one does on the board's processor."""
    if one.runtime != emulated.runtime or one.code not in _ANSWERED:
        return one
    what = f"{one.what}; under QEMU, with the board's own kernels, it answers as it should"
    return replace(one, level="warning", what=what, do="Nothing: the emulated board's answer counts")


def _with_pins(request: Request) -> Profile:
    return replace(request.profile, pins={**request.profile.pins, **dict(request.runtimes)})
