"""Check a bundle for a board: static findings first, then a replay.

    for found in static_findings(subject, profile, chosen_runtimes(profile)):
        print(found.code, found.what)

Rule: a barrier for the runtime that the board will use, the first that installs, is an error; for another one it is a
warning, because boards differ from their profile. The rules are the build's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgekit.boards.catalogue import CheckFinding, Level, finding
from edgekit.boards.replay import ReplayResult, load_natively, replay_emulated, replay_natively
from edgekit.boards.subject import Checkable, CheckSubject, open_subject
from edgekit_converters.choose import beyond_memory
from edgekit_converters.formats.needs import Barrier, Runtime, barriers, read_needs
from edgekit_converters.formats.workload import memory_bytes
from edgekit_converters.recipe.artifact import RECIPES, per_tensor, with_islands
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_converters.recipe.progress import Progress, silent
from edgekit_profiles import Profile, installable
from edgekit_runtime.bundle.secrets import SecretArgument
from edgekit_runtime.engines.registry import ENGINES
from edgekit_runtime.system.errors import EdgekitError

_SHARE_OF_RAM = 0.25


class UnknownRuntimeError(EdgekitError):
    """--runtime does not name an engine and a version."""

    code = "runtime-name"


@dataclass(frozen=True)
class RuntimeChoice:
    """A runtime that a board may have for a format. first: whether it will use this one."""

    format: str
    runtime: Runtime
    first: bool


def runtime_named(text: str) -> tuple[str, str]:
    """`tflite-runtime==2.14.0` -> (engine, version). Raises UnknownRuntimeError.

    The distribution's name and `2.14` mean the same.
    """
    name, separator, version = (part.strip() for part in text.partition("=="))
    engines = {kind.distribution: engine for engine, kind in ENGINES.items()} | {engine: engine for engine in ENGINES}
    if name not in engines or not separator or not all(part.isdecimal() for part in version.split(".")):
        do = f"Write ENGINE==VERSION, with one of {', '.join(ENGINES)}: --runtime tflite-runtime==2.14.0"
        raise UnknownRuntimeError(f"'{text}' is not a runtime", where="--runtime", do=do)
    # In three numbers, as engines themselves say it, so that it is found again in what was installed: 1.21 -> 1.21.0
    numbers = [int(part) for part in version.split(".")]
    while len(numbers) > 3 and numbers[-1] == 0:
        numbers.pop()
    return engines[name], ".".join(map(str, numbers + [0] * (3 - len(numbers))))


def chosen_runtimes(profile: Profile, named: Sequence[tuple[str, str]] = ()) -> tuple[RuntimeChoice, ...]:
    """For each format the runtime that the board uses, then the others that install there.

    named: used instead, for the formats that those engines run
    """
    has = (profile.arch, profile.core.type, os.environ.get("EDGEKIT_DELEGATE", ""))
    found = [RuntimeChoice(form, Runtime(e, v, *has), True) for e, v in named for form in ENGINES[e].formats]
    decided = {one.format for one in found}
    for verdict in installable(profile):
        if verdict.ok and verdict.version is not None and verdict.format not in decided:
            first = verdict.format not in {one.format for one in found}
            found.append(RuntimeChoice(verdict.format, Runtime(verdict.engine, verdict.version, *has), first))
    return tuple(found)


def static_findings(subject: CheckSubject, profile: Profile, runtimes: Sequence[RuntimeChoice]) -> list[CheckFinding]:
    """Of every artifact, then of the file as a whole."""
    found: list[CheckFinding] = []
    for one in subject.artifacts:
        found += _check_artifact(one, subject, profile, runtimes)
    size = subject.size / 2**20
    if size > _SHARE_OF_RAM * profile.memory.ram_mb:
        what = f"the file has {size:.0f} MiB and is read as a whole, and {profile.name} has {profile.memory.ram_mb} MiB"
        found.append(finding("file-size", what))
    target = subject.target
    if target is not None and target.profile != profile.name:
        what = f"it was built for {target.profile} ({target.arch}), and this is {profile.name} ({profile.arch})"
        found.append(finding("other-board", what))
    return found


def _check_artifact(
    one: Checkable, subject: CheckSubject, profile: Profile, runtimes: Sequence[RuntimeChoice]
) -> Iterator[CheckFinding]:
    own = [chosen for chosen in runtimes if chosen.format == one.format]
    if not own:
        yield _runtime_missing(one, subject, profile, runtimes)
    try:
        needs = read_needs(one.format, one.data)
    except ConversionError as error:
        yield finding("not-a-model", error.what, artifact=one.recipe)
        return
    for chosen in own:
        runtime = str(chosen.runtime)
        for barrier in barriers(needs, chosen.runtime):
            do = _remedy(barrier, one, subject, chosen)
            what = barrier.what if chosen.first else f"if the board has {runtime} instead: {barrier.what}"
            level: Level | None = None if chosen.first else "warning"
            yield finding(barrier.code, what, do=do, level=level, artifact=one.recipe, runtime=runtime)
        numpy = ENGINES[chosen.runtime.engine].numpy_for(chosen.runtime.version)
        if chosen.first and numpy != "numpy":
            engine = f"{ENGINES[chosen.runtime.engine].distribution}=={chosen.runtime.version}"
            do = f"Install it with its limit: pip install '{engine}' '{numpy}'; `edgekit deploy` writes that limit down"
            what = f"{runtime} works with NumPy 1 alone, and does not say so"
            yield finding("numpy-2", what, do=do, artifact=one.recipe, runtime=runtime)
    if needs.free_axes:
        what = f"'{needs.free_axes[0]}' has a size that is only known at run time"
        yield finding("free-shape", what, artifact=one.recipe)
    reason = beyond_memory(profile.name, memory_bytes(one.format, one.data), profile.memory.ram_mb)
    if reason is not None:
        yield finding("memory", reason, artifact=one.recipe)


def _runtime_missing(
    one: Checkable, subject: CheckSubject, profile: Profile, runtimes: Sequence[RuntimeChoice]
) -> CheckFinding:
    """A warning if another artifact runs on the board, else an error."""
    reasons = dict.fromkeys(verdict.reason for verdict in installable(profile) if verdict.format == one.format)
    what = f"no {one.format} runtime installs on {profile.name}: {'; '.join(reasons)}"
    formats = {chosen.format for chosen in runtimes}
    answering = (each for each in subject.artifacts if each.role in ("primary", "alternate"))
    instead = next((each.recipe for each in answering if each.format in formats), None)
    if instead is None:
        return finding("runtime-unavailable", what, artifact=one.recipe)
    do = f"Nothing, where {instead} will do: it answers there instead"
    return finding("runtime-unavailable", what, do=do, level="warning", artifact=one.recipe)


def _remedy(barrier: Barrier, one: Checkable, subject: CheckSubject, chosen: RuntimeChoice) -> str:
    """The command that makes a form that would run, or ""."""
    if not chosen.first or barrier.remedy is None:
        return ""
    known = RECIPES.get(one.recipe)
    form: str | None = None
    if subject.made_up:
        form = "tflite-as-is-per-tensor" if barrier.remedy == "per-tensor" else None
    elif known is not None and barrier.remedy == "float-layers":
        form = with_islands(known).name if known.needs_calibration else None
    elif known is not None:
        other = per_tensor(known)
        form = "tflite-dynamic" if other is None else other.name
    if form is None:
        return ""
    model, pin = (subject.path.name if subject.made_up else "MODEL"), chosen.runtime
    return (
        f"edgekit build {model} --recipe {form} --profile NAME makes the form that runs there; for a profile whose "
        f'[pins] say {pin.engine} = "{pin.version}" the build makes it by itself'
    )


_ANSWERED = ("replay-refused", "replay-crashed", "replay-differs", "replay-late", "replay-failed", "replay-kernels")


@dataclass(frozen=True)
class CheckRequest:
    """path: a bundle, or a .tflite or .onnx file
    runtimes: (engine, version) pairs instead of the profile's
    replay: whether anything is run
    emulate: whether the profile's processor is emulated, too
    secret: see `open_bundle`
    """

    path: Path
    profile: Profile
    runtimes: tuple[tuple[str, str], ...] = ()
    replay: bool = True
    emulate: bool = False
    secret: SecretArgument = None


@dataclass(frozen=True)
class CheckReport:
    """replays: one an artifact and place, the primary artifact's first."""

    profile: str
    findings: tuple[CheckFinding, ...]
    replays: tuple[ReplayResult, ...] = field(default=())

    @property
    def ok(self) -> bool:
        return not any(found.level == "error" for found in self.findings)

    @property
    def replayed(self) -> ReplayResult | None:
        """The emulated replay if any, else the first."""
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


def check(request: CheckRequest, progress: Progress = silent) -> CheckReport:
    """Check a file for a board. Raises BundleError, IntegrityError, SecretError."""
    profile = request.profile
    runtimes = chosen_runtimes(profile, request.runtimes)
    with open_subject(request.path, request.secret) as subject:
        findings = static_findings(subject, profile, runtimes)
        replays: list[ReplayResult] = []
        if request.replay:
            replays, more = _replay_all(subject, request, runtimes, progress)
            known = [*findings]
            for one in more:  # a runtime's message joins the finding that the file already shows
                whose = ((one.artifact, one.runtime), (one.artifact, ""))
                same = [i for i, f in enumerate(known) if f.level == "error" and (f.artifact, f.runtime) in whose]
                if one.code == "replay-refused" and same:
                    shown = findings[same[0]]
                    findings[same[0]] = replace(shown, what=f"{shown.what}; {one.runtime} says: {one.what}")
                else:
                    findings.append(one)
            if not subject.do_for_replay and any(one.level == "error" for one in findings):
                # The findings explain why this machine's engine refuses it, too
                findings = [one for one in findings if one.code != "replay-impossible"]
    order = {"error": 0, "warning": 1}
    return CheckReport(profile.name, tuple(sorted(findings, key=lambda one: order[one.level])), tuple(replays))


def _replay_all(
    subject: CheckSubject, request: CheckRequest, runtimes: Sequence[RuntimeChoice], progress: Progress
) -> tuple[list[ReplayResult], list[CheckFinding]]:
    replays: list[ReplayResult] = []
    findings: list[CheckFinding] = []
    if subject.bundle is None:
        # This machine's engine cannot run the file; the board's own version may at least load it.
        findings.append(finding("replay-impossible", subject.why_no_replay, do=subject.do_for_replay))
        for one in subject.artifacts:
            chosen = next((each for each in runtimes if each.format == one.format and each.first), None)
            if chosen is not None:
                progress(f"loading {one.recipe} with {chosen.runtime}", 0, None)
                findings += load_natively(subject.path, one.format, one.recipe, chosen.runtime)
        return [], findings
    for one in sorted(subject.artifacts, key=lambda each: each.role != "primary"):
        chosen = next((each for each in runtimes if each.format == one.format and each.first), None)
        if chosen is None or one.role == "batch":
            continue
        progress(f"replaying {one.recipe} with {chosen.runtime}", 0, None)
        found, more = replay_natively(subject.bundle, one.recipe, chosen.runtime, subject.secret)
        replays += [] if found is None else [found]
        findings += more
    if request.emulate:
        progress(
            f"installing and replaying it on an emulated {request.profile.name}; the first time takes minutes", 0, None
        )
        pinned = replace(request.profile, pins={**request.profile.pins, **dict(request.runtimes)})
        on_board, more = replay_emulated(subject.bundle, pinned, subject.secret)
        if on_board and not more:
            findings = [demote(one, on_board[0]) for one in findings]
        replays += on_board
        findings += more
    return replays, findings


def demote(one: CheckFinding, emulated: ReplayResult) -> CheckFinding:
    """Turn an error of a runtime here into a warning if it succeeded on the emulated board."""
    if one.runtime != emulated.runtime or one.code not in _ANSWERED:
        return one
    what = f"{one.what}; under QEMU, with the board's own kernels, it answers as it should"
    return replace(one, level="warning", what=what, do="Nothing: the emulated board's answer counts")
