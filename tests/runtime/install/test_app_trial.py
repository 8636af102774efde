"""`--trial app`: the application's own model is watched, and the root follows the verdict."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
import tiny
from installed import UNSIGNED, current, events, names
from refusing import has_code

from edgekit.packaging.bundle_options import BundleTerms
from edgekit_runtime import EdgekitError, open_bundle
from edgekit_runtime.bundle.manifest import Promise
from edgekit_runtime.install import activate, collect, rollback, status
from edgekit_runtime.install.open_active import TrialWatch
from edgekit_runtime.install.trial_verdict import TrialCounts, TrialVerdict, judge
from edgekit_runtime.install.trial_verdict import TrialTerms as Asked
from edgekit_runtime.system.errors import InstallError, StorageError

APP = replace(UNSIGNED, trial="app")
SHORT = Asked(answers=20, seconds=5.0)


@pytest.fixture
def clock():
    now = [0.0]

    def read():
        return now[0]

    read.now = now
    return read


@pytest.fixture
def on_trial(made, put, root, monkeypatch):
    """Generation 1 committed, generation 2 on trial; nobody looks at it but the test."""
    monkeypatch.setattr(TrialWatch, "start", lambda self: None)
    put(made("1"))
    done = put(made("2", promise=Promise(p99_ms=10_000.0)), APP)
    assert done.state == "trial"
    return done


def watch(model, clock, terms=SHORT):
    """Beside the one that does not look."""
    return TrialWatch(model, model._journey.opened.held, terms=terms, clock=clock)


def ask(model, times):
    for number in range(times):
        picture = tiny.RED.copy()
        picture[0, 0, 0] = number % 256
        picture[0, 0, 1] = number // 256
        model.predict(picture)


def test_it_answers_on_trial_and_the_one_before_is_kept(on_trial, root):
    assert current(root) == "generations/2"
    found = status(root)
    assert (found.state, found.current.number, found.previous.number) == ("trial", 2, 1)
    with open_bundle(root) as model:
        assert model.describe()["version"] == "2"
        assert model.describe()["installed"]["state"] == "trial"
    assert names(root / "generations") == ["1", "2"]
    assert collect(root).removed == []


def test_enough_good_answers_commit_it(on_trial, root, clock):
    with open_bundle(root) as model:
        watching = watch(model, clock)
        ask(model, 20)
        assert watching.look().says == "wait", "20 answers, and not yet five seconds"
        clock.now[0] = 6.0
        assert watching.look().says == "keep"
        assert model.describe()["installed"]["state"] == "committed"
    assert (status(root).state, status(root).current.number, status(root).previous.number) == ("committed", 2, 1)
    assert events(root)[-1]["event"] == "committed"


def test_answers_from_the_cache_prove_nothing(on_trial, root, clock):
    with open_bundle(root) as model:
        watching = watch(model, clock)
        for _ in range(300):
            model.predict(tiny.RED)
        clock.now[0] = 6.0
        assert watching.look().says == "wait"


def test_a_promise_that_is_broken_leads_back_without_a_lost_request(on_trial, root, clock):
    """S19"""
    with open_bundle(root, cache=False) as model:
        watching = watch(model, clock, replace(SHORT, p99_ms=1e-6))
        over, answers, failed = threading.Event(), [], []

        def asking():
            while not over.is_set():
                try:
                    answers.append(model.predict(tiny.RED).top(1)[0].label)
                except EdgekitError as error:
                    failed.append(error)

        threads = [threading.Thread(target=asking) for _ in range(4)]
        for thread in threads:
            thread.start()
        ask(model, 25)
        clock.now[0] = 6.0
        verdict = watching.look()
        ask(model, 25)
        over.set()
        for thread in threads:
            thread.join()
        assert verdict.says == "back"
        assert "took longer than" in verdict.why
        assert failed == []
        assert set(answers) == {"red"}
        assert model.describe()["version"] == "1"
        assert model.describe()["installed"]["state"] == "committed"
    assert events(root)[-1]["event"] == "rolled-back"
    found = status(root)
    assert (found.current.number, found.failure.code) == (1, "trial-failed")
    collect(root)
    assert names(root / "generations") == ["1"]


def test_a_dead_engine_leads_back_at_once(on_trial, root, clock, monkeypatch):
    from edgekit_runtime.serving.model import Model
    from edgekit_runtime.system.watchdog import Health

    with open_bundle(root) as model:
        watching = watch(model, clock)
        monkeypatch.setattr(Model, "health", lambda self: Health("dead", "it hung"))
        assert watching.look().says == "back"
        monkeypatch.undo()
        assert model.describe()["version"] == "1"


def test_what_was_seen_counts_for_the_next_start(on_trial, root):
    for _ in range(3):
        with open_bundle(root, cache=False) as model:
            ask(model, 5)
    assert status(root).seen.answers == 15
    assert status(root).failed_starts == 0


def test_an_owner_who_decides_is_followed_by_the_running_application(on_trial, root, clock):
    with open_bundle(root) as model:
        watching = watch(model, clock)
        assert rollback(root).version == "1"
        assert watching.look().says == "back"
        assert model.describe()["version"] == "1"
    assert current(root) == "generations/1"


def test_an_owner_commits_it_without_waiting(on_trial, root, clock):
    with open_bundle(root) as model:
        watching = watch(model, clock)
        assert activate(root).version == "2"
        assert watching.look().says == "keep"
        assert model.describe()["installed"]["state"] == "committed"


def test_nothing_else_is_installed_meanwhile(on_trial, made, put, root):
    with pytest.raises(InstallError, check=has_code("trial-pending")):
        put(made("3"))
    assert current(root) == "generations/2"
    assert events(root)[-1]["code"] == "trial-pending"


def test_one_that_does_not_open_makes_way_at_once(on_trial, root):
    stored = root / "objects" / f"{status(root).current.object}.ekb"
    stored.chmod(0o644)
    stored.write_bytes(b"damaged")
    with open_bundle(root) as model:
        assert model.describe()["version"] == "1"
    assert status(root).failure.code == "bundle-format"
    assert current(root) == "generations/1"


def refuses_to_read(monkeypatch, error):
    """The board, the first time that a bundle is read."""
    from edgekit_runtime.install import open_active as opening

    real, refused = opening.read_locked, []

    def read(*arguments):
        if not refused:
            refused.append(True)
            raise error
        return real(*arguments)

    monkeypatch.setattr(opening, "read_locked", read)


NOT_ITS_FAULT = {
    "a disk that does not give its bytes": StorageError("the disk refused: Input/output error"),
    "no more open files": OSError(errno.EMFILE, "Too many open files"),
    "a library that cannot be opened": ImportError("libfoo.so: cannot open shared object file: Too many open files"),
}


@pytest.mark.parametrize("case", NOT_ITS_FAULT)
def test_what_the_board_failed_in_is_one_failed_start_and_no_verdict(case, on_trial, root, monkeypatch):
    refuses_to_read(monkeypatch, NOT_ITS_FAULT[case])
    with open_bundle(root) as model:
        assert model.describe()["version"] == "1", "the committed one answers meanwhile"
        assert model.describe()["installed"]["state"] == "committed"
    assert (status(root).state, status(root).failed_starts) == ("trial", 1)
    with open_bundle(root) as model:
        assert model.describe()["version"] == "2"


def test_a_board_that_fails_again_and_again_leads_back_with_the_third_start(on_trial, root, monkeypatch):
    for _ in range(3):
        refuses_to_read(monkeypatch, StorageError("the disk refused: Input/output error"))
        with open_bundle(root) as model:
            assert model.describe()["version"] == "1"
        monkeypatch.undo()
    found = status(root)
    assert (found.state, found.current.number, found.failure.code) == ("committed", 1, "trial-failed")


def test_without_a_committed_one_what_the_board_failed_in_is_told(made, put, root, monkeypatch):
    put(made("1"), APP)
    refuses_to_read(monkeypatch, StorageError("the disk refused: Input/output error"))
    with pytest.raises(StorageError):
        open_bundle(root)
    assert status(root).state == "trial"


def test_whatever_file_cannot_be_opened_the_trial_goes_on(on_trial, root):
    """Too many open files, at each place where an opening opens one."""
    with open_bundle(root):  # what is imported and measured once
        pass
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    outcomes = []
    for more in range(100):
        free = os.open(os.devnull, os.O_RDONLY)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + more, hard))
        try:
            with open_bundle(root) as model:
                outcomes.append(model.describe()["version"])
        except (EdgekitError, OSError):
            outcomes.append("none")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert status(root).state == "trial", (more, outcomes)
        for start in (root / "generations" / "2" / "starts").iterdir():
            start.unlink()
        if outcomes[-1] == "2":
            break
    assert outcomes[0] == "none"
    assert outcomes[-1] == "2", outcomes


def test_the_first_one_of_all_that_fails_leaves_nothing_that_answers(made, put, root):
    put(made("1"), APP)
    assert rollback(root) is None
    assert current(root) is None
    assert status(root).state == "empty"
    with pytest.raises(EdgekitError, match="no bundle is installed here yet"):
        open_bundle(root)
    assert put(made("1")).state == "committed"


def killed_start(root):
    """An application that opens the root and is killed. Returns the version that it got."""
    program = (
        "import sys, time\nfrom edgekit_runtime import open_bundle\n"
        f"model = open_bundle({str(root)!r})\nprint(model.describe()['version'], flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        version = child.stdout.readline().strip()
        child.send_signal(signal.SIGKILL)
    return version


def test_three_killed_starts_lead_back(made, put, root):
    put(made("1"))
    put(made("2"), APP)
    assert [killed_start(root) for _ in range(2)] == ["2", "2"]
    assert status(root).failed_starts == 2
    assert killed_start(root) == "2"
    with open_bundle(root) as model:
        assert model.describe()["version"] == "1"
    found = status(root)
    assert (found.current.number, found.failure.code) == (1, "trial-failed")
    assert "3 starts of the application failed" in found.failure.what


def test_starts_that_go_on_are_no_failed_ones(on_trial, root):
    models = [open_bundle(root) for _ in range(5)]
    assert status(root).failed_starts == 0
    assert {model.describe()["version"] for model in models} == {"2"}
    for model in models:
        model.close()
    assert (status(root).state, status(root).failed_starts) == ("trial", 0)


def test_where_a_start_cannot_be_written_down_the_committed_one_answers(on_trial, root, monkeypatch):
    from edgekit_runtime.install import open_active as opening

    def refuse(root, number):
        raise StorageError("the file system is read-only", code="read-only")

    monkeypatch.setattr(opening, "begin_start", refuse)
    with open_bundle(root) as model:
        assert model.describe()["version"] == "1"
        assert model.describe()["installed"]["state"] == "committed"


def test_the_model_looks_by_itself(made, put, root, monkeypatch):
    from edgekit_runtime.install import open_active

    monkeypatch.setattr(open_active, "_LOOK_S", 0.01)
    put(made("1"))
    put(made("2", BundleTerms(rollout_seq=2)), APP)
    looked = threading.Event()
    real = TrialWatch.look

    def look(self):
        self._terms = Asked(answers=5, seconds=0.0)
        verdict = real(self)
        if verdict.says == "keep":
            looked.set()
        return verdict

    monkeypatch.setattr(TrialWatch, "look", look)
    with open_bundle(root) as model:
        ask(model, 5)
        assert looked.wait(10)
    assert status(root).state == "committed"
    assert status(root).rollout_seq == 2


class TestJudgement:
    TERMS = Asked(answers=200, seconds=60.0, p99_ms=10.0, peak_mb=100.0)
    CASES = {
        "nothing yet": (TrialCounts(), "wait"),
        "enough answers, too soon": (TrialCounts(answers=500, seconds=59.0), "wait"),
        "enough time, too few": (TrialCounts(answers=199, seconds=600.0), "wait"),
        "good": (TrialCounts(answers=200, late=2, seconds=60.0), "keep"),
        "three of 200 late": (TrialCounts(answers=200, late=3, seconds=60.0), "back"),
        "three of 400 late": (TrialCounts(answers=400, late=3, seconds=60.0), "keep"),
        "two failed": (TrialCounts(answers=198, failures=2, seconds=60.0), "keep"),
        "three failed": (TrialCounts(answers=198, failures=3, seconds=60.0), "back"),
        "all failed": (TrialCounts(failures=200, seconds=60.0), "back"),
        "dead at once": (TrialCounts(answers=1, seconds=0.1, dead="it hung"), "back"),
        "too large": (TrialCounts(answers=200, seconds=60.0, peak_mb=101.0), "back"),
        "large enough": (TrialCounts(answers=200, seconds=60.0, peak_mb=99.0), "keep"),
    }

    @pytest.mark.parametrize("case", CASES)
    def test_of(self, case):
        seen, says = self.CASES[case]
        assert judge(seen, self.TERMS).says == says

    def test_spells_add_up(self):
        whole = TrialCounts(answers=120, late=1, seconds=40.0).plus(
            TrialCounts(answers=80, late=1, seconds=20.0, p99_ms=3.0)
        )
        assert judge(whole, self.TERMS) == TrialVerdict("keep", "200 answers, p99 3 ms within the 10 promised")
