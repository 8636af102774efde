"""Several at once on one root: installs take turns, what is open is kept, and an application that dies three times goes
back.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from install_faults.scenes import SCENES, Kit, tree

APPLICATION = """
import sys
import numpy
from edgekit_runtime import open_bundle
with open_bundle(sys.argv[1]) as model:
    print(model.describe()["version"], flush=True)
    for line in sys.stdin:
        print(model.predict(numpy.full((8, 8, 3), (230, 20, 20), numpy.uint8)).top(1)[0].label, flush=True)
"""


class Application:
    """A process that has the root open, and answers when it is asked to."""

    def __init__(self, root: Path) -> None:
        env = {**os.environ, "EDGEKIT_SELFTEST": "in-process"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", APPLICATION, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        self.version = self._line()

    def __enter__(self) -> Application:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=30)

    def answer(self) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._line()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(30)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture
def root(kit: Kit, tmp_path: Path) -> Path:
    return kit.lay(SCENES["install on trial"], tmp_path / "board")


def test_two_installs_take_turns(kit: Kit, root: Path):
    """ActivePrompt at once by two processes: one waits for the other, and the newer one answers in the end."""
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", *kit.install("3", root)[1:], "--json"]
    env = {**os.environ, "EDGEKIT_SELFTEST": "in-process"}
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) for _ in range(2)
    ]
    said = [one.communicate(timeout=120) for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    told = [json.loads(out) for out, _ in said]
    assert sorted(one["already"] for one in told) == [False, True]
    assert {one["generation"]["number"] for one in told} == {2}
    events = [json.loads(line)["event"] for line in (root / "events.jsonl").read_text().splitlines()]
    assert events == ["committed", "committed"]


def test_what_an_application_has_open_is_never_collected(kit: Kit, root: Path):
    with Application(root) as application:
        assert application.version == "1"
        install = [kit.install("2", root), kit.install("3", root), ["cli", "status", "--root", str(root)]]
        ended = kit.forks.run(install)
        assert [note["code"] for note in ended.notes] == [0, 0, 0]
        assert "in use     generations/1" in ended.note["out"]
        assert application.answer() == "red"
        assert sum(name.startswith("objects/") for name in tree(root)) == 3
    assert "freed      2 removed" in kit.forks.run([["cli", "status", "--root", str(root)]]).note["out"]
    assert sum(name.startswith("objects/") for name in tree(root)) == 2


def test_a_rollback_while_it_runs_changes_nothing_until_it_opens_again(kit: Kit, root: Path):
    kit.forks.run([kit.install("2", root)])
    with Application(root) as application:
        assert application.version == "2"
        assert kit.forks.run([["cli", "rollback", "--root", str(root)]]).note["code"] == 0
        assert application.answer() == "red"
    with Application(root) as application:
        assert application.version == "1"


def test_an_application_that_is_killed_three_times_on_trial_has_the_one_before(kit: Kit, root: Path):
    kit.forks.run([kit.install("2", root, "--trial", "app")])
    versions = []
    for _ in range(3):
        application = Application(root)
        versions.append(application.version)
        application.kill()
    with Application(root) as application:
        versions.append(application.version)
    assert versions == ["2", "2", "2", "1"]
    status = json.loads(kit.forks.run([["cli", "status", "--root", str(root), "--json"]]).note["out"])
    assert (status["state"], status["failure"]["code"]) == ("committed", "trial-failed")
