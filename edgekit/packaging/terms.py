"""What a bundle says about where and when it may be installed, and under which licence.

    terms = terms_of(licence="Apache-2.0", rollout_seq=7, expires="2027-01-31", compatible=("raspberry-pi-4",))
    refuse_past(terms)

Rules: what a person typed is refused here or it is what the manifest holds; a day stands for its first second, UTC. What no
board could ever install is refused before it is built, by this machine's clock, which the error names.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from edgekit.errors import PackagingError
from edgekit_runtime.bundle.limits import MAX_TEXT
from edgekit_runtime.strict_json import MAX_NUMBER
from edgekit_runtime.trust.store import moment_of, seconds_of

__all__ = ["Terms", "refuse_past", "terms_of"]

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True)
class Terms:
    """As in `Manifest`. compatible: profiles beside the one that the bundle is built for."""

    licence: str | None = None
    rollout_seq: int | None = None
    not_before: str | None = None
    expires: str | None = None
    compatible: tuple[str, ...] = ()

    def boards(self, target: str) -> tuple[str, ...]:
        """The profiles that may install it, the one it is built for first."""
        return (target, *sorted(set(self.compatible) - {target}))


def terms_of(
    *,
    licence: str | None = None,
    rollout_seq: int | None = None,
    not_before: str | None = None,
    expires: str | None = None,
    compatible: Sequence[str] = (),
) -> Terms:
    """Checked. not_before, expires: a day, or a second as "2027-01-31T12:00:00Z". Raises PackagingError naming the option."""
    if licence is not None and not (licence.strip() and len(licence) <= MAX_TEXT and licence.isprintable()):
        raise PackagingError(
            f"a licence is one line of 1 to {MAX_TEXT} characters",
            where="--licence",
            do="Name it, such as Apache-2.0, or where its text stands",
        )
    if rollout_seq is not None and not 0 <= rollout_seq <= MAX_NUMBER:
        raise PackagingError(
            f"{rollout_seq} is not from 0 to {MAX_NUMBER}", where="--rollout-seq", do="Count up from 1, one a roll-out"
        )
    first, last = _moment(not_before, "--not-before"), _moment(expires, "--expires")
    if first is not None and last is not None and last <= first:
        raise PackagingError(f"{last} is not after --not-before {first}", where="--expires", do="Name a later day")
    return Terms(licence.strip() if licence else None, rollout_seq, first, last, tuple(compatible))


def refuse_past(terms: Terms, now_s: float | None = None) -> None:
    """now_s: seconds since 1970, None for this machine's clock. Raises PackagingError where no board could install the bundle
    any more."""
    now = time.time() if now_s is None else now_s
    last = None if terms.expires is None else seconds_of(terms.expires)
    if last is not None and last <= now:
        raise PackagingError(
            f"{terms.expires} is past, and no board would install the bundles: it is {moment_of(now)} by this machine's clock",
            where="--expires",
            do="Name a later day, of which the first second counts, or a moment, such as 2027-01-31T12:00:00Z, in UTC",
        )


def _moment(text: str | None, option: str) -> str | None:
    if text is None:
        return None
    moment = f"{text}T00:00:00Z" if _DAY.fullmatch(text) else text
    if seconds_of(moment) is None:
        raise PackagingError(
            f"{text!r:.60} is no day", where=option, do="Write it as 2027-01-31, or 2027-01-31T12:00:00Z, in UTC"
        )
    return moment
