"""What somebody put into a root: links, second names, folders for files.

Never followed, never believed, always named.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import tiny
from installed import current, events, names

from edgekit_runtime import EdgekitError, open_bundle
from edgekit_runtime.install import status
from edgekit_runtime.install.durable import foreign_file_error

SECRET = b"not edgekit's\n"


def object_of(made, version):
    import hashlib

    return f"{hashlib.sha256(made(version).read_bytes()).hexdigest()}.ekb"


def link_at_object(root: Path, made, victim: Path):
    (root / "objects" / object_of(made, "2")).symlink_to(victim)


def hard_link_at_object(root: Path, made, victim: Path):
    (root / "objects" / object_of(made, "2")).hardlink_to(victim)


def folder_at_object(root: Path, made, victim: Path):
    (root / "objects" / object_of(made, "2")).mkdir()


def link_at_generation(root: Path, made, victim: Path):
    (root / "generations" / "2").symlink_to(victim.parent)


def folder_at_generation(root: Path, made, victim: Path):
    (root / "generations" / "2").mkdir()


def link_at_draft_of_generation(root: Path, made, victim: Path):
    (root / "generations" / "2.new").symlink_to(victim.parent)


def link_at_current_new(root: Path, made, victim: Path):
    (root / "current.new").symlink_to(victim)


def folder_at_current_new(root: Path, made, victim: Path):
    (root / "current.new").mkdir()


def file_at_current_new(root: Path, made, victim: Path):
    (root / "current.new").hardlink_to(victim)


def link_at_journal_new(root: Path, made, victim: Path):
    (root / "journal.json.new").symlink_to(victim)


def hard_link_at_journal_new(root: Path, made, victim: Path):
    (root / "journal.json.new").hardlink_to(victim)


def link_at_part(root: Path, made, victim: Path):
    from edgekit_runtime.install import Root

    Root(root).part(str(made("2"))).symlink_to(victim)


def hard_link_at_part(root: Path, made, victim: Path):
    from edgekit_runtime.install import Root

    Root(root).part(str(made("2"))).hardlink_to(victim)


def link_at_lock(root: Path, made, victim: Path):
    (root / "lock").unlink()
    (root / "lock").symlink_to(victim)


def link_at_objects(root: Path, made, victim: Path):
    (root / "incoming").rmdir()
    (root / "incoming").symlink_to(victim.parent)


def follow(do: str) -> None:
    """Run the command that an error says to run, if it does."""
    for command in re.findall(r"Run: (.+?); ", do):
        subprocess.run(command, shell=True, check=True)


PLANTED = [
    link_at_object,
    hard_link_at_object,
    folder_at_object,
    link_at_generation,
    folder_at_generation,
    link_at_draft_of_generation,
    link_at_current_new,
    folder_at_current_new,
    file_at_current_new,
    link_at_journal_new,
    hard_link_at_journal_new,
    link_at_part,
    hard_link_at_part,
    link_at_lock,
    link_at_objects,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_nothing_planted_is_followed(plant, made, put, root, tmp_path):
    put(made("1"))
    (tmp_path / "outside").mkdir()
    victim = tmp_path / "outside" / "passwd"
    victim.write_bytes(SECRET)
    before = len(events(root))
    plant(root, made, victim)
    with pytest.raises(EdgekitError) as caught:
        put(made("2"))
    assert caught.value.code == "planted", caught.value
    assert str(root) in caught.value.where, "it says what to remove"
    if plant in (link_at_objects, link_at_draft_of_generation):
        assert caught.value.what == "a symbolic link in place of edgekit's own folder"
    assert victim.read_bytes() == SECRET
    assert names(victim.parent) == ["passwd"]
    assert current(root) == "generations/1"
    with open_bundle(root) as model:
        assert model.predict(tiny.RED).top(1)[0].label == "red"
    if plant is not link_at_lock:  # without a lock nothing is written, not even an event
        assert [one["code"] for one in events(root)[before:]] == ["planted"]
    follow(caught.value.do)
    assert put(made("2")).generation.version == "2", "what the message says to do is enough"
    assert victim.read_bytes() == SECRET


LEADS_ELSEWHERE = ["/etc", "../outside", "generations/../../outside", "generations/0", "generations/-1"]


@pytest.mark.parametrize("target", LEADS_ELSEWHERE)
def test_a_current_that_leads_elsewhere_is_never_followed(target, made, put, root):
    put(made("1"))
    (root / "current").unlink()
    (root / "current").symlink_to(target)
    for command in (open_bundle, status):
        with pytest.raises(EdgekitError) as caught:
            command(root)
        assert caught.value.code == "planted"
        assert caught.value.do.endswith(
            f"; then: edgekit status --root {root}, which points it at the active generation"
        )
    follow(caught.value.do)
    status(root)
    assert current(root) == "generations/1", "what the message says to do is enough"


KEPT = ["journal.json", "slot.json", "generations/1/generation.json"]


@pytest.mark.parametrize("name", KEPT)
def test_a_file_of_ours_with_a_second_name_becomes_one_of_its_own(name, made, put, root, tmp_path):
    """A backup by hard links did that, and nothing may be lost with it."""
    put(made("1")), put(made("2"))
    (tmp_path / "backup").hardlink_to(root / name.replace("/1/", "/2/"))
    with pytest.raises(EdgekitError, match=r"a second name \(a hard link\)") as caught:
        status(root)
    assert "nothing is lost" in caught.value.do
    follow(caught.value.do)
    assert (status(root).current.number, status(root).previous.number) == (2, 1)


WORDS = {
    "journal.json": "where a rollback leads is forgotten",
    "slot.json": "--trust and --profile",
    "generations/1/generation.json": "install its bundle again",
    "incoming": "starts over",
    "incoming/1f00.part": "starts over",
    "objects/1f00.ekb": "install it again",
    "generations/2": "nothing is lost",
    "current.new": "nothing is lost",
    "lock": "nothing is lost",
    "objects": "Put the folder itself there again",
}


@pytest.mark.parametrize("name", WORDS)
def test_what_goes_with_it_is_said(name, tmp_path):
    path = tmp_path / "my root" / name
    path.parent.mkdir(parents=True)
    path.symlink_to("/etc/passwd")
    error = foreign_file_error("a link", path)
    assert WORDS[name] in error.do
    assert name == "objects" or f"rm -f '{path}'" in error.do
    path.unlink()
    path.mkdir()
    (path / "mine").write_text("kept")
    follow(foreign_file_error("a folder", path).do)
    assert (path.with_name(path.name + ".aside") / "mine").read_text() == "kept"


def test_that_an_unsigned_bundle_is_accepted_is_believed_from_the_roots_owner_alone(made, put, root):
    """S11: whoever writes that record decides what answers."""
    put(made("1"))
    record = root / "generations" / "1" / "generation.json"
    for open_to_all, mode in ((record, 0o666), (record.parent, 0o777), (root, 0o777)):
        before = open_to_all.stat().st_mode
        open_to_all.chmod(mode)
        with pytest.raises(EdgekitError, match="lets a bundle in that no trusted key has signed") as caught:
            open_bundle(root)
        assert (caught.value.code, caught.value.do) == ("planted", f"Run: chmod go-w {open_to_all}")
        open_to_all.chmod(before)
    with open_bundle(root) as model:
        assert model.predict(tiny.RED).top(1)[0].label == "red"


def test_a_link_in_place_of_an_object_is_not_opened(made, put, root, tmp_path):
    """Swapped after it was verified: the name leads to another, perfectly good, bundle."""
    put(made("1"))
    stored = next((root / "objects").iterdir())
    stored.unlink()
    stored.symlink_to(made("1"))
    with pytest.raises(EdgekitError) as caught:
        open_bundle(root)
    assert caught.value.code == "planted"


def test_a_file_that_is_swapped_after_it_was_opened_changes_nothing(made, put, root, monkeypatch):
    """What is verified, loaded and held is one descriptor."""
    from edgekit_runtime.install import open_active as opening

    put(made("1"))
    stored = next((root / "objects").iterdir())
    real = opening.read_locked

    def swapped(lease, *arguments):
        other = stored.with_suffix(".other")
        other.write_bytes(made("2").read_bytes())
        other.replace(stored)
        return real(lease, *arguments)

    monkeypatch.setattr(opening, "read_locked", swapped)
    with open_bundle(root) as model:
        assert model.describe()["version"] == "1"


def test_what_others_put_beside_objects_is_left_alone(made, put, root):
    from edgekit_runtime.install import collect

    put(made("1"))
    (root / "objects" / "README").write_text("mine")
    (root / "generations" / "notes").mkdir()
    collect(root)
    assert (root / "objects" / "README").read_text() == "mine"
    assert os.path.isdir(root / "generations" / "notes")  # noqa: PTH112
