"""edgekit host: answer for devices that would be late."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli.options import BUNDLE, FiniteRange, allow_unsigned, as_json, print_json, trust
from edgekit.cli.secret_options import secret

if TYPE_CHECKING:
    import socket

    from edgekit.host import Repository

__all__ = ["host"]


class _Listen(click.ParamType):  # type: ignore[type-arg]  # generic only in newer clicks
    """`127.0.0.1:8000`, `[::1]:8000` or `box:0` -> (host, port)."""

    name = "address:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        name, colon, port = str(value).rpartition(":")
        bracketed = name.startswith("[") and name.endswith("]")
        if not colon or not name or (":" in name and not bracketed) or not port.isascii() or not port.isdigit():
            self.fail(f"{value!r} is no address and port; write it as 127.0.0.1:8000 or [::1]:8000", param, ctx)
        if int(port) > 65535:
            self.fail(f"{port} is no port; ports end at 65535", param, ctx)
        return name.strip("[]"), int(port)


@click.group()
def host() -> None:
    """Answer for devices that would be late."""


@host.command()
@click.argument("bundles", type=BUNDLE, nargs=-1, required=True, metavar="BUNDLE...")
@click.option(
    "--listen",
    type=_Listen(),
    default="127.0.0.1:8000",
    show_default=True,
    metavar="ADDRESS:PORT",
    help="Where to listen; port 0 for any free one. There is no TLS and no password: keep it on loopback or behind a "
    "proxy.",
)
@click.option("--threads", type=click.IntRange(1), metavar="N", help="Engine threads. Default: what the bundle says.")
@click.option(
    "--cache-mb",
    type=FiniteRange(0),
    default=64.0,
    show_default=True,
    metavar="MB",
    help="Answers kept, a bundle.",
)
@trust
@allow_unsigned
@secret
@as_json
def serve(bundles: tuple[Path, ...], listen: tuple[str, int], cache_mb: float, as_json: bool, **options: Any) -> int:
    """Serve each BUNDLE over the Open Inference Protocol v2, until Ctrl-C or SIGTERM.

    What was asked by then is still answered. With --json one line is printed, when requests are answered:
    {"listening": URL, "models": [...]}.

    \b
    edgekit host serve net.ekb --listen 127.0.0.1:8000
    """
    from edgekit.host import Repository, bind
    from edgekit.host import serve as serve_until_told
    from edgekit_runtime import CacheOptions

    options |= {
        "cache": CacheOptions(memory_mb=cache_mb),
        "opening": lambda path: click.echo(f"opening {path}", err=True),
    }
    with (
        bind(*listen) as sock,  # first: a port that is taken should not cost the time of opening a bundle
        Repository.open(bundles, **options) as repository,
    ):
        code, said = serve_until_told(repository, sock, ready=lambda: _announce(repository, sock, as_json))
    click.echo(f"stopped: {said}", err=True)
    return code


def _announce(repository: Repository, sock: socket.socket, as_json: bool) -> None:
    name, port = sock.getsockname()[:2]
    url = f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"
    served = [(one.manifest, one.model.describe()) for one in repository.all()]
    if as_json:
        models = [
            {"name": m.name, "version": m.version, "recipe": d["recipe"], "contract_digest": m.contract_digest}
            for m, d in served
        ]
        print_json({"listening": url, "models": models})
        return
    for manifest, described in served:
        engine = described["engine"]
        click.echo(
            f"{manifest.name} version {manifest.version}: {described['recipe']} with {engine['name']} "
            f"{engine['version']}, threads {engine['threads']}"
        )
    click.echo(f"listening on {url}; Ctrl-C stops")
