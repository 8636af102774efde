"""Install, load and replay a bundle on an emulated board (QEMU, not hardware).

    found = replay("camera.ekb", load("raspberry-pi-4"))
    found.ok, found.runtime, found.worst, found.said

Rules:
- the board's own pip installs the wheelhouse that would be shipped, by hashes; 32-bit boards take from Debian what has
  no wheel, and `packages` has the source of each;
- the verdict is the runtime's own self-test, in process. One start of Python does all tasks: a missing answer belongs
  to the task during which the program ended;
- a bundle that fails is a result; an error means that the replay was not possible.

It proves resolution, wheel tags, glibc, imports, operators and numbers; nothing about time, heat or memory.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit.boards.emulated_board import CPUS, EmulationError, NotEmulatedError, QemuCpu, cpu_for, image_for
from edgekit.boards.qemu import SITE, EmulatedBoard, ProgramResult, emulator, emulator_version
from edgekit.boards.userland import Userland, cache_root, make_folder, userland
from edgekit.shipping.plan import NoWheelError, choose_engine
from edgekit.shipping.wheelhouse import Wheelhouse, collect
from edgekit_profiles import Profile
from edgekit_runtime.bundle.reader import Bundle, read_bundle
from edgekit_runtime.bundle.secrets import Secret
from edgekit_runtime.engines.registry import ENGINES

_PIP_TIMEOUT_S = 400.0


class EmulatedInstallError(EmulationError):
    """The board's pip refuses the wheelhouse; `what` has its message."""

    code = "emulation-install"


def install_emulated(land: Userland, house: Wheelhouse, *, cache_dir: Path | None = None) -> Path:
    """The cached folder of what emulated pip installed. Raises EmulatedInstallError."""
    root = cache_root(cache_dir)
    requirements = house.requirements.read_bytes()
    key = hashlib.sha256(b"\0".join([land.root.name.encode(), requirements])).hexdigest()[:16]

    def unpack(draft: Path) -> None:
        with zipfile.ZipFile(house.folder / house.pip.file) as archive:
            archive.extractall(draft)

    # The shipped pip, unpacked, so that its bytecode is compiled only once under the emulator
    pip = make_folder(root, f"pip/{house.pip.sha256[:16]}", unpack)
    name = f"installs/{land.image.suite}-{land.image.architecture}-{key}"
    return make_folder(root, name, lambda draft: _install(land, house, pip, draft))


def _install(land: Userland, house: Wheelhouse, pip: Path, draft: Path) -> None:
    cpu = next(cpu for cpu in CPUS.values() if cpu.machine == land.image.machine)
    # As a package's install.sh does: the list is whole, and Debian's packages give pip too little metadata
    # (python3-xxhash is version 0.0.0 to it). Bytecode is made on import.
    arguments = ["install", "--no-index", "--no-deps", "--find-links", str(house.folder.absolute()), "--require-hashes"]
    arguments += ["--no-compile", "--no-cache-dir", "--disable-pip-version-check", "--quiet"]
    with EmulatedBoard(land, cpu, site=draft) as machine:
        done = machine.python(
            ["-m", "pip", *arguments, "-r", house.requirements.absolute()],
            env={"PYTHONPATH": str(pip), "VIRTUAL_ENV": str(machine.root / SITE), "PIP_ROOT_USER_ACTION": "ignore"},
            timeout_s=_PIP_TIMEOUT_S,
        )
    if done.code != 0:
        errors = [line for line in done.err.splitlines() if line.startswith("ERROR:")]
        words = "; ".join(line.removeprefix("ERROR: ") for line in errors) or done.tail or done.ended
        raise EmulatedInstallError(
            f"pip on the emulated board failed: {words}",
            where=f"{land.image}, under QEMU",
            do="Collect the wheels for this profile again",
        )


@dataclass(frozen=True)
class Package:
    """One installed distribution. source: `wheel` or `debian`."""

    name: str
    version: str
    source: str


@dataclass(frozen=True)
class EmulatedSystem:
    """What the board reports: `3.11.2`, `aarch64`, `glibc 2.36`. broken: failed imports."""

    python: str
    machine: str
    libc: str
    packages: tuple[Package, ...]
    broken: dict[str, str]


@dataclass(frozen=True)
class GuestReport:
    """answers: one for each task that was done, in order."""

    system: EmulatedSystem
    answers: tuple[dict[str, Any], ...]
    finished: ProgramResult


def ask(
    machine: EmulatedBoard,
    tasks: Sequence[Mapping[str, Any]],
    *,
    timeout_s: float = 300.0,
    options: Sequence[str] = (),
    secret: Secret | None = None,
    kinds: Path | None = None,
) -> GuestReport:
    """options: QEMU's own. kinds: a file with further kinds of tasks.

    Raises EmulationError if not even Python started.
    """
    given, results = machine.root / "tmp/tasks.json", machine.root / "tmp/results.jsonl"
    given.write_text(json.dumps(list(tasks)), encoding="utf-8")
    script = Path(__file__).with_name("guest.py")
    key = json.dumps(secret.to_pipe() if secret is not None else None)
    more = [] if kinds is None else [kinds]
    finished = machine.python(["-P", script, given, results, *more], timeout_s=timeout_s, options=options, said=key)
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    if not lines:
        raise EmulationError(
            f"the emulated board's Python {finished.ended or 'answered nothing'}: {finished.tail}",
            where=f"{machine.land.image}, {machine.cpu.name}",
            do=f"Remove {machine.land.root} and run it again",
        )
    first, *answers = map(json.loads, lines)
    packages = tuple(Package(**one) for one in first.pop("packages"))
    return GuestReport(EmulatedSystem(**first, packages=packages), tuple(answers), finished)


_TIMEOUT_S = 500.0


@dataclass(frozen=True)
class GoldenVerdict:
    """One output of one golden example of one artifact.

    fits: the runtime's own verdict
    steps: the difference in quantization steps, or in 1e-4 of a float output's largest golden value
    same_engine: whether this engine version made the golden answer, on x86
    """

    recipe: str
    golden: int
    output: str
    fits: bool
    steps: float
    cosine: float
    same_best: bool
    same_engine: bool
    made_by: str


@dataclass(frozen=True)
class EmulatedReplay:
    """runtime: engine and version that ran, or empty
    cpu: what QEMU emulated
    worst: the largest difference in steps
    opened: whether `open_bundle` succeeded there
    failure: a sentence, empty if ok
    said: the last lines of the board's stderr, on a failure
    """

    ok: bool
    profile: str
    runtime: str
    cpu: str
    system: str
    emulator: str
    worst: float = 0.0
    goldens: tuple[GoldenVerdict, ...] = ()
    packages: tuple[Package, ...] = ()
    opened: bool = False
    failure: str = ""
    said: str = ""

    @property
    def label(self) -> str:
        return f"under QEMU {self.emulator} ({self.cpu}), {self.system}; not on hardware"


def replay(
    bundle_path: str | Path,
    profile: Profile,
    *,
    cpu: str | None = None,
    cache_dir: Path | None = None,
    engine: str | None = None,
    house: Wheelhouse | None = None,
    secret: Secret | None = None,
) -> EmulatedReplay:
    """Install and replay a bundle on an emulated board.

    Raises EmulationError, ShippingError, BundleError.

    cpu: one of `CPUS`, None for the profile's
    cache_dir: of user lands, None for the state folder
    engine: None for the one that installs on the board
    house: None to collect it
    """
    image, core = image_for(profile), cpu_for(profile, cpu)
    bundle = read_bundle(bundle_path)
    emulator(image)  # before anything is fetched
    try:
        engine = engine or choose_engine(bundle.manifest, profile)
    except NoWheelError as error:
        raise NotEmulatedError(error.what, where=profile.name, do=error.do) from error
    with tempfile.TemporaryDirectory(prefix="edgekit-wheels-") as folder:
        house = house or collect(profile, engine, Path(folder))
        land = userland(image, house.debian, cache_dir=cache_dir)
        try:
            site = install_emulated(land, house, cache_dir=cache_dir)
        except EmulatedInstallError as error:
            return EmulatedReplay(
                ok=False,
                profile=profile.name,
                runtime="",
                cpu=core.name,
                system=str(image),
                emulator=emulator_version(image),
                failure=error.what,
            )
    tasks = tasks_for(bundle, engine)
    with EmulatedBoard(land, core, site=site, cores=profile.core.count, model=profile.title) as machine:
        return judge_replay(profile, core, tasks, ask(machine, tasks, timeout_s=_TIMEOUT_S, secret=secret))


def tasks_for(bundle: Bundle, engine: str) -> list[dict[str, Any]]:
    formats = ENGINES[engine].formats
    entries = [entry for entry in bundle.manifest.artifacts if entry.role != "batch" and entry.format in formats]
    path = str(Path(bundle.path).absolute())
    ordered = sorted(entries, key=lambda entry: entry.role != "primary")
    return [{"kind": "replay", "bundle": path, "recipe": entry.recipe, "engine": engine} for entry in ordered]


def judge_replay(profile: Profile, cpu: QemuCpu, tasks: list[dict[str, Any]], report: GuestReport) -> EmulatedReplay:
    """The verdict on the board's answers to these tasks."""
    verdicts = []
    names = ("golden", "output", "fits", "steps", "cosine", "same_best", "same_engine", "made_by")
    for task, answer in zip(tasks, report.answers, strict=False):
        for output in answer["outputs"]:
            verdicts.append(GoldenVerdict(task["recipe"], **{name: output[name] for name in names}))
    goldens = tuple(verdicts)
    failure = _first_failure(tasks, report, goldens)
    first = report.answers[0] if report.answers else {}
    return EmulatedReplay(
        ok=not failure,
        profile=profile.name,
        runtime=f"{first['engine']} {first['version']}" if "engine" in first else "",
        cpu=cpu.name,
        system=f"{image_for(profile)}, {report.system.libc}",
        emulator=emulator_version(image_for(profile)),
        worst=max((one.steps for one in goldens), default=0.0),
        goldens=goldens,
        packages=report.system.packages,
        opened=bool(first.get("opened")),
        failure=failure,
        said=report.finished.tail if failure else "",
    )


def _first_failure(tasks: list[dict[str, Any]], report: GuestReport, goldens: tuple[GoldenVerdict, ...]) -> str:
    for name, why in report.system.broken.items():
        return f"{name} is installed and cannot be imported: {why}"
    for task, answer in zip(tasks, report.answers, strict=False):
        if answer["failure"]:
            return f"{task['recipe']}: {answer['failure']}"
    if len(report.answers) < len(tasks) or report.finished.ended:
        during = tasks[min(len(report.answers), len(tasks) - 1)]["recipe"]
        last = report.finished.err.strip().splitlines()[-1:] if report.finished.code else []
        return (
            f"{during}: Python {report.finished.ended or 'stopped'} on the emulated "
            f"board{''.join(f' ({line})' for line in last)}"
        )
    wrong = [one for one in goldens if not one.fits]
    if wrong:
        first = wrong[0]
        return (
            f"{first.recipe}: golden example {first.golden} of '{first.output}' differs by {first.steps:.0f} steps "
            f"(cosine {first.cosine:.4f}) from what {first.made_by} answered on x86"
        )
    return "" if goldens else "no golden example was replayed"
