"""The key of an encrypted bundle on its way to child processes: over their standard input, and seen nowhere else."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from time import sleep

import pytest
import tiny

from edgekit.bench.measure import cold_start
from edgekit_runtime import ModelLimits, open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.bundle.secrets import Secret, load_secret
from edgekit_runtime.engines.registry import EngineSetup, available, load_with
from edgekit_runtime.loading.candidates import TuningOptions
from edgekit_runtime.loading.selftest import first_open
from edgekit_runtime.loading.tuning import Tuner, tune
from edgekit_runtime.system import children
from edgekit_runtime.system.errors import SecretError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

KEY = bytes(range(100, 132))
NAME = "CAMERA_KEY"
SPELLINGS = (KEY, KEY.hex().encode(), KEY.hex().upper().encode(), base64.b64encode(KEY))
MODEL = tiny.model_bytes("tflite-int8")
ENGINE = min(set(available()) & {"litert", "tflite-runtime"}, default="")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.bundle(tmp_path_factory.mktemp("encrypted"), secret=Secret([KEY]))


@pytest.fixture
def opened(path: Path, monkeypatch: pytest.MonkeyPatch):
    """Opened with a key from a variable of this process."""
    monkeypatch.setattr(children, "_withheld", set())
    monkeypatch.setenv(NAME, KEY.hex())
    return read_bundle(path, secret=f"env:{NAME}")


def shown(pid: int) -> bytes:
    """What anybody who may look sees of a process: its arguments and its variables."""
    proc = Path(f"/proc/{pid}")
    return (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()


class Watched:
    """Runs a child as the runtime does, and looks at it before it is told anything: it waits for its standard input."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.given: list[str] = []

    def __call__(self, command: list[str], *, timeout: float, **options):
        given = options.pop("input")
        options.pop("capture_output")
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen(command, **pipes, **options) as child:
            while b"PYTHONPATH=" not in (seen := shown(child.pid)) and child.poll() is None:
                sleep(0.001)  # the system has not put them there yet
            self.seen.append(seen)
            self.given.append(given)
            out, err = child.communicate(given, timeout=timeout)
        return subprocess.CompletedProcess(command, child.returncode, out, err)

    def check(self) -> None:
        assert self.seen
        for seen, given in zip(self.seen, self.given, strict=True):
            assert not any(spelling in seen for spelling in SPELLINGS)
            assert b"PYTHONPATH=" in seen  # it was really looked at
            assert KEY.hex() in given


def files_below(*folders: Path):
    for folder in folders:
        yield from (file for file in folder.rglob("*") if file.is_file())


def check_nothing_is_left(*folders: Path) -> None:
    """No file has the key, or a piece of the model."""
    pieces = [MODEL[at : at + 24] for at in range(200, len(MODEL) - 24, 100)]
    found = list(files_below(*folders))
    for file in found:
        data = file.read_bytes()
        assert not any(spelling in data for spelling in SPELLINGS), file
        assert not any(piece in data for piece in pieces), file


def test_the_self_tests_child_gets_it_and_the_verdict_holds_nothing_of_it(opened, tmp_path: Path):
    entry, watched = opened.artifact(), Watched()
    with load_with(ENGINE, entry.format, opened.blob(entry.blob), EngineSetup(threads=1)) as engine:
        assert first_open(opened, entry, engine.info, folder=tmp_path, run=watched)
        assert not first_open(opened, entry, engine.info, folder=tmp_path, run=watched)
    watched.check()
    assert list(files_below(tmp_path))
    check_nothing_is_left(tmp_path)


def test_the_trials_child_gets_it_and_the_verdict_holds_nothing_of_it(opened, tmp_path: Path):
    watched = Watched()
    verdict = tune(opened, TuningOptions(engine=ENGINE, threads=1), Tuner(1.0, folder=tmp_path, run=watched))
    assert verdict.how == "measured", verdict
    watched.check()
    check_nothing_is_left(tmp_path)


def test_the_child_of_an_isolated_engine_gets_the_model_and_no_key(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(children, "_withheld", set())
    monkeypatch.setenv(NAME, KEY.hex())
    with open_bundle(path, secret=f"env:{NAME}", isolate=True, limits=ModelLimits(batching=False)) as model:
        assert model.predict(tiny.RED).top(1)[0].label == "red"
        every = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        mine = [int(entry) for entry in every if parent_of(entry) == os.getpid()]
        hosts = [pid for pid in mine if b"isolated_child" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert hosts
        for pid in hosts:
            assert not any(spelling in shown(pid) for spelling in SPELLINGS)
            (core,) = [line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if "core" in line]
            assert core.split()[4:6] == ["0", "0"], "a crash would leave the model on a disk"
        assert model.describe()["encrypted"]


def parent_of(pid: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def test_the_process_that_a_cold_start_is_timed_on_gets_it(opened, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    seen: list[bytes] = []
    real = subprocess.Popen

    class Looking(real):
        def __init__(self, *arguments, **options) -> None:
            super().__init__(*arguments, **options)
            seen.append(shown(self.pid))

    monkeypatch.setattr(subprocess, "Popen", Looking)
    cold = cold_start(opened.path, {"threads": 1, "engine": ENGINE}, opened.secret)
    assert cold.start_ms is not None, "it did not open"
    assert seen
    assert not any(spelling in one for one in seen for spelling in SPELLINGS)


def test_a_child_that_is_not_given_the_key_does_not_open_it(opened, tmp_path: Path):
    """The negative control: it is this key over this pipe that opens it there."""

    def forgetful(command: list[str], **options):
        job = json.loads(options.pop("input"))
        return children.run(command, input=json.dumps(job | {"key": None}), **options)

    entry = opened.artifact()
    with (
        load_with(ENGINE, entry.format, opened.blob(entry.blob), EngineSetup(threads=1)) as engine,
        pytest.raises(SecretError, match="the bundle is encrypted"),
    ):
        first_open(opened, entry, engine.info, folder=tmp_path, run=forgetful)


def test_opening_it_writes_nothing_of_it_anywhere(path: Path, tmp_path: Path):
    """S23: All of it, as an application does: tuning, self-test, a disk cache, in folders that are empty before."""
    work = tmp_path / "work"
    folders = {name: work / name.lower() for name in ("TMPDIR", "HOME", "XDG_CACHE_HOME", "EDGEKIT_STATE_DIR")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    code = (
        "import sys; from edgekit_runtime import CacheOptions, open_bundle; import numpy as np\ncache = "
        "CacheOptions(disk=sys.argv[3])\nwith open_bundle(sys.argv[1], secret=sys.argv[2], cache=cache, "
        "engine=sys.argv[4]) as model:\n    print(model.predict(np.full((8, 8, 3), (230, 20, 20), "
        "np.uint8)).top(1)[0].label, model.describe()['tuning'])\n"
    )
    arguments = [path, f"env:{NAME}", work / "answers.db", ENGINE]
    environ = {**os.environ, **{name: str(folder) for name, folder in folders.items()}, "EDGEKIT_TUNE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, check=False,
        cwd=work, env=environ | {NAME: KEY.hex()},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("red")
    assert list(files_below(work)), "verdicts and answers are kept"
    check_nothing_is_left(work)
    assert KEY.hex() not in done.stdout + done.stderr


def test_a_key_that_was_read_from_a_variable_is_not_in_the_next_childs(monkeypatch: pytest.MonkeyPatch):
    """S23"""
    monkeypatch.setattr(children, "_withheld", set())
    monkeypatch.setenv(NAME, KEY.hex())
    load_secret(f"env:{NAME}")
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(dict(os.environ))"], env=children.environment(), capture_output=True,
        text=True, check=True, timeout=60,
    )  # fmt: skip
    assert KEY.hex() not in done.stdout
