"""From a path to `current`, and back: what a board's owner does."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import rooted
import tiny
from installed import BOARD, QUICK, UNSIGNED, current, events, names, new_key
from refusing import has_code

from edgekit.packaging.bundle_options import BundleTerms
from edgekit.packaging.writer import SigningKey
from edgekit_runtime import EdgekitError, open_bundle
from edgekit_runtime.install import BoardIdentity, InstallOptions, activate, collect, install, rollback, status
from edgekit_runtime.install.root_objects import trust_files
from edgekit_runtime.system.errors import InstallError, IntegrityError, SignatureError


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def version(root: Path) -> str:
    with open_bundle(root) as model:
        assert model.predict(tiny.RED).top(1)[0].label == "red"
        return model.describe()["version"]


def test_what_is_installed_answers_and_lies_there_under_the_name_of_all_its_bytes(made, put, root):
    done = put(made("1"))
    assert (done.state, done.generation.number, done.already) == ("committed", 1, False)
    assert current(root) == "generations/1"
    stored = root / "objects" / f"{digest(made('1'))}.ekb"
    assert stored.read_bytes() == made("1").read_bytes()
    assert stored.stat().st_mode & 0o222 == 0
    assert (root / "current" / "bundle.ekb").resolve() == stored
    assert version(root) == "1"
    assert [one["event"] for one in events(root)] == ["committed"]


def test_the_folders_that_a_root_lies_in_are_the_owners_and_may_be_links(made, put, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "var").symlink_to("disk")
    for root in (tmp_path / "var" / "camera", tmp_path / "var" / "of" / "two" / "cameras"):
        assert install(made("1"), root, UNSIGNED).generation.number == 1
        assert version(root) == "1"


def test_a_root_may_be_reached_by_a_link(made, put, root, tmp_path):
    link, circle = tmp_path / "camera", tmp_path / "circle"
    link.symlink_to(root.name)
    circle.symlink_to("circle")
    assert install(made("1"), link, UNSIGNED).generation.number == 1
    assert install(made("2"), link, UNSIGNED).generation.number == 2
    assert rollback(link).version == "1"
    assert version(link) == version(root) == "1"
    assert collect(link).removed == []
    with pytest.raises(EdgekitError, match="link") as caught:
        install(made("1"), circle, UNSIGNED)
    assert caught.value.code == "install-root"


def test_the_next_one_takes_its_place_and_the_one_before_is_kept(made, put, root):
    for each in ("1", "2", "3"):
        put(made(each))
    assert version(root) == "3"
    assert names(root / "generations") == ["2", "3"]
    assert names(root / "objects") == sorted(f"{digest(made(each))}.ekb" for each in ("2", "3"))
    assert names(root / "incoming") == []


def test_a_rollback_leads_to_the_one_before_and_another_one_forth_again(made, put, root):
    put(made("1")), put(made("2"))
    assert rollback(root).version == "1"
    assert version(root) == "1"
    assert rollback(root).version == "2"
    assert version(root) == "2"
    assert [one["event"] for one in events(root)] == ["committed", "committed", "rolled-back", "rolled-back"]


def test_a_generation_is_activated_by_its_number(made, put, root):
    put(made("1")), put(made("2"))
    assert activate(root, 1).version == "1"
    assert version(root) == "1"
    both = "1 (tiny version 1), 2 (tiny version 2)"
    with pytest.raises(InstallError, match="there is no generation 7", check=has_code("no-generation")) as caught:
        activate(root, 7)
    assert caught.value.do == f"Generations: {both}. See: edgekit status --root {root}"
    with pytest.raises(InstallError, match="no generation is on trial", check=has_code("no-generation")) as caught:
        activate(root)
    assert caught.value.do == f"There is nothing to decide. Generations: {both}. See: edgekit status --root {root}"
    assert version(root) == "1"


def test_what_the_system_refuses_is_told_of_what_was_done(tmp_path):
    from edgekit_runtime.install.durable import storage_errors

    cases = {
        (True, errno.EACCES): (
            "storage",
            "this user may not read it: Permission denied. Run this as a user who may read",
        ),
        (False, errno.EACCES): (
            "storage",
            "cannot be written: Permission denied. Run this as the user who owns the root",
        ),
        (False, errno.EROFS): (
            "read-only",
            "the file system is read-only. Mount it for writing, then try again",
        ),
        (True, errno.EIO): ("storage", "the disk refused: Input/output error. Check the disk, then try again"),
    }
    for (reads, number), (code, told) in cases.items():
        with pytest.raises(EdgekitError) as caught, storage_errors(tmp_path, reads=reads):
            raise OSError(number, os.strerror(number))
        assert (caught.value.code, told in str(caught.value)) == (code, True), str(caught.value)


def test_the_first_one_has_none_to_go_back_to(made, put, root):
    put(made("1"))
    with pytest.raises(InstallError, match="no earlier generation", check=has_code("no-generation")):
        rollback(root)
    assert current(root) == "generations/1"


def test_what_answers_already_is_not_installed_again(made, put, root):
    put(made("1"))
    again = put(made("1"))
    assert again.already
    assert again.generation.number == 1
    assert status(root).unfinished is None
    assert len(events(root)) == 1


def damaged(bundle: Path, folder: Path) -> Path:
    """A copy with one bit of a blob turned; its head is the very same."""
    data = bytearray(bundle.read_bytes())
    data[-70] ^= 1
    copy = folder / "damaged.ekb"
    copy.write_bytes(data)
    return copy


def lost(stored: Path) -> None:
    stored.unlink()


def spoilt(stored: Path) -> None:
    stored.chmod(0o644)
    stored.write_bytes(b"damaged")


@pytest.mark.parametrize("rolled_back", [False, True], ids=["", "and is older than what was seen"])
def test_a_damaged_copy_of_what_answers_is_refused_like_any_other(rolled_back, made, put, root, tmp_path):
    put(made("1", BundleTerms(rollout_seq=1)))
    if rolled_back:
        put(made("2", BundleTerms(rollout_seq=2)))
        rollback(root)
    before = len(events(root))
    with pytest.raises(IntegrityError):
        put(damaged(made("1", BundleTerms(rollout_seq=1)), tmp_path))
    assert [(one["event"], one["code"]) for one in events(root)[before:]] == [("refused", "bundle-integrity")]
    assert version(root) == "1"
    assert names(root / "incoming") == []
    assert put(made("1", BundleTerms(rollout_seq=1))).already


@pytest.mark.parametrize("harm", [lost, spoilt])
@pytest.mark.parametrize("rolled_back", [False, True], ids=["", "and is older than what was seen"])
def test_what_answers_is_repaired_in_its_place_and_the_one_before_stays(rolled_back, harm, made, put, root):
    first, second = made("1", BundleTerms(rollout_seq=1)), made("2", BundleTerms(rollout_seq=2))
    put(first), put(second)
    if rolled_back:
        rollback(root)
        first, second = second, first
    number = status(root).current.number
    harm(root / "objects" / f"{digest(second)}.ekb")
    done = put(second)
    assert (done.repaired, done.already, done.generation.number) == (True, False, number)
    assert done.selftest is not None
    assert events(root)[-1]["event"] == "repaired"
    assert (root / "objects" / f"{digest(second)}.ekb").read_bytes() == second.read_bytes()
    assert names(root / "generations") == ["1", "2"]
    assert status(root).previous.object == digest(first)
    assert put(second).already


def no_record(root: Path) -> None:
    for entry in (root / "generations" / "2").iterdir():
        entry.unlink()
    (root / "generations" / "2").rmdir()


def no_object(root: Path) -> None:
    (root / "objects" / f"{status(root).current.object}.ekb").unlink()


@pytest.mark.parametrize("harm", [no_record, no_object])
@pytest.mark.parametrize("trial", ["here", "app"])
def test_what_was_lost_takes_no_good_ones_place_as_the_one_before(trial, harm, made, put, root):
    put(made("1")), put(made("2"))
    harm(root)
    assert put(made("3"), trial=trial).generation.number == 3
    if trial == "app":
        activate(root)
    assert rollback(root).version == "1"
    assert version(root) == "1"


def test_the_same_bundle_signed_later_leads_back_past_itself(made, put, root, tmp_path):
    key, public = new_key(tmp_path)
    put(made("1")), put(made("2"))
    put(made("2", key=key), InstallOptions(trust=(public,), board=BOARD, proving=QUICK))
    assert status(root).previous.version == "1"


NOTHING_THERE = {
    "no such file": ({"source": "nothing.ekb"}, "cannot be read: No such file"),
    "a folder": ({"source": "."}, "not a regular file"),
    "no such key": ({"trust": ("nobody.pub.pem",)}, "cannot be read: No such file"),
    "no such scheme": ({"source": "ftp://x/net.ekb"}, "unsupported URL scheme 'ftp'"),
    "no URL": ({"source": "http://[x/net.ekb"}, "invalid URL"),
}


@pytest.mark.parametrize("case", NOTHING_THERE)
def test_what_is_amiss_before_anything_was_fetched_makes_no_root(case, made, root, tmp_path, monkeypatch):
    changes, says = NOTHING_THERE[case]
    monkeypatch.chdir(tmp_path)
    asked = replace(UNSIGNED, trust=changes.get("trust", ()))
    with pytest.raises(EdgekitError, match=says) as caught:
        install(changes.get("source", made("1")), root, asked)
    assert caught.value.where
    assert not root.exists()
    put_first = install(made("1"), root, UNSIGNED)
    assert put_first.generation.number == 1
    with pytest.raises(EdgekitError, match=says):
        install(changes.get("source", made("2")), root, asked)
    assert [one["event"] for one in events(root)] == ["committed", "refused"]


def test_what_status_shows_of_a_refusal_names_the_options_of_the_command_line(made, root):
    install(made("1"), root, UNSIGNED)
    with pytest.raises(EdgekitError) as caught:
        install(made("2"), root, replace(UNSIGNED, allow_unsigned=False))
    assert "trust=" in caught.value.do
    assert "allow_unsigned" in str(caught.value)
    shown = status(root).failure.what
    assert "--trust" in shown
    assert "--allow-unsigned" in shown
    assert "allow_unsigned" not in shown


def test_going_back_unburns_nothing(made, put, root):

    put(made("1", BundleTerms(rollout_seq=1))), put(made("2", BundleTerms(rollout_seq=2)))
    rollback(root)
    with pytest.raises(InstallError, check=has_code("downgrade")):
        put(made("0", BundleTerms(rollout_seq=1)))
    assert status(root).rollout_seq == 2
    assert put(made("1", BundleTerms(rollout_seq=1))).already, "what answers is no step back"
    assert put(made("2", BundleTerms(rollout_seq=2))).generation.version == "2"


def test_a_status_says_what_is_there(made, put, root):
    put(made("1")), put(made("2", BundleTerms(rollout_seq=5)))
    found = status(root)
    assert (found.state, found.current.version, found.previous.version) == ("committed", "2", "1")
    assert found.current.unsigned
    assert "UNSIGNED: taken because of --allow-unsigned" in found.current.signature_text
    assert found.rollout_seq == 5
    assert found.as_json()["current"]["number"] == 2


class TestTrust:
    """Who vouches for a bundle is asked at the install and at every opening."""

    @pytest.fixture
    def alice(self, tmp_path):
        return new_key(tmp_path)

    def test_a_root_remembers_whom_it_was_told_to_trust(self, made, put, root, alice):
        key, public = alice
        done = put(made("1", key=key), InstallOptions(trust=(public,), board=BOARD, proving=QUICK))
        assert not done.generation.unsigned
        assert status(root).trust == (f"trust/{key.keyid[:16]}-alice.pub.pem",)
        with pytest.raises(SignatureError):
            put(made("2"), InstallOptions(board=BOARD, proving=QUICK))
        assert version(root) == "1"
        with open_bundle(root) as model:
            assert model.describe()["signed"]
            assert model.describe()["installed"]["unsigned"] is False

    def test_what_was_allowed_unsigned_says_so_for_ever(self, made, put, root):
        """S9"""
        put(made("1"))
        with open_bundle(root) as model:
            told = model.describe()["installed"]
        assert told["unsigned"]
        assert "--allow-unsigned" in told["vouched"]

    def test_a_key_that_is_trusted_no_more_ends_it_at_the_next_opening(self, made, put, root, alice, tmp_path):
        """S4"""
        key, public = alice
        put(made("1", key=key), InstallOptions(trust=(public,), board=BOARD, proving=QUICK))
        _, other = new_key(tmp_path, "bob")
        next((root / "trust").iterdir()).write_bytes(other.read_bytes())
        with pytest.raises(SignatureError) as error:
            open_bundle(root)
        assert status(root).refusal == str(error.value)

    def test_a_status_says_that_what_answers_does_not_open(self, made, put, root):
        done = put(made("1"))
        assert status(root).refusal is None
        whole = (root / "objects" / f"{done.generation.object}.ekb").read_bytes()
        for content, told in {
            whole[:50]: "ends",
            whole.replace(b'"tiny"', b'"tony"'): "the header was changed",
        }.items():
            (root / "objects" / f"{done.generation.object}.ekb").unlink()
            (root / "objects" / f"{done.generation.object}.ekb").write_bytes(content)
            assert told in status(root).refusal
        (root / "objects" / f"{done.generation.object}.ekb").unlink()
        assert "is gone" in status(root).as_json()["refusal"]

    def test_a_status_says_that_the_one_before_does_not_open(self, made, put, root):
        done = put(made("1"))
        put(made("2"))
        assert status(root).previous_refusal is None
        (root / "objects" / f"{done.generation.object}.ekb").unlink()
        found = status(root)
        assert found.refusal is None
        assert "is gone" in found.as_json()["previous_refusal"]

    def test_an_application_that_names_keys_itself_is_not_told_that_unsigned_was_allowed(self, made, put, root, alice):
        put(made("1"))
        with pytest.raises(SignatureError):
            open_bundle(root, trust=alice[1])

    def test_a_signature_that_comes_later_makes_a_new_generation(self, made, put, root, alice):
        key, public = alice
        put(made("1"))
        signed = put(made("1", key=key), InstallOptions(trust=(public,), board=BOARD, proving=QUICK))
        assert not signed.already
        assert not signed.generation.unsigned

    def test_an_unsigned_bundle_burns_no_number_for_signed_ones(self, made, put, root, alice):
        """S8"""
        key, public = alice
        put(made("1", BundleTerms(rollout_seq=2**53 - 1)))
        done = put(
            made("2", BundleTerms(rollout_seq=3), key=key), InstallOptions(trust=(public,), board=BOARD, proving=QUICK)
        )
        assert done.generation.seq == 3

    def test_a_number_that_only_a_key_of_the_past_vouched_for_binds_nobody(self, made, put, root, alice, tmp_path):
        """Else a stolen key, revoked since, would have ended all updates with the highest number there is."""

        key, public = alice
        put(
            made("1", BundleTerms(rollout_seq=2**53 - 1), key=key),
            InstallOptions(trust=(public,), board=BOARD, proving=QUICK),
        )
        with pytest.raises(InstallError, check=has_code("downgrade")):
            put(
                made("2", BundleTerms(rollout_seq=3), key=key),
                InstallOptions(trust=(public,), board=BOARD, proving=QUICK),
            )
        bob, others = new_key(tmp_path, "bob")
        done = put(
            made("2", BundleTerms(rollout_seq=3), key=bob), InstallOptions(trust=(others,), board=BOARD, proving=QUICK)
        )
        assert done.generation.seq == 3

    @pytest.mark.parametrize("lost", [False, True], ids=["", "and the journal was lost"])
    def test_a_stolen_key_wipes_no_number_out(self, made, put, root, alice, tmp_path, lost):
        """S18: what alice's bundles burned binds again once the key that went beyond it is trusted no more."""

        (key, public), (stolen, other) = alice, new_key(tmp_path, "mallory")
        both, alone = (InstallOptions(trust=keys, board=BOARD, proving=QUICK) for keys in ((public, other), (public,)))
        put(made("5", BundleTerms(rollout_seq=5), key=key), both)
        put(made("100", BundleTerms(rollout_seq=100), key=stolen), both)
        if lost:
            (root / "journal.json").unlink()
        with pytest.raises(InstallError, match="older than 5", check=has_code("downgrade")):
            put(made("4", BundleTerms(rollout_seq=4), key=key), alone)
        assert put(made("6", BundleTerms(rollout_seq=6), key=key), alone).generation.seq == 6
        with pytest.raises(InstallError, match="older than 100", check=has_code("downgrade")):
            put(made("7", BundleTerms(rollout_seq=7), key=key), both)


class TestWhatIsOpen:
    """A model that is open keeps what it needs."""

    def test_is_never_collected(self, made, put, root):
        put(made("1"))
        with open_bundle(root) as model:
            put(made("2")), put(made("3"))
            assert "generations/1" in collect(root).in_use
            assert (root / "objects" / f"{digest(made('1'))}.ekb").exists()
            assert model.predict(tiny.BLUE).top(1)[0].label == "blue"
        removed = collect(root)
        assert removed.in_use == []
        assert "generations/1" in removed.removed
        assert not (root / "objects" / f"{digest(made('1'))}.ekb").exists()

    def test_swaps_to_what_was_installed_meanwhile(self, made, put, root):
        put(made("1"))
        with open_bundle(root) as model:
            put(made("2"))
            assert model.describe()["version"] == "1"
            model.swap(root)
            assert model.describe()["version"] == "2"
            assert model.describe()["installed"]["generation"] == 2

    def test_needs_no_permission_to_write(self, made, put, root):
        put(made("1"))
        if os.geteuid() == 0:
            pytest.skip("root may write everywhere")
        for folder, _, _ in os.walk(root):
            Path(folder).chmod(0o555)
        try:
            assert version(root) == "1"
        finally:
            for folder, _, _ in os.walk(root):
                Path(folder).chmod(0o755)


def test_a_bundle_that_was_changed_on_the_disk_does_not_answer(made, put, root):
    put(made("1"))
    stored = next((root / "objects").iterdir())
    data = bytearray(stored.read_bytes())
    data[-70] ^= 1
    stored.chmod(0o644)
    stored.write_bytes(bytes(data))
    with pytest.raises(IntegrityError):
        open_bundle(root)
    put(made("2"))
    assert version(root) == "2"


def test_another_bundle_under_the_name_of_an_object_does_not_answer(made, put, root):
    put(made("1"))
    stored = next((root / "objects").iterdir())
    stored.chmod(0o644)
    stored.write_bytes(made("2").read_bytes())
    with pytest.raises(IntegrityError, match="another bundle than was installed"):
        open_bundle(root)


def test_a_damaged_object_is_healed_by_installing_it_again(made, put, root):
    put(made("1")), put(made("2"))
    stored = root / "objects" / f"{digest(made('1'))}.ekb"
    stored.chmod(0o644)
    stored.write_bytes(b"damaged")
    put(made("1"))
    assert version(root) == "1"


CUTS = ["fetch", "verify", "selftest", "trial"]


class _PowerCut(BaseException):
    pass


@pytest.mark.parametrize("stage", CUTS)
def test_the_same_install_again_finishes_what_was_cut_off(stage, made, put, root):
    put(made("1"))

    def cut(now, done, total):
        if now == stage:
            raise _PowerCut

    with pytest.raises(_PowerCut):
        put(made("2"), fetching=replace(UNSIGNED.fetching, progress=cut))
    assert version(root) == "1"
    assert status(root).unfinished is not None
    assert put(made("2")).generation.version == "2"
    assert version(root) == "2"
    assert status(root).unfinished is None


def test_an_install_that_was_cut_off_is_known_again_from_another_folder(made, root, tmp_path, monkeypatch):
    """Its states were not begun anew: generation 1 is the only one that was ever made."""
    (tmp_path / "usb").mkdir()
    (tmp_path / "stick").symlink_to("usb")
    (tmp_path / "usb" / "net.ekb").write_bytes(made("1").read_bytes())

    def cut(now, done, total):
        if now == "selftest":
            raise _PowerCut

    monkeypatch.chdir(tmp_path / "usb")
    with pytest.raises(_PowerCut):
        install("net.ekb", root, replace(UNSIGNED, fetching=replace(UNSIGNED.fetching, progress=cut)))
    assert status(root).unfinished.source == str(tmp_path / "usb" / "net.ekb")
    monkeypatch.chdir(tmp_path)
    done = install("stick/net.ekb", root, UNSIGNED)
    assert (done.generation.number, done.generation.source) == (1, str(tmp_path / "usb" / "net.ekb"))


class TestTheBoardsName:
    """A root remembers what the board is, as it remembers whom it trusts."""

    NAMELESS = replace(UNSIGNED, board=BoardIdentity(("raspberry-pi-4",)))

    def test_counts_until_another_is_given(self, made, put, root):
        assert put(made("1"), self.NAMELESS, profile="x86-64").profile == "x86-64"
        assert put(made("2"), self.NAMELESS).generation.number == 2, "what was found of the machine is not asked"
        with pytest.raises(EdgekitError, match="this board is raspberry-pi-4") as caught:
            put(made("3"), self.NAMELESS, profile="raspberry-pi-4")
        assert caught.value.code == "incompatible"
        assert status(root).profile == "x86-64", "what was refused changes nothing"

    def test_is_what_was_found_where_nobody_said_it(self, made, put, root):
        with pytest.raises(EdgekitError, match="this board is raspberry-pi-4"):
            put(made("1"), self.NAMELESS)
        assert status(root).profile is None

    def test_and_its_keys_are_remembered_of_a_bundle_that_answers_already(self, made, put, root, tmp_path):
        key, public = new_key(tmp_path)
        signed = InstallOptions(trust=(public,), board=BOARD, proving=QUICK)
        put(made("1", key=key), signed)
        _, other = new_key(tmp_path, "bob")
        again = put(made("1", key=key), replace(signed, trust=(public, other), profile="x86-64"))
        assert again.already
        assert [name[23:] for name in status(root).trust] == ["alice.pub.pem", "bob.pub.pem"]
        assert status(root).profile == "x86-64"

    def test_given_anew_has_a_cut_install_judged_anew(self, made, put, root):
        def cut(now, done, total):
            if now == "selftest":
                raise _PowerCut

        with pytest.raises(_PowerCut):
            put(made("1"), fetching=replace(UNSIGNED.fetching, progress=cut))
        with pytest.raises(EdgekitError, match="this board is raspberry-pi-4"):
            put(made("1"), profile="raspberry-pi-4")
        assert current(root) is None

    def test_a_damaged_slot_is_made_anew_where_whom_to_trust_is_said_again(self, made, put, root, tmp_path):
        key, public = new_key(tmp_path)
        signed = InstallOptions(trust=(public,), board=BOARD, proving=QUICK)
        put(made("1", key=key), signed)
        (root / "slot.json").write_bytes(bytes(40))
        with pytest.raises(EdgekitError, match="--trust"):
            put(made("2", key=key), replace(signed, trust=()))
        assert put(made("2", key=key), signed).generation.number == 2
        assert status(root).trust == (f"trust/{key.keyid[:16]}-alice.pub.pem",)


@pytest.mark.parametrize("stage", ["selftest", "trial"])
def test_what_the_owner_interrupts_by_hand_counts_as_no_failure(stage, made, put, root):
    def interrupt(now, done, total):
        if now == stage:
            raise KeyboardInterrupt

    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            put(made("1"), fetching=replace(UNSIGNED.fetching, progress=interrupt))
        assert status(root).unfinished.state == stage
    assert put(made("1")).generation.number == 1


@pytest.mark.parametrize("stage", CUTS)
def test_another_install_drops_what_was_cut_off(stage, made, put, root):
    def cut(now, done, total):
        if now == stage:
            raise _PowerCut

    with pytest.raises(_PowerCut):
        put(made("1"), fetching=replace(UNSIGNED.fetching, progress=cut))
    put(made("2"))
    assert version(root) == "2"
    assert [entry.name for entry in (root / "objects").iterdir()] == [f"{digest(made('2'))}.ekb"]


def test_a_journal_that_is_lost_is_begun_anew_from_what_answers(made, put, root):
    put(made("1")), put(made("2", BundleTerms(rollout_seq=5)))
    (root / "journal.json").unlink()
    assert version(root) == "2"
    assert status(root).rollout_seq == 5, "what was accepted is not forgotten"
    assert put(made("3", BundleTerms(rollout_seq=6))).generation.number == 3
    assert rollback(root).version == "2"


def test_a_journal_that_is_damaged_stops_no_reader_and_says_how_to_go_on(made, put, root):

    put(made("1"))
    (root / "journal.json").write_bytes(bytes(60))
    assert version(root) == "1"
    with pytest.raises(InstallError, match=r"cannot be understood.*Run: mv ", check=has_code("install-root")):
        put(made("2"))
    (root / "journal.json").unlink()
    put(made("2"))
    assert version(root) == "2"


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("content", [None, b"{", b"[]"])
def test_a_record_that_is_damaged_is_healed_by_installing(content, version, made, put, root):
    """What answers cannot be opened then, and its message leads out."""
    put(made("1"))
    record = root / "generations" / "1" / "generation.json"
    record.unlink()
    if content is not None:
        record.write_bytes(content)
        with pytest.raises(EdgekitError, match=f"Install its bundle again.*edgekit rollback --root {root}"):
            open_bundle(root)
    assert put(made(version)).generation.number == 2
    with open_bundle(root) as model:
        assert model.describe()["version"] == version


def test_a_root_without_its_slot_is_still_one_and_every_reader_says_what_is_missing(made, put, root):
    put(made("1"))
    (root / "slot.json").unlink()
    for ask in (status, open_bundle):
        with pytest.raises(EdgekitError, match=r"slot.json: is missing.*edgekit install BUNDLE --root") as caught:
            ask(root)
        assert caught.value.code == "install-root"
    assert put(made("1")).already
    assert status(root).current.number == 1


class TestWhomItTrusts:
    """What --trust named, long after it was named."""

    def signed(self, folder: Path) -> tuple[InstallOptions, SigningKey, Path]:
        key, public = new_key(folder)
        return InstallOptions(trust=(public,), board=BOARD, proving=QUICK), key, public

    def test_of_a_key_there_is_a_copy_so_that_the_stick_may_go(self, made, put, root, tmp_path):
        asked, key, public = self.signed(tmp_path)
        put(made("1", key=key), asked)
        copy = root / "trust" / f"{key.keyid[:16]}-alice.pub.pem"
        assert copy.read_bytes() == public.read_bytes()
        assert copy.stat().st_mode & 0o777 == 0o644
        public.unlink()
        assert version(root) == "1"
        assert put(made("2", key=key), replace(asked, trust=())).generation.signed_by == (key.keyid,)
        with open_bundle(root) as model:
            assert model.describe()["trust"].startswith(
                f"signed by alice.pub.pem ({key.keyid[:8]}), trusted by the install root"
            )

    def test_a_root_of_before_that_has_a_path_opens_and_says_what_to_do_where_that_is_gone(
        self, made, put, root, tmp_path
    ):
        asked, key, public = self.signed(tmp_path)
        put(made("1", key=key), asked)
        (root / "slot.json").write_text(json.dumps({"format": 1, "trust": [str(public)]}))
        assert version(root) == "1"
        moved = public.rename(tmp_path / "elsewhere.pub.pem")
        with pytest.raises(
            EdgekitError, match=f"put it back there. Or name another: edgekit install BUNDLE --root {root} --trust"
        ):
            open_bundle(root)
        put(made("1", key=key), replace(asked, trust=(moved,)))
        assert version(root) == "1"

    def test_a_root_json_is_read_where_it_lies(self, made, put, root, tmp_path):
        key, _ = new_key(tmp_path)
        file = tmp_path / "root.json"
        file.write_bytes(rooted.document(rooted.signed_part(bundle=("ada",), root=("ada",)), "ada"))
        with pytest.raises(SignatureError):
            put(made("1", key=key), InstallOptions(trust=(file,), board=BOARD, proving=QUICK))
        assert trust_files((file,)) == {str(file): None}

    @pytest.mark.parametrize("name", ["trust/../evil.pem", "evil.pub.pem", "../evil.pub.pem", "trust/evil.pub.pem"])
    def test_a_slot_names_no_file_of_another_place(self, name, made, put, root, tmp_path):
        asked, key, _ = self.signed(tmp_path)
        put(made("1", key=key), asked)
        (root / "slot.json").write_text(json.dumps({"format": 1, "trust": [name]}))
        with pytest.raises(EdgekitError, match="not a stored key"):
            open_bundle(root)

    @pytest.mark.parametrize("what", ["the copy", "its folder", "the root"])
    def test_a_copy_that_others_may_replace_decides_nothing(self, what, made, put, root, tmp_path):
        asked, key, _ = self.signed(tmp_path)
        put(made("1", key=key), asked)
        copy = next((root / "trust").iterdir())
        changed = {"the copy": copy, "its folder": copy.parent, "the root": root}[what]
        changed.chmod(changed.stat().st_mode | 0o002)
        with pytest.raises(EdgekitError, match="other users may write to it", check=has_code("unsafe-path")) as caught:
            open_bundle(root)
        assert caught.value.where == str(changed)
        changed.chmod(changed.stat().st_mode & ~0o022)
        root.parent.chmod(0o777)  # what lies above is no business of the keys: it would give away the whole root
        open_bundle(root).close()

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives a file away")
    def test_a_copy_belongs_to_the_owner_of_its_root_or_to_root(self, made, put, root, tmp_path):
        asked, key, _ = self.signed(tmp_path)
        put(made("1", key=key), asked)
        copy = next((root / "trust").iterdir())
        os.chown(copy, 65534, -1)
        with pytest.raises(EdgekitError, match="belongs to another user", check=has_code("unsafe-path")):
            open_bundle(root)
        for one in (root, root / "trust"):
            os.chown(one, 65534, -1)
        open_bundle(root).close()

    def test_a_link_in_place_of_a_copy_is_not_followed(self, made, put, root, tmp_path):
        asked, key, public = self.signed(tmp_path)
        put(made("1", key=key), asked)
        copy = next((root / "trust").iterdir())
        copy.unlink()
        copy.symlink_to(public)
        with pytest.raises(EdgekitError, match="symbolic link") as caught:
            open_bundle(root)
        assert caught.value.code == "planted"
        (root / "trust").rename(tmp_path / "trust")
        (root / "trust").symlink_to(tmp_path / "trust")
        with pytest.raises(EdgekitError, match="symbolic link"):
            open_bundle(root)


@pytest.mark.parametrize("number", ["2", "true", "1.0"])
def test_a_slot_of_another_format_is_refused_as_a_journal_is(made, put, root, number):
    put(made("1"))
    (root / "slot.json").write_text(f'{{"format": {number}}}')
    with pytest.raises(EdgekitError, match="not of a format that this runtime knows"):
        status(root)


def test_a_status_says_what_answered_and_is_gone_and_where_a_rollback_leads(made, put, root):
    put(made("1")), put(made("2"))
    shutil.rmtree(root / "generations" / "2")
    found = status(root)
    assert (found.current, found.previous.number) == (None, 1)
    assert "there is no generation 2" in found.refusal
    assert f"Install its bundle again; or go back to generation 1: edgekit rollback --root {root}" in found.refusal
    assert rollback(root).number == 1


def test_current_follows_the_journal_whatever_a_cut_left(made, put, root):
    put(made("1")), put(made("2"))
    (root / "current").unlink()
    (root / "current").symlink_to("generations/1")
    (root / "current.new").symlink_to("generations/2")
    assert status(root).current.number == 2
    assert current(root) == "generations/2"
    assert not os.path.lexists(root / "current.new")


def test_a_board_that_is_not_known_is_compared_by_its_architecture(made, put, root):
    assert put(made("1"), board=BoardIdentity(machine="x86_64")).state == "committed"


def test_a_child_tests_and_tries_it_where_one_can_be_started(made, put, root, monkeypatch):
    monkeypatch.delenv("EDGEKIT_SELFTEST")
    done = put(made("1"))
    assert done.selftest.text.startswith("gives its 2 golden examples")
    assert done.trial.seen.answers == 25
    assert done.trial.seen.peak_mb > 10
