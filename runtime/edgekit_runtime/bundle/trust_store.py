"""The trust store: trusted keys, thresholds, and the time by which dates are judged.

    store = parse_root(read_root(path), "root.json")                 # or TrustStore of PEM files, by `load_trust`
    moment = judge(seen_s=root_state.seen_s, issued_s=store.issued_s)
    signers = store.check(manifest, signatures, moment)            # their keyids, or a SignatureError that says why not

Rules:
- a key counts once, only in the role `bundle`; more signatures, by unknown or revoked keys, take nothing away;
- revocation always holds. Dates (of the root.json and of a key) hold only for what is `new` on a machine: what it
  accepted in time stays active;
- the refusal names the clearest reason: revoked before expired before false before unknown;
- the time is the latest of four: the system's clock, the last time seen on this board, the day the root.json was
  issued, and EARLIEST_S. A clock set back opens nothing that had expired;
- every refusal by date names its clock, and the last time seen never exceeds what is plausible (`seen_after`), so
  setting a clock that was ahead mends it;
- a board without a clock accepts what has expired until it learns a later time.
"""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Collection, Mapping, Sequence

from edgekit_runtime.bundle.signature import PAYLOAD_TYPE, Signature, verify
from edgekit_runtime.system.errors import SignatureError, TrustError
from edgekit_runtime.system.records import field, record

EARLIEST_S = int(datetime.datetime(2026, 11, 1, tzinfo=datetime.timezone.utc).timestamp())
"""When this code was written: no board ran it before."""
_LATEST_S = int(datetime.datetime(2070, 1, 1, tzinfo=datetime.timezone.utc).timestamp())
"""Default bound of a plausible time, against wrong units and clocks that run backwards."""
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_SIGN = "Ask the sender to sign it: edgekit keys sign BUNDLE --sign KEY"


@record(frozen=True)
class TrustTime:
    """at_s: seconds since 1970, UTC, to judge by.
    text: for a refusal; names the clock it rests on."""

    at_s: float
    text: str


def judge(system_s: float | None = None, *, seen_s: float | None = None, issued_s: float | None = None) -> TrustTime:
    """The time to judge by.

    system_s: seconds since 1970, None to ask the system.
    seen_s: the last time seen on this board.
    issued_s: when the root.json was issued."""
    system = time.time() if system_s is None else system_s
    others = {
        "the day this runtime was written": float(EARLIEST_S),
        "the day its root.json was issued": issued_s,
        "the last time seen on this board": seen_s,
    }
    latest, why = system, ""
    for name, value in others.items():
        if value is not None and value > latest:
            latest, why = value, name
    says = f"this machine's clock says {tell_time(system)}"
    return TrustTime(latest, f"({says})" if not why else f"(judged by {why}, {tell_time(latest)}; {says})")


def seen_after(system_s: float, seen_s: float | None, plausible_until_s: float | None = None) -> float:
    """The last time seen, after `system_s` was.
    It never goes back; implausible times do not count.

    plausible_until_s: when the root in force expires. After that nothing is accepted anyhow, and a board whose clock
        once said 2100 works again when it is set."""
    before = float(EARLIEST_S) if seen_s is None else seen_s
    until = _LATEST_S if plausible_until_s is None else plausible_until_s
    return max(before, system_s) if system_s <= until else before


def seconds_of(moment: str) -> int | None:
    """Seconds since 1970, without leap seconds; None if malformed or not a day and time."""
    if not _MOMENT.fullmatch(moment):
        return None
    try:
        return int(datetime.datetime.fromisoformat(f"{moment[:-1]}+00:00").timestamp())
    except ValueError:  # the 31st of April, 24:00:00, the year 0
        return None


def moment_of(seconds: float) -> str:
    """The UTC second that `seconds` since 1970 lies in."""
    return datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> float:
    """`2027-01-31T00:00:00Z` -> seconds since 1970. Raises ValueError for any other text."""
    seconds = seconds_of(text)
    if seconds is None:
        raise ValueError(f"{text!r:.40} is not a time of the form 2027-01-31T00:00:00Z")
    return seconds


def tell_time(at_s: float) -> str:
    """Seconds since 1970 -> `2027-01-31T00:00:00Z`; what no calendar has stays in seconds."""
    try:
        return moment_of(at_s)
    except (ValueError, OverflowError, OSError):
        return f"{at_s:.0f} s after 1970"


@record(frozen=True)
class TrustedKey:
    """name: chosen by a person.
    public: the raw 32 bytes.
    expires_s: seconds since 1970, None for as long as the root."""

    keyid: str
    name: str
    public: bytes
    expires_s: float | None = None


@record(frozen=True)
class Role:
    """keyids: whose signatures count. threshold: how many of them must sign."""

    keyids: tuple[str, ...]
    threshold: int


@record(frozen=True)
class RevokedKey:
    keyid: str
    name: str
    why: str = ""


@record(frozen=True)
class TrustStore:
    """where: the file, for messages.
    keys: keyid -> key.
    bundle: who signs bundles.
    root: who signs the next root.json, None if only keys were named.
    version, issued_s, expires_s: of the root.json, None without one.
    fingerprint: SHA-256 in hex of what the root.json's signatures are over, for people to compare; else empty.
    by_the_root: configured by an install root, not by this machine or the caller."""

    where: str
    keys: Mapping[str, TrustedKey]
    bundle: Role
    root: Role | None = None
    version: int | None = None
    issued_s: float | None = None
    expires_s: float | None = None
    revoked: Mapping[str, RevokedKey] = field(default_factory=dict)
    fingerprint: str = ""
    by_the_root: bool = False

    def check(
        self,
        manifest: bytes,
        signatures: Sequence[Signature],
        now: TrustTime | None = None,
        *,
        new: bool = True,
        where: str = "",
    ) -> tuple[str, ...]:
        """The keyids that signed and count.
        Raises a subclass of SignatureError that says why it is not enough.

        manifest: its bytes as in the bundle.
        now: the time to judge by, None for this machine's clock.
        new: False for what this machine has accepted before: dates are ignored.
        where: the bundle's name, for messages."""
        moment = now or judge(issued_s=self.issued_s)
        if new:
            self.check_date(moment)
        allowed = {name: self.keys[name].public for name in self.bundle.keyids}
        good = verify(manifest, signatures, allowed, PAYLOAD_TYPE)
        ends = {name: self.keys[name].expires_s for name in good} if new else {}
        counted = tuple(name for name in good if (end := ends.get(name)) is None or moment.at_s < end)
        if len(counted) >= self.bundle.threshold:
            return counted
        raise self._refusal([name for name, _ in signatures], good, counted, moment, where)

    def check_date(self, now: TrustTime) -> None:
        """Raises TrustError (root-expired) if this root.json has expired."""
        if self.expires_s is not None and now.at_s >= self.expires_s:
            what = f"this root.json (version {self.version}) expired on {tell_time(self.expires_s)} {now.text}"
            do = "Set the clock if it is wrong; else get a newer one and run: edgekit keys update ROOT.json"
            raise TrustError(what, where=self.where, do=do, code="root-expired")

    def suffices(self, keyids: Collection[str]) -> bool:
        """Whether signatures of these keys would be enough now, dates aside."""
        return len(set(keyids) & set(self.bundle.keyids)) >= self.bundle.threshold

    def name_of(self, keyid: str) -> str:
        """`alice (1f00c0de)`, or the first digits of an unknown key."""
        known = self.keys.get(keyid) or self.revoked.get(keyid)
        return f"{known.name} ({keyid[:8]})" if known else keyid[:16]

    def _refusal(
        self, named: Sequence[str], good: Sequence[str], counted: Sequence[str], now: TrustTime, where: str
    ) -> SignatureError:
        """named: every keyid in the block.
        good: those whose signature holds.
        counted: those of them that are in time."""
        role, needed = set(self.bundle.keyids), f"{self.bundle.threshold} of {len(self.bundle.keyids)} trusted keys"
        revoked = [name for name in dict.fromkeys(named) if name in self.revoked]
        late = [name for name in good if name not in counted]
        false = [name for name in dict.fromkeys(named) if name in role and name not in good]
        do_cli = ""
        if not named:
            code, what, do = "unsigned", "the bundle is not signed", _SIGN
        elif revoked:
            why = self.revoked[revoked[0]].why
            code, do = "revoked-key", "Ask the sender to sign it with another key; nothing else makes it acceptable"
            what = f"the bundle is signed by {self._names(revoked)}, which was revoked" + (f": {why}" if why else "")
        elif late:
            code, do = (
                "key-expired",
                "Set the clock if it is wrong; else ask the sender to sign it with a newer key",
            )
            until = tell_time(self.keys[late[0]].expires_s or 0)
            what = f"the bundle is signed by {self._names(late)}, which was trusted until {until} {now.text}"
        elif false:
            code, do = "bad-signature", "Copy it again: it was damaged or tampered with"
            what = f"the signature by {self._names(false)} is invalid"
        elif counted:
            code, do = "too-few-signatures", "Let another key sign it as well: edgekit keys sign BUNDLE --sign KEY"
            what = f"the bundle is signed by {self._names(counted)} only, and {needed} must sign"
        else:
            code, do = "unknown-key", "Trust that key if you know its owner (trust=, or edgekit keys update)"
            do_cli = "Trust that key if you know its owner (--trust, or edgekit keys update)"
            what = f"the bundle is not signed by any key trusted here ({self._names(dict.fromkeys(named))})"
        return SignatureError(what, where=where, do=do, code=code, do_cli=do_cli)

    def _names(self, keyids: Collection[str]) -> str:
        shown = [self.name_of(keyid) for keyid in list(keyids)[:4]]
        return ", ".join(shown) + (f" and {len(keyids) - 4} more" if len(keyids) > 4 else "")
