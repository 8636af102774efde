"""What becomes of an install in every state, on an error, on a spontaneous reboot, and on a hang: as chains of states.

Each case is done for real: the installer is killed where the table says `reboot`, a child or a server hangs where it
says `hang`, and a chain is what one run wrote to the journal, in that order. A root with version 1 is there before;
version 2 is what is installed.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from install_faults.scenes import SCENES, Kit
from install_faults.serving import Served
from install_faults.traces import calls_of
from installed import Maker
from tiny import content

from edgekit.packaging.assemble import assemble
from edgekit.packaging.bundle_options import BundleTerms
from edgekit.packaging.writer import SigningKey, write_bundle
from edgekit_runtime.bundle.manifest import Promise

HANGS = "import time; time.sleep(600)"
CRASHES = "import os; os.abort()"
WHOLE = ["fetching", "accepted", "fetched", "verified", "staged", "selftest", "trial", "committed"]
"""An install that nothing happens to. `accepted` is fetching, once the head is here and judged."""


def until(state: str) -> list[str]:
    return WHOLE[: WHOLE.index(state) + 1]


def after(state: str) -> list[str]:
    return WHOLE[WHOLE.index(state) + 1 :]


@dataclass
class Board:
    """A root with version 1, and what is done to it. chains: of each run of a command."""

    kit: Kit
    root: Path
    chains: list[list[str]] = field(default_factory=list)

    def put(
        self,
        source: str | Path = "",
        *,
        die: str | None = None,
        faults: list[str] | None = None,
        paths: Sequence[Path] = (),
        **how: Any,
    ) -> str:
        """Run the installer once. Returns the code of its error; empty where there is none."""
        step = ["put", str(source) or str(self.two), str(self.root), {"trust": str(self.kit.trust), **how}]
        env = {"EDGEKIT_SELFTEST": ""} if "child" in how else {}
        ended = self.kit.forks.run([step], faults, paths=paths, die=die, **env)
        self.chains.append(ended.chain)
        assert ended.code == (-signal.SIGKILL if die else 0), ended
        return "" if die else str(ended.note.get("error", ""))

    @property
    def two(self) -> Path:
        return self.kit.bundles["2"]

    def start(self, times: int = 1) -> None:
        """Of an application that is killed."""
        for _ in range(times):
            assert self.kit.forks.run([["start", str(self.root)]]).code == -signal.SIGKILL

    def watch(self) -> str:
        """A trial by an application in use, until it is judged."""
        ended = self.kit.forks.run([["watch", str(self.root), 5]])
        self.chains.append(ended.chain)
        return str(ended.note["verdict"])

    def answers(self) -> str:
        ended = self.kit.forks.run([["ask", str(self.root)]])
        if ended.chain:
            self.chains.append(ended.chain)
        return str(ended.note["version"])


@pytest.fixture
def board(kit: Kit, tmp_path: Path) -> Board:
    return Board(kit, kit.lay(SCENES["install on trial"], tmp_path / "board"))


# -- bundles that fail where their name says, signed as they should be --


def promises_too_much(kit: Kit) -> Path:
    return Maker(kit.folder)("2", BundleTerms(rollout_seq=2), Promise(p99_ms=1e-7), kit.key)


def of_a_stranger(kit: Kit) -> Path:
    return Maker(kit.folder)("2", BundleTerms(rollout_seq=2), key=SigningKey(Ed25519PrivateKey.generate()))


def gives_other_answers(kit: Kit) -> Path:
    draft, manifest = assemble(content(version="2", terms=BundleTerms(rollout_seq=2)))
    red, blue = manifest.golden
    swapped = (replace(red, answers=blue.answers), replace(blue, answers=red.answers))
    path = kit.folder / "other-answers.ekb"
    write_bundle(path, draft, replace(manifest, golden=swapped), [kit.key])
    return path


def damaged(kit: Kit) -> Path:
    path = kit.folder / "damaged.ekb"
    data = bytearray(kit.bundles["2"].read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    return path


# -- what is done, state by state; each returns the code of the last error --


def stranger(board: Board) -> str:
    return board.put(of_a_stranger(board.kit))


def cut_connection(board: Board) -> str:
    with Served(board.two) as served:
        served.stops_at = 4000
        code = board.put(served.url)
        assert served.asked == [0, 4000]
        served.stops_at = -1
        assert board.put(served.url) == ""
        assert served.asked == [0, 4000, 4000]
    return code


def silent_server(board: Board) -> str:
    with Served(board.two) as served:
        served.stops_at, served.hangs = 4000, True
        return board.put(served.url, silence_s=0.3)


def reboot_in(*states: str, **how: Any) -> Callable[[Board], str]:
    def done(board: Board) -> str:
        for state in states:
            board.put(die=state, **how)
        return board.put(**how)

    return done


def flipped_bit(board: Board) -> str:
    return board.put(damaged(board.kit))


def something_in_the_way(board: Board) -> str:
    folder = board.root / "generations" / "2"
    folder.mkdir()
    (folder / "theirs").write_text("not edgekit's")
    code = board.put()
    shutil.rmtree(folder, ignore_errors=True)
    return code


def journal_refused(board: Board) -> str:
    """The disk refuses the journal that would say `selftest`; then it is well again."""
    undisturbed = shutil.copytree(board.root, board.root.with_name("copy"), symlinks=True)
    step = ["put", str(board.two), str(undisturbed), {"trust": str(board.kit.trust)}]
    ended = board.kit.forks.run([step], faults=[])
    calls = calls_of(ended.trace, undisturbed)
    renames = [call for call in calls if call.told == "rename journal.json.new -> journal.json"]
    assert [len(renames), ended.chain] == [len(WHOLE), WHOLE]
    refused = renames[WHOLE.index("selftest")]
    fault = f"{refused.name}:error=EIO:when={refused.at}"
    code = board.put(
        faults=[fault], paths=[board.root / path for path in {path for call in calls for path in call.paths}]
    )
    assert board.answers() == "1"
    assert board.put() == ""
    return code


def wrong_answers(board: Board) -> str:
    return board.put(gives_other_answers(board.kit))


def too_slow(board: Board) -> str:
    return board.put(promises_too_much(board.kit))


def child(code: str, instead_of: str) -> Callable[[Board], str]:
    return lambda board: board.put(child=code, instead_of=instead_of, silence_s=30.0)


def app_finds_it_too_slow(board: Board) -> str:
    board.put(promises_too_much(board.kit), trial="app")
    assert board.answers() == "2"
    assert board.watch() == "back"
    return ""


def app_finds_it_good(board: Board) -> str:
    board.put(trial="app")
    assert board.watch() == "keep"
    return ""


def app_dies(times: int) -> Callable[[Board], str]:
    def done(board: Board) -> str:
        board.put(trial="app")
        board.start(times)
        return ""

    return done


def app_of_the_committed_dies(board: Board) -> str:
    board.put()
    board.start(5)
    return ""


@dataclass(frozen=True)
class Case:
    """state x what happens -> the journals written by each run, who answers then, and the error's code ("": none)."""

    state: str
    happens: str
    done: Callable[[Board], str]
    chains: list[list[str]]
    answers: str
    code: str = ""

    def __str__(self) -> str:
        return f"{self.state}, {self.happens}"


TRIED = until("trial")
THRICE = [until("selftest"), ["selftest 2"], ["selftest 3"], ["refused"]]
CASES = [
    Case("any", "nothing", lambda board: board.put(), [WHOLE], "2"),
    Case("fetching", "error: not to be trusted", stranger, [["fetching", "refused"]], "1", "unknown-key"),
    Case(
        "fetching", "error: cut connection", cut_connection, [[*until("accepted"), "kept"], [*after("accepted")]], "2",
        "download",
    ),
    Case("fetching", "reboot", reboot_in("fetching"), [until("fetching"), after("fetching")], "2"),
    Case("fetching", "reboot, the head is here", reboot_in("accepted"), [until("accepted"), after("accepted")], "2"),
    Case("fetching", "hang of the server", silent_server, [[*until("accepted"), "kept"]], "1", "download"),
    Case("fetched", "error: damaged", flipped_bit, [[*until("fetched"), "refused"]], "1", "bundle-integrity"),
    Case("fetched", "reboot", reboot_in("fetched"), [until("fetched"), after("fetched")], "2"),
    Case("verified", "error: in the way", something_in_the_way, [[*until("verified"), "refused"]], "1", "planted"),
    Case("verified", "reboot", reboot_in("verified"), [until("verified"), after("verified")], "2"),
    Case("staged", "error: journal", journal_refused, [until("staged"), after("staged")], "2", "storage"),
    Case("staged", "reboot", reboot_in("staged"), [until("staged"), after("staged")], "2"),
    Case("selftest", "error: other answers", wrong_answers, [[*until("selftest"), "refused"]], "1", "selftest"),
    Case("selftest", "error: crash", child(CRASHES, "selftest"), [[*until("selftest"), "refused"]], "1", "selftest"),
    Case("selftest", "hang", child(HANGS, "selftest"), [[*until("selftest"), "refused"]], "1", "selftest"),
    Case("selftest", "reboot", reboot_in("selftest"), [until("selftest"), ["selftest 2", *after("selftest")]], "2"),
    Case("selftest", "third reboot", reboot_in("selftest", "selftest 2", "selftest 3"), THRICE, "1", "trial-failed"),
    Case("trial here", "error: too slow", too_slow, [[*TRIED, "refused"]], "1", "trial-failed"),
    Case("trial here", "error: crash", child(CRASHES, "trial"), [[*TRIED, "refused"]], "1", "trial-failed"),
    Case("trial here", "hang", child(HANGS, "trial"), [[*TRIED, "refused"]], "1", "trial-failed"),
    Case("trial here", "reboot", reboot_in("trial"), [TRIED, ["trial 2", "committed"]], "2"),
    Case(
        "trial here", "third reboot", reboot_in("trial", "trial 2", "trial 3"),
        [TRIED, ["trial 2"], ["trial 3"], ["refused"]], "1", "trial-failed",
    ),
    Case("trial by the application", "good", app_finds_it_good, [TRIED, ["committed"]], "2"),
    Case("trial by the application", "error: too slow", app_finds_it_too_slow, [TRIED, ["refused"]], "1"),
    Case("trial by the application", "reboot", app_dies(1), [TRIED], "2"),
    Case("trial by the application", "second reboot", app_dies(2), [TRIED], "2"),
    Case("trial by the application", "third reboot", app_dies(3), [TRIED, ["refused"]], "1"),
    Case("committed", "reboots", app_of_the_committed_dies, [WHOLE], "2"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_in_state(case: Case, board: Board):
    code = case.done(board)
    answers = board.answers()
    assert (board.chains, answers, code) == (case.chains, case.answers, case.code)
    if case.code:
        nothing_is_in_the_way_of_the_next(board)


def nothing_is_in_the_way_of_the_next(board: Board) -> None:
    """Whatever failed: version 3 is installed, and nothing is left of what was not."""
    three = board.kit.install("3", board.root)
    trial = board.kit.forks.run([three, ["ask", str(board.root)], ["cli", "status", "--root", str(board.root)]])
    assert [trial.notes[0]["code"], trial.notes[1]["version"], trial.note["code"]] == [0, "3", 0]
    assert not [*(board.root / "incoming").iterdir(), *board.root.rglob("*.new")]
    assert len(list((board.root / "objects").iterdir())) == 2 == len(list((board.root / "generations").iterdir()))
