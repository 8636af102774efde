"""Options of a bundle: its terms, and who signs it.

    terms = checked_terms(BundleTerms(licence="Apache-2.0", rollout_seq=7, expires="2027-01-31"))
    refuse_past(terms)
    signing = SigningOptions(("alice", "token.pub.pem"), signer="pkcs11-sign --key 3", ask=ask)

Rules:
- a day stands for its first second, UTC; terms that no board could ever meet are refused before the build;
- a passphrase comes from a file, the environment or a person, in this order, and never from a command line.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from edgekit.packaging.output_errors import KeysError, PackagingError
from edgekit_converters.recipe.option import option
from edgekit_runtime.bundle.manifest import MAX_TEXT
from edgekit_runtime.bundle.trust_store import moment_of, seconds_of
from edgekit_runtime.system.strict_json import MAX_NUMBER

PASSPHRASE = "EDGEKIT_PASSPHRASE"
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True)
class BundleTerms:
    """As in `Manifest`. compatible: additional profiles."""

    licence: str | None = option(None, "The model's licence, such as Apache-2.0; stored in the bundle.", metavar="TEXT")
    rollout_seq: int | None = option(
        None, "Roll-out number. A board that installed N permanently refuses lower numbers.", metavar="N"
    )
    not_before: str | None = option(
        None, "Boards install the bundles from this day: 2027-01-31, 00:00 UTC.", metavar="DATE"
    )
    expires: str | None = option(
        None, "Boards refuse the bundles from this day: 2027-12-31, 00:00 UTC.", metavar="DATE"
    )
    compatible: tuple[str, ...] = option(
        (), "Additional profile allowed to install the bundles; repeatable.", metavar="NAME"
    )

    def boards(self, target: str) -> tuple[str, ...]:
        """The profiles that may install it, the one it is built for first."""
        return (target, *sorted(set(self.compatible) - {target}))


def checked_terms(terms: BundleTerms) -> BundleTerms:
    """The terms with moments for days. Raises PackagingError naming the option."""
    licence, rollout_seq = terms.licence, terms.rollout_seq
    if licence is not None and not (licence.strip() and len(licence) <= MAX_TEXT and licence.isprintable()):
        raise PackagingError(
            f"a licence is one line of 1 to {MAX_TEXT} characters",
            where="--licence",
            do="Name it, such as Apache-2.0, or say where its text is",
        )
    if rollout_seq is not None and not 0 <= rollout_seq <= MAX_NUMBER:
        raise PackagingError(
            f"{rollout_seq} is not from 0 to {MAX_NUMBER}", where="--rollout-seq", do="Count up from 1, one a roll-out"
        )
    first, last = _moment(terms.not_before, "--not-before"), _moment(terms.expires, "--expires")
    if first is not None and last is not None and last <= first:
        raise PackagingError(f"{last} is not after --not-before {first}", where="--expires", do="Name a later day")
    return replace(terms, licence=licence.strip() if licence else None, not_before=first, expires=last)


def _moment(text: str | None, flag: str) -> str | None:
    if text is None:
        return None
    moment = f"{text}T00:00:00Z" if _DAY.fullmatch(text) else text
    if seconds_of(moment) is None:
        raise PackagingError(
            f"{text!r:.60} is not a date", where=flag, do="Write it as 2027-01-31, or 2027-01-31T12:00:00Z, in UTC"
        )
    return moment


def refuse_past(terms: BundleTerms, now_s: float | None = None) -> None:
    """Raises PackagingError for expired terms. now_s: since 1970, None for this machine's clock."""
    now = time.time() if now_s is None else now_s
    last = None if terms.expires is None else seconds_of(terms.expires)
    if last is not None and last <= now:
        raise PackagingError(
            f"{terms.expires} is past, and no board would install the bundles: it is {moment_of(now)} by this "
            f"machine's clock",
            where="--expires",
            do="Name a later day, of which the first second counts, or a moment, such as 2027-01-31T12:00:00Z, in UTC",
        )


@dataclass(frozen=True)
class SigningOptions:
    """Who signs.

    ask: asks a person for the passphrase of a key file; None if it cannot be asked for.
    warn: called with the file of a private key that other users could read or write.
    """

    sign: tuple[str, ...] = option(
        (),
        "Sign with this key: a name from `edgekit keys list`, or the PEM file of an Ed25519 private key; repeatable.",
        metavar="KEY",
        names="keys",
        link="#signing",
    )
    signer: str | None = option(
        None,
        "Command that signs for the public keys of --sign: it reads the bytes from standard input, or from the file "
        "that replaces {}, and prints the signature.",
        metavar="CMD",
    )
    passphrase_file: Path | None = option(
        None,
        f"Read the keys' passphrase from the first line of FILE. Default: ${PASSPHRASE}, or a prompt on a terminal.",
        metavar="FILE",
    )
    ask: Callable[[Path], bytes | None] | None = None
    warn: Callable[[Path], None] | None = None

    def passphrase(self, key: Path) -> bytes | None:
        """Return the passphrase of an encrypted key. Raises KeysError."""
        return given_passphrase(self.passphrase_file) or (self.ask(key) if self.ask is not None else None)


def given_passphrase(file: Path | None) -> bytes | None:
    """The file's first line, else the environment's; None for neither. Raises KeysError."""
    if file is None:
        return os.environ.get(PASSPHRASE, "").encode() or None
    try:
        with file.open("rb") as stream:
            line = stream.readline(4096).rstrip(b"\r\n")
    except OSError as error:
        raise KeysError(f"the passphrase cannot be read: {error.strerror or error}", where=str(file)) from error
    if not line:
        raise KeysError("the first line should be a passphrase, and is empty", where=str(file))
    return line
