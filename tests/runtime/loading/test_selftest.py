"""Golden answers are replayed: a machine that computes something else is found out before it answers anybody."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import tiny

from edgekit.packaging.assemble import assemble
from edgekit.packaging.writer import write_bundle
from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import available, load_engine
from edgekit_runtime.loading.replay import replay
from edgekit_runtime.loading.selftest import first_open
from edgekit_runtime.system.children import python_code
from edgekit_runtime.system.errors import MemoryExceeded, SelfTestError
from edgekit_runtime.system.sealed import SEAL_BYTES

ENGINE = min(available())
RECIPE = tiny.RECIPE_OF_ENGINE[ENGINE]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return read_bundle(tiny.bundle_for(ENGINE, tmp_path_factory.mktemp("selftest")))


@pytest.fixture
def engine(bundle):
    entry = bundle.artifact()
    with load_engine(entry.format, bundle.blob(entry.blob), engine=ENGINE) as loaded:
        yield loaded


class Elsewhere:
    """The same engine, as if it were another: another version, or other numbers."""

    def __init__(self, engine, *, version=None, change=lambda array: array):
        self._engine, self._change = engine, change
        self.info = replace(engine.info, version=version or engine.info.version)

    def run(self, inputs):
        return [self._change(array) for array in self._engine.run(inputs)]


def test_the_machine_that_made_them_gives_them_back_exactly(bundle, engine):
    result = replay(bundle, bundle.artifact(), engine)
    assert (result.examples, result.same_engine, result.worst_steps) == (2, True, 0.0)


def test_a_few_steps_off_is_refused_on_the_same_version(bundle, engine):
    shifted = Elsewhere(
        engine, change=lambda a: np.where(a == a.max(), a - a.dtype.type(20 if a.dtype == np.int8 else 0.1), a)
    )
    with pytest.raises(SelfTestError, match=r"golden example 0 of 'probs' differs by .* steps"):
        replay(bundle, bundle.artifact(), shifted)


def test_the_same_answer_in_other_steps_is_accepted_from_another_version(bundle, engine):
    other = Elsewhere(
        engine,
        version="0.0.1",
        change=lambda a: np.where(a == a.max(), a - a.dtype.type(4 if a.dtype == np.int8 else 0.02), a),
    )
    result = replay(bundle, bundle.artifact(), other)
    assert not result.same_engine
    assert result.worst_steps > 2


def test_class_zero_for_every_input_is_found_out_on_any_version(bundle, engine):
    def class_zero(array):
        wrong = np.full_like(array, array.min())
        wrong[..., 0] = array.max()
        return wrong

    with pytest.raises(SelfTestError, match="another best class"):
        replay(bundle, bundle.artifact(), Elsewhere(engine, version="0.0.1", change=class_zero))


def test_open_bundle_refuses_a_forged_golden(tmp_path):
    content = tiny.content(RECIPE, ENGINE)
    draft, manifest = assemble(content)
    wrong = np.full(4, 3, manifest.artifacts[0].outputs[0].dtype)
    golden = manifest.golden[0]
    forged = replace(golden, answers=(replace(golden.answers[0], outputs={"probs": draft.add(wrong.tobytes())}),))
    write_bundle(tmp_path / "forged.ekb", draft, replace(manifest, golden=(forged,)))
    with pytest.raises(SelfTestError, match=r"forged\.ekb.*Do not use this bundle here"):
        open_bundle(tmp_path / "forged.ekb", engine=ENGINE)


def test_the_first_open_asks_a_child_and_the_second_believes_its_verdict(bundle, engine, tmp_path):
    asked = [first_open(bundle, bundle.artifact(), engine.info, folder=tmp_path) for _ in range(2)]
    assert asked == [True, False]
    (verdict,) = (tmp_path / "selftest").iterdir()
    assert json.loads(verdict.read_bytes()[SEAL_BYTES:])["examples"] == 2


def test_another_engine_version_is_asked_again(bundle, engine, tmp_path):
    first_open(bundle, bundle.artifact(), engine.info, folder=tmp_path)
    asked = []

    def run(command, **options):
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, '{"result": {}}', "")

    assert first_open(bundle, bundle.artifact(), replace(engine.info, version="9"), folder=tmp_path, run=run)
    assert asked


@pytest.mark.parametrize(
    ("returncode", "stdout", "why"),
    [
        (-4, "", "crashed with SIGILL"),
        (-11, "", "crashed with SIGSEGV"),
        (1, '{"error": {"code": "selftest", "what": "worst", "where": "", "do": ""}}', "failed: worst"),
    ],
)
def test_a_child_that_crashes_becomes_a_sentence(bundle, engine, tmp_path, returncode, stdout, why):
    def run(command, **options):
        return subprocess.CompletedProcess(command, returncode, stdout, "")

    with pytest.raises(SelfTestError, match=why):
        first_open(bundle, bundle.artifact(), engine.info, folder=tmp_path, run=run)
    assert not (tmp_path / "selftest").exists()


def test_a_child_without_memory_says_so_and_the_next_open_asks_again(bundle, engine, tmp_path):
    code = "from edgekit_runtime.bundle.jobs import serve\ndef work(*job):\n    raise MemoryError\nserve(work)"

    def run(command, **options):
        return subprocess.run(python_code(code), **options)

    with pytest.raises(
        MemoryExceeded, match=rf"{bundle.path}: this process has no memory left .*MemoryError.* Raise its limit"
    ):
        first_open(bundle, bundle.artifact(), engine.info, folder=tmp_path, source="/dev/fd/5", run=run)
    assert not (tmp_path / "selftest").exists()


@pytest.mark.parametrize("code", [-15, -9, -2, -1])
def test_a_child_that_others_end_says_nothing_of_the_bundle(bundle, engine, tmp_path, code):
    def run(command, **options):
        return subprocess.CompletedProcess(command, code, "ran\n", "")

    assert first_open(bundle, bundle.artifact(), engine.info, folder=tmp_path, run=run) is False
    assert not (tmp_path / "selftest").exists()


def test_a_replay_may_end_after_an_example(bundle, engine):
    assert replay(bundle, bundle.artifact(), engine, lambda: True).examples == 1
    assert replay(bundle, bundle.artifact(), engine, lambda: False).examples == 2


def test_a_child_that_never_came_to_the_test_is_no_verdict(bundle, engine, tmp_path):
    def run(command, **options):
        return subprocess.CompletedProcess(command, 1, "", "ModuleNotFoundError: No module named 'edgekit_runtime'")

    assert first_open(bundle, bundle.artifact(), engine.info, folder=tmp_path, run=run) is False
    assert not (tmp_path / "selftest").exists()


def test_the_child_imports_nothing_from_the_folder_it_stands_in(bundle, engine, tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit('hijacked')")
    monkeypatch.chdir(tmp_path)
    assert first_open(bundle, bundle.artifact(), engine.info, folder=tmp_path / "state") is True


def test_a_folder_that_cannot_be_written_only_means_asking_again(bundle, engine, tmp_path):
    (tmp_path / "selftest").write_text("a file where a folder should be")
    assert first_open(bundle, bundle.artifact(), engine.info, folder=tmp_path) is True


def test_no_child_is_started_when_the_environment_says_so(bundle, engine, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")
    assert first_open(bundle, bundle.artifact(), engine.info, folder=tmp_path) is False
