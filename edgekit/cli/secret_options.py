"""--secret and --encrypt: where the key of encrypted bundles is.

Never the key itself, which is refused as an argument.
"""

from __future__ import annotations

from typing import Any

import click

__all__ = ["encrypt", "secret"]


class _Source(click.ParamType):  # type: ignore[type-arg]  # generic only in newer clicks
    """`file:PATH`, `env:NAME`, `cmd:COMMAND`, or the path of a file. Raises SecretError (secret-format), which repeats
    no key.
    """

    name = "source"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from edgekit_runtime.bundle.secrets import parse_source

        parse_source(value)
        return str(value)


secret = click.option(
    "--secret",
    type=_Source(),
    metavar="SOURCE",
    help="Where the key of an encrypted bundle is: file:PATH, env:NAME or cmd:COMMAND. Default: what EDGEKIT_SECRET "
    "names, ~/.config/edgekit/secret, /etc/edgekit/secret.",
)
encrypt = click.option(
    "--encrypt",
    type=_Source(),
    metavar="SOURCE",
    help="Encrypt what the bundles hold with the key at file:PATH, env:NAME or cmd:COMMAND (make one: edgekit keys "
    "secret). Labels and names stay readable.",
)
