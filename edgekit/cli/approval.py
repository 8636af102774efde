"""Whether what is about to be shipped will load there, asked of `edgekit check` before anything is copied."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit_runtime.errors import EdgekitError, SecretError

if TYPE_CHECKING:
    from edgekit.shipping.package import Approve
    from edgekit_profiles import Profile

__all__ = ["CheckFailedError", "approve", "approver"]


class CheckFailedError(EdgekitError):
    """The check found that the bundle will not load on the board, or not answer there as it did here."""

    code = "check-failed"


def approver(bundle: Path, secret: str | None = None, *, skip: bool) -> Approve | None:
    """`approve`, or None where it is left out. Raises SecretError (secret-missing) for an encrypted bundle whose key is
    not here: now, and not after wheels were fetched."""
    if skip:
        return None
    from edgekit_runtime.bundle import read_bundle
    from edgekit_runtime.bundle.secrets import find_secret

    try:
        read_bundle(bundle, secret=secret or find_secret)
    except SecretError as error:
        if error.code != "secret-missing":
            raise
        do = (
            "Pass --secret or set EDGEKIT_SECRET=file:PATH, so that it can be checked; "
            "or ship it unchecked with --no-check"
        )
        raise SecretError(error.what, where=error.where, do=do, code="secret-missing") from None
    return partial(approve, secret=secret)


def approve(bundle: Path, profile: Profile, engine: str, version: str, secret: str | None = None) -> None:
    """What the files tell about the artifact that answers with that engine and version; nothing is run.

    Raises CheckFailedError with the first finding that is an error, and its code.
    """
    from edgekit.checking import Request, check
    from edgekit_runtime.bundle import read_bundle
    from edgekit_runtime.engines.registry import ENGINES

    entries = read_bundle(bundle).manifest.artifacts  # the primary one stands first
    answers = next((one.recipe for one in entries if one.format in ENGINES[engine].formats), entries[0].recipe)
    checked = check(Request(bundle, profile, ((engine, version),), replay=False, secret=secret))
    errors = [one for one in checked.findings if one.level == "error" and one.artifact in ("", answers)]
    if errors:
        more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
        raise CheckFailedError(
            f"{errors[0].what} ({errors[0].code}{more})",
            where=f"{bundle} on {profile.name}",
            do=f"Run: edgekit doctor {errors[0].code}; or ship it all the same with --no-check",
        )
