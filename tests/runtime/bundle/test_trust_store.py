"""Which signatures are enough, and which words a refusal has."""

from __future__ import annotations

import base64
import pickle

import pytest
import rooted
from refusing import has_code

from edgekit_runtime.bundle.trust_finding import TrustPolicy
from edgekit_runtime.bundle.trust_root import parse_root
from edgekit_runtime.bundle.trust_store import judge, parse_time
from edgekit_runtime.system.errors import SignatureError, TrustError

MANIFEST = b'{"format":1}'
NOW = judge(rooted.IN_TIME)
LATER = judge(parse_time(rooted.EXPIRES))


def store(bundle=("bea", "ben", "bob"), needed=1, **changes):
    signed = rooted.signed_part(("ann",), bundle, thresholds=(1, needed), **changes)
    return parse_root(rooted.document(signed, "ann"), "root.json")


def good(*names):
    return tuple(rooted.signature(name, MANIFEST) for name in names)


def false(name):
    return rooted.keyid(name), rooted.private(name).sign(b"something else")


def of_another_type(name):
    return rooted.signature(name, MANIFEST, rooted.ROOT_TYPE)


def longer(name):
    """The same signature with S + L: a second spelling, which must not pass (RFC 8032, section 5.1.7)."""
    order = 2**252 + 27742317777372353535851937790883648493
    keyid, value = rooted.signature(name, MANIFEST)
    return keyid, value[:32] + (int.from_bytes(value[32:], "little") + order).to_bytes(32, "little")


CASES = {
    "one of three": (1, good("ben"), None),
    "two of three": (2, good("bea", "bob"), None),
    "all, and a stranger": (3, good("mallory", "bea", "ben", "bob"), None),
    "nobody": (1, (), "unsigned"),
    "a stranger": (1, good("mallory"), "unknown-key"),
    "the key of the role root": (1, good("ann"), "unknown-key"),
    "k-1 of k": (2, good("bea"), "too-few-signatures"),
    "k-1 of k, one of them twice": (2, good("bea", "bea"), "too-few-signatures"),
    "k-1 of k, and a stranger": (2, good("bea", "mallory"), "too-few-signatures"),
    "k-1 of k, and the role root": (3, good("bea", "ben", "ann"), "too-few-signatures"),
    "a signature over other bytes": (1, (false("bea"),), "bad-signature"),
    "one that holds, and one that does not": (2, (*good("bea"), false("ben")), "bad-signature"),
    "one that does not, where one is enough": (1, (false("ben"), *good("bea")), None),
    "twice in one name, the second one holds": (1, (false("bea"), *good("bea")), None),
    "the payload type of a root": (1, (of_another_type("bea"),), "bad-signature"),
    "a second spelling of a signature": (1, (longer("bea"),), "bad-signature"),
    "zeros": (1, ((rooted.keyid("bea"), bytes(64)),), "bad-signature"),
}  # fmt: skip


@pytest.mark.parametrize(("needed", "signatures", "refused"), CASES.values(), ids=CASES)
def test_enough_different_keys_must_have_signed_these_very_bytes(needed, signatures, refused):
    """S1 S2 S3"""
    if refused is None:
        assert len(store(needed=needed).check(MANIFEST, signatures, NOW)) >= needed
        return
    with pytest.raises(SignatureError, check=has_code(refused)) as caught:
        store(needed=needed).check(MANIFEST, signatures, NOW, where="net.ekb")
    assert caught.value.where == "net.ekb"
    assert caught.value.do


def revoking(name, why="laptop stolen", **changes):
    return store(("bea", "ben"), revoked=[{"keyid": rooted.keyid(name), "name": name, "why": why}], **changes)


def test_what_a_revoked_key_signed_is_refused_with_the_reason():
    """S4"""
    with pytest.raises(SignatureError, match=r"bob.*revoked: laptop stolen", check=has_code("revoked-key")):
        revoking("bob").check(MANIFEST, good("bob"), NOW)


def test_a_revoked_key_counts_for_nothing_beside_others():
    """S4"""
    assert revoking("bob").check(MANIFEST, good("bob", "bea"), NOW) == (rooted.keyid("bea"),)
    with pytest.raises(SignatureError, check=has_code("revoked-key")):
        revoking("bob", needed=2).check(MANIFEST, good("bob", "bea"), NOW)


def test_revocation_holds_for_what_was_accepted_before():
    """S4"""
    with pytest.raises(SignatureError, check=has_code("revoked-key")):
        revoking("bob").check(MANIFEST, good("bob"), NOW, new=False)


def test_an_expired_root_accepts_nothing_new():
    """S7"""
    with pytest.raises(
        TrustError,
        match=r"expired on 2027-11-22T00:00:00Z \(this machine's clock says 2027-11-22",
        check=has_code("root-expired"),
    ):
        store().check(MANIFEST, good("bea"), LATER)


def test_what_was_accepted_in_time_goes_on_answering():
    """S7"""
    assert store().check(MANIFEST, good("bea"), LATER, new=False)


def test_a_second_before_its_date_a_root_is_good():
    assert store().check(MANIFEST, good("bea"), judge(parse_time(rooted.EXPIRES) - 1))


def expiring(name, when):
    signed = rooted.signed_part(("ann",), ("bea", "ben"))
    signed["keys"][rooted.keyid(name)]["expires"] = when
    return parse_root(rooted.document(signed, "ann"), "root.json")


def test_an_expired_key_accepts_nothing_new_and_keeps_the_old():
    """S7"""
    early = expiring("bea", "2027-01-01T00:00:00Z")
    with pytest.raises(
        SignatureError,
        match=r"trusted until 2027-01-01T00:00:00Z \(this machine's clock says 2027-01-15",
        check=has_code("key-expired"),
    ):
        early.check(MANIFEST, good("bea"), NOW)
    assert early.check(MANIFEST, good("bea"), NOW, new=False) == (rooted.keyid("bea"),)
    assert early.check(MANIFEST, good("bea", "ben"), NOW) == (rooted.keyid("ben"),)


def test_whether_a_record_still_binds_is_asked_of_the_keys_that_are_trusted_now():
    """S8: after a stolen key is revoked, the roll-out numbers it burned hold nobody back (fast-forward recovery)."""
    two = store(("bea", "ben"), needed=2)
    assert two.suffices([rooted.keyid("bea"), rooted.keyid("ben")])
    assert not two.suffices([rooted.keyid("bea")] * 2)
    assert not two.suffices([rooted.keyid("bea"), rooted.keyid("bob")])


def test_names_of_keys_are_shown_and_of_strangers_the_start_of_their_keyid():
    with pytest.raises(SignatureError, match=rooted.keyid("mallory")[:16], check=has_code("unknown-key")):
        store().check(MANIFEST, good("mallory"), NOW)
    with pytest.raises(
        SignatureError,
        match=rf"bea \({rooted.keyid('bea')[:8]}\) only, and 2 of 3",
        check=has_code("too-few-signatures"),
    ):
        store(needed=2).check(MANIFEST, good("bea"), NOW)


def test_without_a_store_nothing_is_taken_unless_that_is_allowed():
    """S9"""
    with pytest.raises(TrustError, match="no trusted keys are configured", check=has_code("no-trust-store")):
        TrustPolicy(None, now=NOW).decide(MANIFEST, good("bea"), "net.ekb")
    allowed = TrustPolicy(None, now=NOW, allow_unsigned=True).decide(MANIFEST, good("bea"))
    assert (allowed.trusted, allowed.code) == (False, "no-trust-store")
    assert "unsigned bundles are allowed" in allowed.text


WAIVED = {
    "nobody signed": ((), "unsigned"),
    "a stranger did": (good("mallory"), "unknown-key"),
    "too few did": (good("bea"), "too-few-signatures"),
}
NOT_WAIVED = {
    "a false signature": ((false("bea"),), NOW, "bad-signature"),
    "a revoked key": (good("rob"), NOW, "revoked-key"),
    "an expired root": (good("bea", "ben"), LATER, "root-expired"),
}


@pytest.mark.parametrize(("signatures", "code"), WAIVED.values(), ids=WAIVED)
def test_a_refusal_names_options_of_python_and_flags_on_the_command_line(signatures, code):
    with pytest.raises(SignatureError, check=has_code(code)) as caught:
        TrustPolicy(store(needed=2), now=NOW).decide(MANIFEST, signatures)
    refusal = pickle.loads(pickle.dumps(caught.value))
    assert "allow_unsigned=True" in refusal.do
    assert "--allow-unsigned" not in refusal.do
    refusal.speak_cli()
    assert "allow_unsigned=True" not in refusal.do
    assert "--allow-unsigned" in refusal.do


@pytest.mark.parametrize(("signatures", "code"), WAIVED.values(), ids=WAIVED)
def test_an_allowance_stands_for_a_missing_signature_and_shows(signatures, code):
    """S9"""
    found = TrustPolicy(store(needed=2), now=NOW, allow_unsigned=True).decide(MANIFEST, signatures)
    assert (found.trusted, found.signers, found.code) == (False, (), code)
    assert found.text.endswith("accepted because unsigned bundles are allowed")


@pytest.mark.parametrize(("signatures", "now", "refused"), NOT_WAIVED.values(), ids=NOT_WAIVED)
def test_an_allowance_does_not_stand_for_a_false_one(signatures, now, refused):
    """S9"""
    trusted = store(("bea", "ben"), needed=2, revoked=[{"keyid": rooted.keyid("rob"), "name": "rob"}])
    with pytest.raises(SignatureError, check=has_code(refused)):
        TrustPolicy(trusted, now=now, allow_unsigned=True).decide(MANIFEST, signatures)


def test_what_is_vouched_for_names_who_did():
    found = TrustPolicy(store(), now=NOW).decide(MANIFEST, good("bea"))
    assert (found.trusted, found.code) == (True, "")
    assert found.text == f"signed by bea ({rooted.keyid('bea')[:8]}), trusted here"


def test_no_more_than_64_signatures_are_looked_at():
    from edgekit_runtime.bundle.signature import parse_entries

    entry = {"keyid": "0" * 64, "sig": base64.b64encode(bytes(64)).decode()}
    assert len(parse_entries([entry] * 64)) == 64
    with pytest.raises(ValueError, match="65 signatures are more than 64"):
        parse_entries([entry] * 65)
