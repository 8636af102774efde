"""A finalizer that asks the model while the interpreter ends gets its answer, and the process ends."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import tiny

from edgekit_runtime.engines.registry import available
from edgekit_runtime.system.errors import MemoryExceeded
from edgekit_runtime.system.threads import begin, is_exiting

ENGINE = min(available())
LONG = 60

PROGRAM = """
import atexit, sys
import numpy as np
from edgekit_runtime import CacheOptions, ModelLimits, open_bundle

class Last:
    def __init__(self, model, ask, name):
        self.model, self.ask, self.name = model, ask, name
        self.picture = np.full((8, 8, 3), (230, 20, 20), np.uint8)

    def __del__(self, out=sys.stdout, ending=sys.is_finalizing):
        answer = self.ask(self.model, self.picture)
        out.write(f"{self.name} {ending()} {int(answer.outputs['probs'].argmax())}\\n")
        out.flush()

def predict(model, picture):
    return model.predict(picture)

def submit(model, picture):
    return model.submit(picture).result(30)

path, disk, when = sys.argv[1:]
off = {"cache": False}
ways = {"inline": off, "worker": off | {"limits": ModelLimits(hang_s=20.0)}, "disk": {"cache": CacheOptions(disk=disk)}}
models = {name: open_bundle(path, **options) for name, options in ways.items()}
for model in models.values() if when == "later" else ():
    submit(model, np.zeros((8, 8, 3), np.uint8))
if when == "exit":
    for name, model in models.items():
        atexit.register(Last(model, submit, name).__del__)
lasts = [Last(model, ask, f"{name} {ask.__name__}") for name, model in models.items() for ask in (predict, submit)]
"""


@pytest.mark.parametrize("when", ["first", "later", "exit"])
def test_asked_by_a_finalizer_while_the_interpreter_ends_it_answers(tmp_path, when):
    path = tiny.bundle(tmp_path, tiny.RECIPE_OF_ENGINE[ENGINE], engine=ENGINE)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), str(tmp_path / "answers.db"), when],
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    said = set(ran.stdout.splitlines())
    names = [f"{name} {way}" for name in ("inline", "worker", "disk") for way in ("predict", "submit")]
    assert all(line.endswith(" 0") for line in said), said
    assert ran.returncode == 0
    if when == "exit":  # nothing is gone yet
        assert {f"{name} False 0" for name in ("inline", "worker", "disk")} <= said, ran.stderr
    if (
        "'NoneType' object has no attribute" not in ran.stderr
    ):  # Python may clear the engine's own object first: then it raises
        assert {f"{name} True 0" for name in names} <= said, ran.stderr


def test_while_the_interpreter_runs_threads_do():
    ran = threading.Event()
    assert not is_exiting()
    assert begin(threading.Thread(target=ran.set))
    assert ran.wait(LONG)


def test_a_system_without_threads_says_so(monkeypatch):
    def refused(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(MemoryExceeded, match="start new thread"):
        begin(threading.Thread())
