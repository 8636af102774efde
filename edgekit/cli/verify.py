"""edgekit verify: is a bundle to be trusted, and why?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli.options import BUNDLE, allow_unsigned, as_json, print_json, trust
from edgekit.cli.secret_options import secret

if TYPE_CHECKING:
    from edgekit.verifying import Verification

__all__ = ["verify"]


@click.command()
@click.argument("bundle", type=BUNDLE, metavar="BUNDLE|ROOT")
@trust
@allow_unsigned
@click.option(
    "--profile",
    metavar="NAME",
    help="A board that the bundle must be for. Default: what the ROOT was told, else what is found here, as a remark.",
)
@secret
@click.option("--load/--no-load", default=True, help="Whether to load it in a child and replay its golden examples.")
@as_json
def verify(bundle: Path, as_json: bool, profile: str | None, **options: Any) -> int:
    """Check everything in BUNDLE, or in what answers in a ROOT of `edgekit install`, and say line by line what was found:
    the file's digests, who signed it, dates and by which clock, the board, the structure of every model file and its
    operators, the golden examples. At last a child loads it, within limits of memory and time, and replays them.

    Exits 1 with the first reason against it. A machine that was never told whom to trust says so, and goes on only with
    --allow-unsigned.
    """
    from edgekit import verifying
    from edgekit.cli.install import board_of, remembered

    asked = verifying.Asked(
        trust=options["trust"],
        allow_unsigned=options["allow_unsigned"],
        board=board_of(profile or remembered(bundle), quiet=True),
        named=profile is not None,
        secret=options["secret"],
        load=options["load"],
    )
    verification = verifying.Verification(bundle, asked)
    for check in verification:
        if not as_json:
            mark = {True: "ok", False: "REFUSED", None: "-"}[check.ok]
            click.echo(f"{mark:<8} {check.name:<18} {check.told}")
    if as_json:
        print_json(verification.as_json())
        return 0 if verification.error is None else 1
    if verification.error is not None:
        raise verification.error
    click.echo(_verdict(verification))
    return 0


def _verdict(verification: Verification) -> str:
    rest = [one.name for one in verification.checks if one.ok is None and one.name != "signature"]
    aside = f"; see the lines marked - ({', '.join(rest)})" if rest else ""
    if verification.trusted and verification.vouched is not None:
        by = ", by what this root was told; --trust asks somebody else" if verification.vouched.by_the_root else ""
        return f"trusted{by}{aside}"
    return f"not trusted: nobody vouches for it, and --allow-unsigned let it pass; all else was checked{aside}"
