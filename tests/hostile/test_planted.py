"""Groups 14, 15 and 24: what others put into a root, swap in it, or do in it at the same time."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hostile import forge
from hostile.board import HERE, asked, events, refuses, told, what_answers
from hostile.make_corpus import CORPUS

from edgekit_runtime import open_bundle
from edgekit_runtime.install import InstallOptions, TrialOptions, collect, install, status
from edgekit_runtime.install import durable as disk
from edgekit_runtime.system.children import run as run_child
from edgekit_runtime.system.errors import EdgekitError, SignatureError

NEWER = CORPUS / "good" / "newer.ekb"
OBJECT = f"objects/{forge.sha256(NEWER.read_bytes())}.ekb"
PICTURE = np.frombuffer(forge.RED, np.uint8).reshape(8, 8, 3)


def linked(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def hard_linked(path: Path, victim: Path) -> None:
    path.hardlink_to(victim)


def a_folder(path: Path, _victim: Path) -> None:
    path.mkdir()
    (path / "mine").write_text("not yours")


def a_pipe(path: Path, _victim: Path) -> None:
    os.mkfifo(path)


def refusal(root: Path) -> EdgekitError | None:
    """What an install of the newer bundle comes back with."""
    try:
        install(NEWER, root, asked(wait_s=0.2))
    except EdgekitError as error:
        told(error)
        return error
    return None


PLACES = [OBJECT, "generations/2", "generations/2.new", "current.new", "journal.json.new", "events.jsonl", "lock"]


@pytest.mark.parametrize("plant", [linked, hard_linked, a_folder, a_pipe])
@pytest.mark.parametrize("place", PLACES)
def test_group_14_what_was_planted_is_never_written_through(place, plant, root, tmp_path):
    """S20: Refused, or put away: the file that it leads to keeps its bytes, and what answers is one of the two bundles,
    whole.
    """
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    spot = root / place
    if spot.exists():
        spot.unlink()
    plant(spot, victim)
    before = what_answers(root)
    refused = refusal(root)
    if refused is not None:
        assert refused.code in ("planted", "storage", "install-busy", "install-root")
        assert what_answers(root) == before
    else:
        assert (root / "current" / "bundle.ekb").read_bytes() == NEWER.read_bytes()
        assert not (root / OBJECT).is_symlink()
        assert (root / OBJECT).stat().st_nlink == 1
    assert victim.read_bytes() == b"precious"
    assert victim.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("plant", [linked, hard_linked])
def test_group_14_a_link_for_an_object_is_refused_with_one_event(plant, root, tmp_path):
    """S20"""
    twin = tmp_path / "twin.ekb"
    twin.write_bytes(NEWER.read_bytes())  # the right bytes, and still somebody else's to change
    plant(root / OBJECT, twin)
    refuses(root, NEWER, asked(), "planted")
    twin.write_bytes(b"changed afterwards")
    with open_bundle(root) as model:
        assert model.predict(PICTURE).top(1)[0].label == "red"


def test_group_14_a_part_that_is_a_link_is_not_written_through(root, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    from edgekit_runtime.install import Root

    Root.open(root).part(str(NEWER)).symlink_to(victim)
    refused = refusal(root)
    assert refused is None or refused.code == "planted"
    assert victim.read_bytes() == b"precious"


def test_group_14_current_that_leads_out_of_the_root_opens_nothing(root, tmp_path):
    """S20"""
    shutil.copytree(root / "generations" / "1", tmp_path / "1", symlinks=True)
    (root / "current").unlink()
    (root / "current").symlink_to(tmp_path / "1")
    try:
        with open_bundle(root) as model:
            assert model.describe()["install"]["generation"] == 1
            assert (root / "current").readlink() == Path("generations/1"), "it was neither refused nor put right"
    except EdgekitError as error:
        told(error)


def plant_generation(root: Path, folder: Path, source: str, how: InstallOptions) -> None:
    """Somebody installs it in a root of their own, and copies what came of it."""
    theirs = folder / "theirs"
    install(CORPUS / source, theirs, how)
    shutil.copytree(theirs / "generations" / "1", root / "generations" / "2", symlinks=True)
    record = json.loads((root / "generations" / "2" / "generation.json").read_text())
    (root / "generations" / "2" / "generation.json").write_text(json.dumps({**record, "number": 2}))
    shutil.copy(theirs / "objects" / f"{record['object']}.ekb", root / "objects")
    journal = json.loads((root / "journal.json").read_text())
    (root / "journal.json").write_text(json.dumps({**journal, "current": 2, "previous": 1, "next": 3}))
    (root / "current").unlink()
    (root / "current").symlink_to("generations/2")


def an_unsigned_one(root: Path, folder: Path) -> None:
    plant_generation(root, folder, "good/unsigned.ekb", asked(trust=(), allow_unsigned=True))


def one_of_a_key_of_theirs(root: Path, folder: Path) -> None:
    evil = folder / "evil.pub.pem"
    evil.write_bytes(forge.public_pem("mallory"))
    plant_generation(root, folder, "bad/02-unknown-key.ekb", asked(trust=(evil,)))
    (root / "slot.json").write_text(json.dumps({"format": 1, "trust": [str(evil)]}))


@pytest.mark.parametrize("plant", [an_unsigned_one, one_of_a_key_of_theirs])
def test_group_14_what_was_planted_with_its_records_does_not_pass_who_names_whom_to_trust(plant, root, tmp_path):
    """S1: The root's own files say what answers and whom it trusts.

    Who names a trust from outside does not ask them.
    """
    from edgekit.packaging import verifying

    plant(root, tmp_path)
    with pytest.raises(SignatureError), open_bundle(root, trust=CORPUS / "root.json"):
        pass
    report = verifying.Verification(root, verifying.VerifyOptions(trust=(CORPUS / "root.json",)))
    assert [check.ok for check in report][-1] is False
    assert isinstance(report.error, SignatureError)
    assert not report.trusted


def test_group_14_a_planted_waiver_is_none_for_verify(root, tmp_path):
    """S9"""
    from edgekit.packaging import verifying

    an_unsigned_one(root, tmp_path)
    report = verifying.Verification(root, verifying.VerifyOptions())
    assert [check.ok for check in report][-1] is False
    assert report.error is not None
    assert report.error.code == "unsigned"
    told = verifying.Verification(root, verifying.VerifyOptions(allow_unsigned=True))
    assert all(check.ok is not False for check in told)
    assert (told.error, told.trusted) == (None, False)


def test_group_14_a_key_that_the_root_itself_names_is_told_as_such(root, tmp_path):
    """S1"""
    from edgekit.packaging import verifying

    one_of_a_key_of_theirs(root, tmp_path)
    said = [one.text for one in verifying.Verification(root, verifying.VerifyOptions()) if one.name == "signature"]
    assert "trusted by the install root (slot.json), not by this machine" in said[0]
    with open_bundle(root) as model:
        assert said[0].startswith(model.describe()["installed"]["vouched"])


def swapping(with_: Path):
    """Starts the child after another file was put where the verified one lies."""

    def run(command, **options):
        import json

        path = Path(json.loads(options["input"])["path"])
        path.chmod(0o644)
        path.unlink()
        shutil.copy(with_, path)
        return run_child(command, **options)

    return run


@pytest.mark.parametrize("other", ["good/signed.ekb", "good/unsigned.ekb", "bad/22-golden-answer-of-another-model.ekb"])
def test_group_15_a_file_that_is_swapped_after_it_was_verified_is_not_loaded(other, root, child):
    """S12"""
    how = asked(proving=TrialOptions(answers=20, run=swapping(CORPUS / other)))
    error = refuses(root, NEWER, how, "[a-z-]+")
    assert error.code in ("selftest", "install", "bundle-integrity", "planted", "bundle-format")


@pytest.mark.parametrize("other", ["good/unsigned.ekb", "bad/01-bit-in-blob-0.ekb", "bad/02-unknown-key.ekb"])
def test_group_15_what_is_swapped_in_the_store_later_does_not_open(other, root):
    """S12"""
    path = next((root / "objects").iterdir())
    path.chmod(0o644)
    path.write_bytes((CORPUS / other).read_bytes())
    with pytest.raises(EdgekitError) as caught, open_bundle(root):
        pass
    assert str(caught.value).isprintable()


def test_group_15_a_model_that_is_open_answers_on_with_what_it_verified(root):
    with open_bundle(root) as model:
        path = next((root / "objects").iterdir())
        path.unlink()
        path.write_bytes(b"another file under the same name")
        assert model.predict(PICTURE).top(1)[0].label == "red"


def test_group_24_a_second_install_waits_or_says_that_it_is_busy(root, child):
    inside, go_on = threading.Event(), threading.Event()

    def run(command, **options):
        inside.set()
        assert go_on.wait(60)
        return run_child(command, **options)

    def first():
        install(NEWER, root, asked(proving=TrialOptions(answers=20, run=run)))

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(60)
    try:
        with pytest.raises(EdgekitError) as caught:
            install(NEWER, root, asked(wait_s=0.1))
        assert caught.value.code == "install-busy"
        assert status(root).current.number == 1
    finally:
        go_on.set()
        thread.join()
    assert status(root).current.number == 2


_INSTALL = """
import sys
from hostile.board import asked
from edgekit_runtime.install import install
done = install(sys.argv[1], sys.argv[2], asked())
print(done.generation.number, done.already)
"""


def test_group_24_two_processes_that_install_at_once_are_serialised(root):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _INSTALL, str(NEWER), str(root)]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = sorted(process.communicate(timeout=120)[0].strip() for process in both)
    assert told == ["2 False", "2 True"]
    assert [event["event"] for event in events(root)] == ["committed", "committed"]
    assert HERE.profiles == ("x86-64",)


def test_group_24_what_is_in_use_is_not_collected(root, tmp_path):
    from hostile.cases import signed

    with open_bundle(root) as model:
        for seq in (6, 7, 8):
            path = tmp_path / f"{seq}.ekb"
            path.write_bytes(signed(version=str(seq), rollout_seq=seq))
            install(path, root, asked())
        collect(root)
        assert model.predict(PICTURE).top(1)[0].label == "red"
        assert (root / "generations" / "1").exists() or (root / "objects").exists()
    collect(root)
    assert status(root).current.number == 4


FOLDERS = ["generations", "objects", "incoming"]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


class Swapper:
    """Opens folders as `disk.open_folder` does; after the open of that number a link to `victim` takes the folder's
    place.
    """

    def __init__(self, folder: Path, victim: Path, moment: int) -> None:
        self.folder, self.victim, self.moment = folder, victim, moment
        self.count, self.open = 0, disk.open_folder

    def __call__(self, folder: Path) -> int:
        descriptor = self.open(folder)
        self.count += self.folder in (folder, *folder.parents)
        if self.count == self.moment and not self.folder.is_symlink():
            self.folder.rename(self.folder.with_name("aside"))
            self.folder.symlink_to(self.victim)
        return descriptor


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_swapped_for_a_link_half_way_leads_nothing_elsewhere(name, root, tmp_path, monkeypatch):
    """S20: at each moment at which the installer has opened one of its folders, another takes its place."""
    monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")
    victim, kept = tmp_path / "victim", tmp_path / "kept"
    shutil.copytree(root, kept, symlinks=True)
    for moment in range(1, 200):
        shutil.rmtree(root)
        shutil.copytree(kept, root, symlinks=True)
        shutil.rmtree(victim, ignore_errors=True)
        shutil.copytree(root / name, victim)
        for made in ("1/mine", "2/mine", "2.new/mine", "7.new/mine"):
            (victim / made).parent.mkdir(exist_ok=True)
            (victim / made).write_text("not yours")
        before, swapper = tree(victim), Swapper(root / name, victim, moment)
        with monkeypatch.context() as patched:
            patched.setattr(disk, "open_folder", swapper)
            refusal(root)
            with contextlib.suppress(EdgekitError):
                collect(root, unfinished=True)
        assert tree(victim) == before, f"moment {moment}"
        if swapper.count < moment:
            break
    assert moment > 5
