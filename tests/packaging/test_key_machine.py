"""What a board takes over, and what it keeps."""

from __future__ import annotations

import pytest
import rooted
from refusing import has_code

from edgekit.packaging.output_errors import KeysError
from edgekit.packaging.roots import take_over
from edgekit_runtime.bundle.trust_root import parse_root, read_root
from edgekit_runtime.bundle.trust_store import judge
from edgekit_runtime.system.errors import TrustError

NOW = judge(rooted.IN_TIME)


@pytest.fixture
def brought(tmp_path):
    """root-1 to root-4 by ann, and one that mallory made up."""

    def write(name, signed, *signers):
        (tmp_path / name).write_bytes(rooted.document(signed, *signers))

    for version in (1, 2, 3, 4):
        write(f"root-{version}.json", rooted.signed_part(version=version), "ann")
    write("mallory.json", rooted.signed_part(("mallory",), ("mallory",), version=2), "mallory")
    write("late.json", rooted.signed_part(version=2, expires="2026-12-01T00:00:00Z"), "ann")
    return tmp_path


def take(folder, *names, **more):
    return take_over([folder / name for name in names], folder / "etc" / "root.json", now=NOW, **more)


def in_force(folder):
    return parse_root(read_root(folder / "etc" / "root.json"), "root.json").version


def test_the_first_is_taken_on_somebodys_word(brought):
    taken = take(brought, "root-2.json")
    assert (taken.before, taken.store.version, in_force(brought)) == (None, 2, 2)


def test_the_first_can_be_pinned(brought):
    """S6"""
    fingerprint = parse_root(read_root(brought / "root-1.json"), "root.json").fingerprint
    with pytest.raises(KeysError, match="fingerprint"):
        take(brought, "root-2.json", expect=fingerprint)
    assert not (brought / "etc").exists()
    assert take(brought, "root-1.json", expect=fingerprint.upper()).store.version == 1


def test_the_next_one_follows_and_several_are_taken_in_their_order(brought):
    """S6"""
    take(brought, "root-1.json")
    assert take(brought, "root-2.json").before == 1
    assert take(brought, "root-4.json", "root-1.json", "root-3.json").store.version == 4
    assert in_force(brought) == 4


REFUSED = {
    "an older one": (["root-1.json"], "root-rollback", "older"),
    "one that leaves a version out": (["root-4.json"], "root-rollback", "does not follow version 2"),
    "a chain with a gap": (["root-4.json", "root-2.json"], "root-rollback", "does not follow"),
    "one that somebody else made": (["mallory.json"], "root-rollback", "a different version 2"),
    "a good one and a broken one": (["root-3.json", "broken.json"], "trust", "not a valid root.json"),
    "one that is not there": (["root-9.json"], "trust", "cannot be read"),
}


@pytest.mark.parametrize(("names", "code", "words"), REFUSED.values(), ids=REFUSED)
def test_what_may_not_follow_leaves_the_one_in_force(brought, names, code, words):
    """S6"""
    take(brought, "root-2.json")
    before = (brought / "etc" / "root.json").read_bytes()
    (brought / "broken.json").write_bytes(b"{}")
    with pytest.raises(TrustError, match=words, check=has_code(code)):
        take(brought, *names)
    assert (brought / "etc" / "root.json").read_bytes() == before


def test_a_root_that_has_expired_is_not_taken_over(brought):
    """S7"""
    take(brought, "root-1.json")
    with pytest.raises(TrustError, match="this machine's clock says", check=has_code("root-expired")):
        take(brought, "late.json")
    assert in_force(brought) == 1


def test_an_expired_one_on_the_way_to_a_newer_one_is_no_obstacle(brought):
    """S7"""
    (brought / "root-3b.json").write_bytes(rooted.document(rooted.signed_part(version=3), "ann"))
    take(brought, "root-1.json")
    assert take(brought, "late.json", "root-3b.json").store.version == 3


def test_the_same_one_again_is_no_change(brought):
    take(brought, "root-2.json")
    assert take(brought, "root-2.json").before == 2


def test_a_board_whose_own_file_is_broken_says_so_and_names_the_way_out(brought):
    take(brought, "root-1.json")
    there = brought / "etc" / "root.json"
    there.write_bytes(b"{}")
    with pytest.raises(TrustError, match=r"etc/root\.json: the trusted keys of this machine cannot be read") as caught:
        take(brought, "root-2.json")
    assert "Move it away" in caught.value.do
    assert there.read_bytes() == b"{}", "never replaced by itself"
    there.rename(brought / "etc" / "root.json.damaged")
    assert take(brought, "root-2.json").before is None
