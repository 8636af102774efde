"""Golden examples on the exact runtime version that a board will have.

    replayed, findings = replay_natively(bundle, "tflite-int8", Runtime("tflite-runtime", "2.14.0"))
    python = environment("tflite-runtime", "2.14.0")         # a virtual environment with it and NumPy, and nothing else

Rules:
- the board's own self-test runs, with its tolerances: values agree within steps with the engine and version that made
  the golden answers, best class and direction across runtimes;
- tflite-runtime uses its reference kernels, which give the same bits on every processor. If they cannot run a file, its
  other kernels do, only class and direction are compared, and a warning says so;
- a child that crashes is a finding;
- an environment is made once and kept in the state folder; uv makes it, or pip without uv.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from edgekit.boards.catalogue import CheckFinding, finding
from edgekit.boards.emulated_board import UserlandError
from edgekit.boards.userland import make_folder
from edgekit_converters.formats.needs import Runtime
from edgekit_profiles import Profile
from edgekit_runtime.bundle.jobs import ask, bundle_job
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.bundle.secrets import Secret
from edgekit_runtime.engines.registry import ENGINES, available
from edgekit_runtime.system.board import state_dir
from edgekit_runtime.system.children import run as run_child
from edgekit_runtime.system.errors import EdgekitError, EngineError, MemoryExceeded, shorten

_PIP_TIMEOUT_S = 300.0
_MOST = 400
_FULL = re.compile(r"no space left|disk quota|os error (?:28|122)\b|errno (?:28|122)\b", re.IGNORECASE)
Run = Callable[..., "subprocess.CompletedProcess[str]"]


class NoEnvironmentError(EdgekitError):
    """No environment with that engine: no wheel for this machine, or no network."""

    code = "replay-unavailable"


def environment(engine: str, version: str, folder: Path | None = None, run: Run = subprocess.run) -> Path:
    """The Python that has that version, this one if it does. Raises NoEnvironmentError."""
    if available().get(engine) == version:
        return Path(sys.executable)
    root = (folder or state_dir()) / "runtimes"
    name = f"{engine}-{version}-cp{sys.version_info[0]}{sys.version_info[1]}"
    if not (python := _python(root / name)).exists():  # the Python that it was made with may be gone
        shutil.rmtree(root / name, ignore_errors=True)
    try:  # its scripts name the draft that it was made in, and none of them is run: `python` alone is
        make_folder(root, name, lambda draft: _install(draft, engine, version, run))
    except UserlandError as error:
        raise NoEnvironmentError(error.what, where=error.where, do=error.do) from error
    return python


def _install(place: Path, engine: str, version: str, run: Run) -> None:
    wanted = [f"{ENGINES[engine].distribution}=={version}", ENGINES[engine].numpy_for(version)]
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is not None:
        commands = [
            [uv, "venv", "--quiet", "--python", sys.executable, "--allow-existing", str(place)],
            [uv, "pip", "install", "--quiet", "--only-binary", ":all:", "--python", str(_python(place)), *wanted],
        ]
    else:
        commands = [
            [sys.executable, "-m", "venv", str(place)],
            [str(_python(place)), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *wanted],
        ]
    for command in commands:
        what = f"{ENGINES[engine].distribution} {version}"
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        try:
            done = run(list(command), capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False, env=clean)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoEnvironmentError(f"{what} could not be installed in an environment of its own: {error}") from error
        if done.returncode != 0:
            # An installer's words without warnings; of many, the beginning and the end, which has the cause
            lines = [line.strip(" ×╰─▶│") for line in done.stderr.splitlines() if line.strip()]
            words = " ".join([line for line in lines if not line.upper().startswith("WARNING")] or lines)
            reason = words or f"exit code {done.returncode}"
            if len(words) > _MOST:
                reason = f"{words[: _MOST // 2]} ... {words[-_MOST // 2 :]}"
            full = _FULL.search(done.stderr)
            do = "Free space on that disk, or set EDGEKIT_STATE_DIR to another directory" if full else ""
            raise NoEnvironmentError(f"{what} could not be installed in an environment of its own: {reason}", do=do)


def _python(place: Path) -> Path:
    return place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


_TIMEOUT_S = 240.0
Where = Literal["native", "emulated"]


@dataclass(frozen=True)
class ReplayResult:
    """runtime: engine and version
    worst: the largest difference in steps of the output; 1e-4 of the largest value if it is float; None without answers
    cosine: the least of all outputs
    artifact: its recipe
    cpu: that was emulated
    quantized: whether its outputs are
    kernels: of the engine
    """

    runtime: str
    where: Where
    worst: float | None
    cosine: float | None = None
    examples: int = 0
    artifact: str = ""
    cpu: str = ""
    quantized: bool = True
    kernels: str = "default"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def replay_natively(
    bundle: Path, recipe: str, runtime: Runtime, secret: Secret | None = None
) -> tuple[ReplayResult | None, list[CheckFinding]]:
    """Replay here with that version of the runtime; a warning without an environment for it."""
    python = _python_with(runtime, recipe)
    if isinstance(python, CheckFinding):
        return None, [python]
    job = {**bundle_job(read_bundle(bundle, secret=secret)), "recipe": recipe, "engine": runtime.engine, "exact": True}
    name, portable, failed = str(runtime), ENGINES[runtime.engine].portable, ("replay-crashed", "replay-refused")
    replayed, findings = _run_replay(python, {**job, "kernels": portable}, recipe, name)
    if portable != "default" and findings and findings[0].code in failed:
        replayed, others = _run_replay(python, {**job, "kernels": "default", "exact": False}, recipe, name)
        if not others or others[0].code not in failed:
            what = (
                f"the reference kernels of {name} cannot run it ({findings[0].what}); its other kernels do, and were "
                "held to class and likeness alone, since theirs here are not those of an ARM board"
            )
            others = [*others, finding("replay-kernels", what, artifact=recipe, runtime=name)]
        findings = others
    elif portable != "default":
        replayed = replace(replayed, kernels=portable)
    return replace(replayed, quantized=_is_quantized(bundle, recipe)), findings


def load_natively(model: Path, format: str, recipe: str, runtime: Runtime) -> list[CheckFinding]:  # noqa: A002 - the manifest's word
    """Load a bare model file in that version of the runtime; findings if it refuses or crashes."""
    python = _python_with(runtime, recipe)
    if isinstance(python, CheckFinding):
        return [python]
    job = {"model": str(model.absolute()), "format": format, "engine": runtime.engine}
    return _run_replay(python, job, recipe, str(runtime))[1]


def _python_with(runtime: Runtime, recipe: str) -> Path | CheckFinding:
    """The Python of an environment with that version, or a finding that says why not."""
    try:
        return environment(runtime.engine, runtime.version)
    except NoEnvironmentError as error:
        do = error.do or (
            f"Run it where the index can be reached and has {ENGINES[runtime.engine].distribution} {runtime.version} "
            "for this machine and this Python (3.11 has all that boards use); or name a version that there is with "
            "--runtime, or pass --emulate"
        )
        return finding("replay-unavailable", error.what, do=do, artifact=recipe, runtime=str(runtime))


def _is_quantized(bundle: Path, recipe: str) -> bool:
    """Whether the artifact answers in steps."""
    entries = [entry for entry in read_bundle(bundle).manifest.artifacts if entry.recipe == recipe]
    return all(output.quantization is not None for entry in entries for output in entry.outputs)


def _run_replay(python: Path, job: dict[str, Any], recipe: str, name: str) -> tuple[ReplayResult, list[CheckFinding]]:
    with _runtime_alone() as folder:

        def run(*arguments: Any, env: Mapping[str, str], **others: Any) -> subprocess.CompletedProcess[str]:
            kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "LD_LIBRARY_PATH")
            own = {name: os.environ[name] for name in (*kept, "EDGEKIT_DELEGATE") if name in os.environ}
            own |= {"PYTHONPATH": str(folder), "EDGEKIT_SELFTEST": "in-process", "PYTHONDONTWRITEBYTECODE": "1"}
            return run_child(*arguments, env=own, **others)

        child = str(Path(__file__).with_name("guest.py"))
        came = ask([str(python), "-P", child], job, silence_s=_TIMEOUT_S, run=run)
    facts: dict[str, Any] = {key: value for fact in came.facts for key, value in fact.items()}
    found = ReplayResult(name, "native", facts.get("steps"), facts.get("cosine"), artifact=recipe)
    if came.silent:
        code, what = "replay-late", f"{name} did not answer the golden examples within {_TIMEOUT_S:.0f} s"
    elif signal := came.crashed or came.interrupted:
        code, what = "replay-crashed", f"{name} crashed with {signal} on the golden examples"
    elif came.error is not None:
        differs = "loaded" in facts and not isinstance(came.error, (EngineError, MemoryExceeded))
        code, what = "replay-refused", " ".join(came.error.what.split())
        if differs:
            code, what = "replay-differs", f"on {name} {what}"
    elif came.result is None:
        last = came.last_words or "nothing was said"
        code, what = "replay-failed", f"{name} could not be asked: {shorten(last, 300)}"
    else:
        if result := came.result:
            found = ReplayResult(
                name, "native", result["worst_steps"], result["worst_cosine"], result["examples"], recipe
            )
        return found, []
    return found, [finding(code, what, artifact=recipe, runtime=name)]


def replay_emulated(
    bundle: Path, profile: Profile, secret: Secret | None = None
) -> tuple[list[ReplayResult], list[CheckFinding]]:
    """Replay each artifact of the board's engine on an emulated processor, primary first."""
    try:
        from edgekit.boards.emulated_replay import replay
    except ImportError as error:
        what = f"this installation cannot emulate boards: {error}"
        return [], [finding("emulator-missing", what)]
    try:
        found = replay(bundle, profile, secret=secret)
    except EdgekitError as error:
        return [], [finding(error.code, error.what, do=error.do, level="error")]
    failures = []
    if not found.ok:
        said = " ".join(found.said.split())
        failure = found.failure.replace(f"{bundle.absolute()}: ", "")
        what = f"{failure} ({found.label})" + (f"; it said: {said[-300:]}" if said else "")
        code = "replay-refused" if found.packages else "emulation-install"
        if any(not golden.fits for golden in found.goldens):
            code = "replay-differs"
        elif "Python" in found.failure and "emulated board" in found.failure:
            code = "replay-crashed"
        failures.append(finding(code, what, runtime=found.runtime))
    recipes = list(dict.fromkeys(golden.recipe for golden in found.goldens))
    if not recipes:
        return [ReplayResult(found.runtime, "emulated", None, cpu=found.cpu)], failures
    replays = []
    for recipe in recipes:  # apart, because a step of one is not a step of another
        own = [golden for golden in found.goldens if golden.recipe == recipe]
        worst, cosine = max(golden.steps for golden in own), min(golden.cosine for golden in own)
        count, steps = len({golden.golden for golden in own}), _is_quantized(bundle, recipe)
        replays.append(
            ReplayResult(found.runtime, "emulated", worst, cosine, count, recipe, cpu=found.cpu, quantized=steps)
        )
    return replays, failures


@contextmanager
def _runtime_alone() -> Iterator[Path]:
    """A folder with `edgekit_runtime` alone, for another Python than this one."""
    import edgekit_runtime

    with tempfile.TemporaryDirectory(prefix="edgekit-replay-") as folder:
        assert edgekit_runtime.__file__ is not None
        own = Path(edgekit_runtime.__file__).parent
        try:
            (Path(folder) / own.name).symlink_to(own, target_is_directory=True)
        except OSError:  # Windows, without the right to make links
            shutil.copytree(own, Path(folder) / own.name)
        yield Path(folder)
