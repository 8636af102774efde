"""A root.json is taken as it is meant, or not at all: the cases that python-tuf keeps for its root, and those of a
small file.
"""

from __future__ import annotations

import base64
import json

import pytest
import rooted
from refusing import has_code

from edgekit_runtime.bundle.trust_root import MAX_ROOT_BYTES, follow, parse_root, read_root
from edgekit_runtime.system.errors import TrustError


def plain(**changes):
    return rooted.document(rooted.signed_part(**changes), "ann")


def altered(change):
    """A root.json whose "signed" is changed before it is signed."""
    signed = rooted.signed_part(("ann", "ann2"), ("bea",))
    change(signed)
    return rooted.document(signed, "ann", "ann2")


def set_role(role, **values):
    return lambda signed: signed["roles"][role].update(values)


def set_key(**values):
    return lambda signed: signed["keys"][rooted.keyid("bea")].update(values)


def swapped_keyids(signed):
    bea = signed["keys"].pop(rooted.keyid("bea"))
    signed["keys"]["0" * 64] = bea
    signed["roles"]["bundle"]["keyids"] = ["0" * 64]


def second_name(signed):
    """The same key once more, under a keyid of its own and another name."""
    signed["keys"]["ab" * 32] = rooted.key("bea")
    signed["roles"]["bundle"] = {"keyids": [rooted.keyid("bea"), "ab" * 32], "threshold": 2}


def many_keys(signed, count):
    left = count - len(signed["keys"])
    signed["keys"].update((rooted.keyid(f"k{n}"), rooted.key(f"k{n}")) for n in range(left))


def small_order(signed):
    import hashlib

    weak = (1).to_bytes(32, "little")
    name = hashlib.sha256(weak).hexdigest()
    signed["keys"][name] = {"name": "weak", "public": base64.b64encode(weak).decode()}


def two_spellings(signed):
    text = base64.b64encode(rooted.raw("bea")).decode()
    spare = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    last = spare[spare.index(text[-2]) + 1]  # the last two bits of it say nothing
    signed["keys"][rooted.keyid("bea")]["public"] = text[:-2] + last + "="


MALFORMED = {
    "another type": (lambda s: s.update(type="root"), "signed.type: 'root' is not one of edgekit-root"),
    "another format": (lambda s: s.update(format=2), "signed.format: 2 is not one of 1"),
    "format true": (lambda s: s.update(format=True), "signed.format: True is not"),
    "format 1.0": (lambda s: s.update(format=1.0), "signed.format: 1.0 is not"),
    "no version": (lambda s: s.pop("version"), "'version' is missing"),
    "version 0": (lambda s: s.update(version=0), "version 0"),
    "a version of text": (lambda s: s.update(version="1"), "signed.version: '1' is not"),
    "version true": (lambda s: s.update(version=True), "signed.version: True is not"),
    "no list of revoked keys": (lambda s: s.update(revoked={}), "signed.revoked: {} is not a list"),
    "257 keys": (lambda s: many_keys(s, 257), "257 keys are more than 256"),
    "no date": (lambda s: s.pop("expires"), "'expires' is missing"),
    "a date of another form": (lambda s: s.update(expires="2027-11-22"), "not a time of the form"),
    "a day that does not exist": (lambda s: s.update(expires="2027-02-30T00:00:00Z"), "not a time of the form"),
    "no keys": (lambda s: s.update(keys=[]), "signed.keys: .* is not an object"),
    "no role": (lambda s: s["roles"].pop("bundle"), "'bundle' is missing"),
    "a role that names an unlisted key": (set_role("bundle", keyids=["cd" * 32]), "which is not listed"),
    "a role that names a key twice": (set_role("bundle", keyids=[rooted.keyid("bea")] * 2, threshold=2), "twice"),
    "a threshold of 0": (set_role("bundle", threshold=0), "threshold of the role bundle, 0,"),
    "a threshold below 0": (set_role("root", threshold=-1), "threshold of the role root, -1,"),
    "a threshold nobody can reach": (set_role("bundle", threshold=2), "not between 1 and its 1 keys"),
    "a threshold of text": (set_role("bundle", threshold="1"), r"signed\.roles\.bundle\.threshold: '1' is not"),
    "a role without keys": (set_role("bundle", keyids=[]), "not between 1 and its 0 keys"),
    "a key under another keyid": (swapped_keyids, "the keyid of another key"),
    "one key under two keyids": (second_name, "the keyid of another key"),
    "a key of 31 bytes": (set_key(public=base64.b64encode(b"k" * 31).decode()), "31 bytes, not 32"),
    "a key that is no base64": (set_key(public="!!!"), "not base64"),
    "a key in base64 of a second spelling": (two_spellings, "not canonical"),
    "a key of small order": (small_order, "small order"),
    "a name with an escape sequence": (set_key(name="\x1b[31mred"), "not a name of a key"),
    "a name of 65 letters": (set_key(name="n" * 65), "not a name of a key"),
    "a revoked key that is listed": (
        lambda s: s["revoked"].append({"keyid": rooted.keyid("bea"), "name": "bea"}), "revoked and listed at once",
    ),
    "a reason that moves the cursor": (
        lambda s: s["revoked"].append({"keyid": "ef" * 32, "name": "old", "why": "lost\x1b[2J"}), "printable",
    ),
    "a reason without an end": (
        lambda s: s["revoked"].append({"keyid": "ef" * 32, "name": "old", "why": "x" * 501}), "printable",
    ),
    "a key revoked twice": (
        lambda s: s["revoked"].extend([{"keyid": "ef" * 32, "name": "old"}] * 2), "twice",
    ),
    "a version beyond what every reader counts": (lambda s: s.update(version=2**53 - 1, more=2**53 - 1), None),
}  # fmt: skip


@pytest.mark.parametrize(("change", "words"), MALFORMED.values(), ids=MALFORMED)
def test_a_root_that_breaks_a_rule_is_refused_however_well_it_is_signed(change, words):
    """S5"""
    if words is None:
        assert parse_root(altered(change), "root.json").version == 2**53 - 1
        return
    with pytest.raises(TrustError, match=words) as caught:
        parse_root(altered(change), "root.json")
    assert caught.value.where == "root.json"


def to_the_limits(signed):
    many_keys(signed, 256)
    signed["keys"][rooted.keyid("bea")]["name"] = "n" * 64
    signed["revoked"].append({"keyid": "ef" * 32, "name": "old", "why": "x" * 500})


def test_as_many_and_as_long_as_is_allowed_is_taken():
    store = parse_root(altered(to_the_limits), "root.json")
    assert (len(store.keys), len(store.revoked)) == (256, 1)


def test_what_is_no_file_is_not_read(tmp_path):
    with pytest.raises(TrustError, match="not a regular file"):
        parse_root(read_root(tmp_path), "root.json")


NO_ROOTS = {
    "nothing": b"",
    "no JSON": b"root",
    "a list": b"[]",
    "no signatures": json.dumps({"signed": rooted.signed_part()}).encode(),
    "signatures that are no list": json.dumps({"signed": rooted.signed_part(), "signatures": {}}).encode(),
    "a signature of 63 bytes": json.dumps(
        {"signed": rooted.signed_part(), "signatures": [{"keyid": rooted.keyid("ann"), "sig": "A" * 84}]}
    ).encode(),
    "an empty signature": json.dumps(
        {"signed": rooted.signed_part(), "signatures": [{"keyid": rooted.keyid("ann"), "sig": ""}]}
    ).encode(),
    "a version twice": plain().replace(b'"version": 1', b'"version": 1, "version": 1'),
    "a version with a fraction": rooted.document(rooted.signed_part(version=1.5), "ann"),
    "a number that is not one": plain().replace(b'"version": 1', b'"version": NaN'),
    "nesting": b'{"signed":' * 50_000,
    "a byte order mark": b"\xef\xbb\xbf" + plain(),
    "no UTF-8": plain().replace(b"edgekit-root", b"edgekit-\xff"),
    "a digit count that takes for ever": plain().replace(b'"version": 1', b'"version": ' + b"9" * 100_000),
}


@pytest.mark.parametrize("data", NO_ROOTS.values(), ids=NO_ROOTS)
def test_what_is_no_root_is_one_error_that_names_the_file(data):
    """S5"""
    with pytest.raises(TrustError) as caught:
        parse_root(data, "there/root.json")
    assert caught.value.where == "there/root.json"
    assert "\n" not in str(caught.value)


def test_a_huge_root_is_not_read(tmp_path):
    """S5"""
    path = tmp_path / "root.json"
    path.write_bytes(plain() + b" " * MAX_ROOT_BYTES)
    with pytest.raises(TrustError, match=r"more than it may have \(262,144\)"):
        parse_root(read_root(path), "root.json")
    path.write_bytes(b" " * (MAX_ROOT_BYTES - len(plain())) + plain())
    assert parse_root(read_root(path), "root.json").version == 1


SIGNATURES = {
    "nobody": ((), "signed by 0 of the 2"),
    "one of two": (("ann",), "signed by 1 of the 2"),
    "one of two, twice": (("ann", "ann"), "signed by 1 of the 2"),
    "one, and a stranger": (("ann", "mallory"), "signed by 1 of the 2"),
    "one, and a key of another role": (("ann", "bea"), "signed by 1 of the 2"),
    "both": (("ann", "ann2"), None),
    "both, and a stranger": (("mallory", "ann2", "ann"), None),
}


@pytest.mark.parametrize(("signers", "words"), SIGNATURES.values(), ids=SIGNATURES)
def test_a_root_is_signed_by_as_many_different_keys_of_its_own_as_it_asks_for(signers, words):
    """S5"""
    data = rooted.document(rooted.signed_part(("ann", "ann2"), ("bea",), thresholds=(2, 1)), *signers)
    if words is None:
        assert parse_root(data, "r").version == 1
        return
    with pytest.raises(TrustError, match=words):
        parse_root(data, "r")


def test_a_signature_made_for_a_manifest_is_none_for_a_root():
    """S5"""
    data = rooted.document(rooted.signed_part(), "ann", payload_type=rooted.MANIFEST_TYPE)
    with pytest.raises(TrustError, match="signed by 0 of the 1"):
        parse_root(data, "r")


def test_every_field_is_under_the_signature():
    """S5"""
    whole = json.loads(plain())
    for place, value in ((("version",), 2), (("expires",), "2099-01-01T00:00:00Z"), (("more",), "x")):
        changed = json.loads(json.dumps(whole))
        changed["signed"][place[0]] = value
        with pytest.raises(TrustError, match="signed by 0 of the 1"):
            parse_root(json.dumps(changed).encode(), "r")


def test_white_space_and_the_order_of_keys_are_not():
    whole = json.loads(plain())
    turned = {"signatures": whole["signatures"], "signed": dict(reversed(whole["signed"].items()))}
    assert (
        parse_root(json.dumps(turned, separators=(",", ":")).encode(), "r").fingerprint
        == parse_root(plain(), "r").fingerprint
    )


def test_unknown_keys_are_ignored_and_signed():
    assert parse_root(rooted.document(rooted.signed_part(note="made for the field test"), "ann"), "r").version == 1


ONE = rooted.signed_part(("ann", "ann2", "ann3"), ("bea",), thresholds=(2, 1))


def second(**changes):
    return rooted.signed_part(
        **{"root": ("ann", "ann2", "ann3"), "bundle": ("bea",), "thresholds": (2, 1), "version": 2} | changes
    )


NEXT = {
    "the next version, signed by the old threshold": (second(), ("ann", "ann3"), None),
    "by fewer than the old one's threshold": (second(thresholds=(1, 1)), ("ann",), "1 of the 2 root keys"),
    "by one old key that signed twice": (second(thresholds=(1, 1)), ("ann", "ann"), "1 of the 2 root keys"),
    "by its own keys alone": (second(root=("mallory", "eve")), ("mallory", "eve"), "0 of the 2 root keys"),
    "by the old keys alone": (second(root=("new", "newer")), ("ann", "ann2"), "0 of the 2 root keys"),
    "by old and new keys": (second(root=("new", "newer")), ("ann", "ann2", "new", "newer"), None),
    "with a higher threshold that is met": (second(thresholds=(3, 1)), ("ann", "ann2", "ann3"), None),
    "with a higher threshold that is not": (second(thresholds=(3, 1)), ("ann", "ann2"), "2 of the 3 root keys"),
    "with a lower threshold, by the old one": (second(thresholds=(1, 1)), ("ann", "ann2"), None),
    "by keys that sign bundles": (second(), ("bea", "bea"), "0 of the 2 root keys"),
    "a version left out": (second(version=3), ("ann", "ann2"), "version 3 does not follow version 1"),
    "a jump to the last version there is": (second(version=2**53 - 1), ("ann", "ann2"), "does not follow"),
    "the same version with other content": (second(version=1, note="x"), ("ann", "ann2"), "a different version 1"),
}  # fmt: skip


@pytest.mark.parametrize(("signed", "signers", "words"), NEXT.values(), ids=NEXT)
def test_a_root_follows_another_only_by_its_rules(signed, signers, words):
    """S6"""
    old = parse_root(rooted.document(ONE, "ann", "ann2"), "old")
    data = rooted.document(signed, *signers)
    if words is None:
        new = follow(old, data, "new")
        assert (new.version, new.where) == (2, "new")
        return
    with pytest.raises(TrustError, match=words) as caught:
        follow(old, data, "new")
    assert (caught.value.code == "root-rollback") == ("keys" not in words)


REVOKED = [{"keyid": rooted.keyid("gone"), "name": "gone", "why": "stolen"}]
LATER = {
    "keeps the revocation": ({"revoked": REVOKED}, None),
    "says another reason": ({"revoked": [{**REVOKED[0], "why": "lost"}]}, None),
    "leaves the revocation out": ({}, r"does not list gone \(.{8}\) as revoked"),
    "lists another instead": ({"revoked": [{"keyid": "ef" * 32, "name": "old"}]}, "does not list gone"),
    "trusts the key again": ({"bundle": ("bea", "gone")}, "does not list gone"),
    "trusts it to sign roots": ({"root": ("ann", "ann2", "ann3", "gone")}, "does not list gone"),
}


@pytest.mark.parametrize(("changes", "words"), LATER.values(), ids=LATER)
def test_a_revoked_key_never_comes_back_by_a_later_root(changes, words):
    """S6"""
    old = parse_root(rooted.document({**ONE, "revoked": REVOKED}, "ann", "ann2"), "old")
    data = rooted.document(second(**changes), "ann", "ann2")
    if words is None:
        assert follow(old, data, "new").version == 2
        return
    with pytest.raises(TrustError, match=words) as caught:
        follow(old, data, "new")
    assert caught.value.where == "new"


def test_an_older_root_is_refused():
    """S6"""
    new = parse_root(rooted.document(second(), "ann", "ann2"), "new")
    with pytest.raises(TrustError, match="version 1 is older than version 2", check=has_code("root-rollback")):
        follow(new, rooted.document(ONE, "ann", "ann2"), "old")


def test_the_same_root_again_changes_nothing():
    old = parse_root(rooted.document(ONE, "ann", "ann2"), "here")
    assert follow(old, rooted.document(ONE, "ann3", "ann2", "ann"), "again") is old


def test_an_expired_root_can_still_be_followed():
    """S6: a board that was off for two years hears of its new root.

    Whether that is in date is asked when it is used.
    """
    old = parse_root(rooted.document({**ONE, "expires": "2026-11-23T00:00:00Z"}, "ann", "ann2"), "old")
    assert follow(old, rooted.document(second(), "ann", "ann2"), "new").version == 2


def test_a_list_of_keys_has_no_successor(tmp_path):
    from edgekit_runtime.bundle.trust_finding import load_trust

    path = tmp_path / "bea.pub.pem"
    path.write_bytes(rooted.public_pem("bea"))
    with pytest.raises(ValueError, match="no successor"):
        follow(load_trust(path), plain(), "new")
