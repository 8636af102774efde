"""Every change of a root is a new version that machines take over, or an error that says what would do."""

from __future__ import annotations

import json

import pytest
import rooted
from hypothesis import given
from hypothesis import strategies as st

from edgekit.packaging.output_errors import KeysError
from edgekit.packaging.roots import (
    Dates,
    Member,
    add_signatures,
    first_root,
    renew,
    revoke,
    rotate,
    with_keys,
    write_root,
)
from edgekit.packaging.writer import SigningKey
from edgekit_runtime.bundle.trust_root import follow, parse_root, read_root
from edgekit_runtime.bundle.trust_store import parse_time
from edgekit_runtime.system.errors import TrustError

ISSUED, EXPIRES = parse_time(rooted.ISSUED), parse_time(rooted.EXPIRES)
DATES = Dates(ISSUED, EXPIRES)


def member(name, **more):
    return Member(name, rooted.raw(name), **more)


def signer(name):
    return SigningKey(rooted.private(name))


def first(root=("ann",), bundle=("bea",), **thresholds):
    return first_root([member(n) for n in root], [member(n) for n in bundle], DATES, **thresholds)


def names(signed, role):
    return [signed["keys"][keyid]["name"] for keyid in signed["roles"][role]["keyids"]]


def test_the_first_root_is_what_the_page_on_it_says():
    assert first() == rooted.signed_part()


def test_a_key_is_added_to_a_role():
    signed = with_keys(first(), [member("ben")], "bundle", DATES, 2)
    assert (names(signed, "bundle"), signed["roles"]["bundle"]["threshold"], signed["version"]) == (
        ["bea", "ben"],
        2,
        2,
    )
    assert names(with_keys(signed, [member("art")], "root", DATES), "root") == ["ann", "art"]


def test_a_key_that_is_there_keeps_its_place():
    assert names(with_keys(first(), [member("bea")], "bundle", DATES), "bundle") == ["bea"]


def test_rotation_lets_the_old_key_run_out_and_ends_its_right_to_sign_roots():
    """S8"""
    signed = rotate(first(("ann",), ("ann", "bea")), rooted.keyid("ann"), member("new"), DATES, ISSUED + 86_400)
    assert names(signed, "root") == ["new"]
    assert names(signed, "bundle") == ["ann", "bea", "new"]
    assert signed["keys"][rooted.keyid("ann")]["expires"] == "2026-11-23T00:00:00Z"


def test_a_root_key_that_signs_no_bundles_is_gone_after_rotation():
    signed = rotate(first(), rooted.keyid("ann"), member("new"), DATES, ISSUED)
    assert rooted.keyid("ann") not in signed["keys"]


def test_revocation_takes_a_key_out_of_everything_for_good():
    """S4"""
    signed = revoke(first(bundle=("bea", "ben")), rooted.keyid("ben"), "laptop stolen", DATES)
    assert names(signed, "bundle") == ["bea"]
    assert signed["revoked"] == [{"keyid": rooted.keyid("ben"), "name": "ben", "why": "laptop stolen"}]
    with pytest.raises(KeysError, match="revoked key cannot return"):
        with_keys(signed, [member("ben")], "bundle", DATES)


LEFT = {
    "the last key of a role": (lambda: revoke(first(), rooted.keyid("bea"), "", DATES),
        "no key would be left to sign as 'bundle'"),
    "fewer keys than must sign": (
        lambda: revoke(first(bundle=("bea", "ben"), threshold=2), rooted.keyid("ben"), "", DATES), "1, and 2 must",
    ),
    "a threshold beyond the keys": (lambda: with_keys(first(), [member("ben")], "bundle", DATES, 3), "2, and 3 must"),
    "a root threshold beyond the keys": (lambda: first(root_threshold=2), "'root': 1, and 2 must"),
    "a key nobody knows": (lambda: rotate(first(), "0" * 64, member("new"), DATES, ISSUED),
        "this root has no key 00000000"),
    "a date that is past": (lambda: renew(first(), Dates(EXPIRES, ISSUED)), "expired before it is made"),
    "one name for two keys": (
        lambda: with_keys(first(), [Member("bea", rooted.raw("other"))], "bundle", DATES), "another key named 'bea'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "words"), LEFT.values(), ids=LEFT)
def test_no_change_leaves_a_root_that_could_never_be_used(change, words):
    with pytest.raises(KeysError, match=words) as caught:
        change()
    assert caught.value.do


def test_fewer_keys_must_sign_when_that_is_said():
    signed = revoke(first(bundle=("bea", "ben"), threshold=2), rooted.keyid("ben"), "", DATES, threshold=1)
    assert signed["roles"]["bundle"] == {"keyids": [rooted.keyid("bea")], "threshold": 1}


people = st.sampled_from(["ann", "art", "bea", "ben", "bob", "eve"])
changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), people, st.sampled_from(["bundle", "root"])),
        st.tuples(st.just("rotate"), people, people),
        st.tuples(st.just("revoke"), people),
        st.tuples(st.just("renew")),
    ),
    max_size=8,
)


@given(changes)
def test_whatever_people_do_machines_can_follow(steps):
    """S6: every version that can be written is taken over by who has the one before, if the keys of both sign it."""
    signed = first(("ann", "art"), ("bea", "ben"))
    store = parse_root(rooted.document(signed, "ann", "art"), "0")
    for step in steps:
        try:
            if step[0] == "add":
                signed = with_keys(signed, [member(step[1])], step[2], DATES)
            elif step[0] == "rotate":
                signed = rotate(signed, rooted.keyid(step[1]), member(step[2]), DATES, ISSUED)
            elif step[0] == "revoke":
                signed = revoke(signed, rooted.keyid(step[1]), "", DATES)
            else:
                signed = renew(signed, DATES)
        except KeysError:
            continue
        store = follow(store, rooted.document(signed, "ann", "art", "bea", "ben", "bob", "eve"), "next")
        assert store.version == signed["version"]


def test_versions_lie_beside_root_json_and_none_is_lost(tmp_path):
    root = tmp_path / "root.json"
    write_root(root, first(), [signer("ann")])
    written = write_root(root, renew(first(), Dates(ISSUED, EXPIRES + 1)), [signer("ann")])
    assert (written.root, written.missing, written.signers) == (root, (), ("ann",))
    assert {file.name for file in tmp_path.iterdir()} == {"root.json", "root-1.json", "root-2.json"}
    assert root.read_bytes() == (tmp_path / "root-2.json").read_bytes()
    assert follow(parse_root(read_root(tmp_path / "root-1.json"), "root.json"), root.read_bytes(), "r").version == 2


def test_a_draft_waits_beside_root_json_until_enough_have_signed(tmp_path):
    root, two = tmp_path / "root.json", {"root_threshold": 2}
    draft = write_root(root, first(("ann", "art"), **two), [signer("ann")])
    assert (draft.root, draft.missing, root.exists()) == (None, ("art",), False)
    done = add_signatures(draft.path, [signer("art")])
    assert (done.root, done.missing, parse_root(read_root(root), "root.json").version) == (root, (), 1)


def test_a_draft_keeps_root_json_as_it_is(tmp_path):
    root = tmp_path / "root.json"
    write_root(root, first(), [signer("ann")])
    before = root.read_bytes()
    draft = write_root(root, rotate(first(), rooted.keyid("ann"), member("new"), DATES, ISSUED), [signer("ann")])
    assert (draft.missing, root.read_bytes()) == (("new",), before)
    with pytest.raises(KeysError, match="version 2 already exists: it waits"):
        write_root(root, renew(first(), DATES), [signer("ann")])
    add_signatures(draft.path, [signer("new")])
    assert parse_root(read_root(root), "root.json").version == 2


def test_a_key_without_the_role_does_not_sign_roots(tmp_path):
    """S5"""
    draft = write_root(tmp_path / "root.json", first(("ann", "art"), root_threshold=2), [signer("ann")])
    for stranger in ("bea", "mallory"):
        with pytest.raises(KeysError, match="signs no root"):
            add_signatures(draft.path, [signer(stranger)])


def test_a_version_that_was_changed_after_it_was_signed_is_not_put_in_force(tmp_path):
    """S5"""
    draft = write_root(tmp_path / "root.json", first(("ann", "art"), root_threshold=2), [signer("ann")])
    changed = json.loads(draft.path.read_text())
    changed["signed"]["roles"]["root"]["threshold"] = 1
    draft.path.write_text(json.dumps(changed))
    done = add_signatures(draft.path, [signer("art")])
    assert parse_root(read_root(done.root), "root.json").root.threshold == 1, (
        "art signed what it says now, and one is enough then"
    )
    with pytest.raises(TrustError, match="0 of the 1"):
        parse_root(
            json.dumps({**changed, "signatures": json.loads(draft.path.read_text())["signatures"][:0]}).encode(), "r"
        )
