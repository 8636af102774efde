"""edgekit host: answer requests that a device would answer too late."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import options as opt
from edgekit.cli.printing import print_result

if TYPE_CHECKING:
    import socket

    from edgekit.host.export import Backend, Server
    from edgekit.host.models import Repository


class _ListenType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer clicks
    """`127.0.0.1:8000`, `[::1]:8000` or `box:0` -> (host, port)."""

    name = "address:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        name, colon, port = str(value).rpartition(":")
        bracketed = name.startswith("[") and name.endswith("]")
        if not colon or not name or (":" in name and not bracketed) or not port.isascii() or not port.isdigit():
            self.fail(f"{value!r} is not an address and port; write it as 127.0.0.1:8000 or [::1]:8000", param, ctx)
        if int(port) > 65535:
            self.fail(f"{port} is not a port: the highest is 65535", param, ctx)
        return name.strip("[]"), int(port)


@click.group()
def host() -> None:
    """Serve models as a fallback for slow devices."""


@host.command()
@click.argument("bundles", type=opt.BUNDLE, nargs=-1, metavar="[BUNDLE|ROOT]...")
@opt.listen(
    type=_ListenType(),
    default="127.0.0.1:8000",
    help="Address to listen on; port 0 for any free one. Beyond loopback it needs --certificate.",
)
@opt.certificate(help="Serve HTTPS with this certificate (PEM).")
@opt.private_key()
@click.option(
    "--client-ca",
    type=opt.PATH,
    metavar="FILE",
    help="Serve only clients with a certificate from these authorities (PEM).",
)
@click.option(
    "--tokens",
    type=opt.PATH,
    metavar="FILE",
    help="Serve only clients with a bearer token. One per line: NAME SHA256-OF-TOKEN REQUESTS-A-SECOND [admin].",
)
@opt.unencrypted()
@click.option(
    "--models", type=opt.PATH, metavar="DIR", help="Folder of bundles that an admin token may load and unload by name."
)
@opt.threads(help="Threads per engine. Default: the fastest; with several instances, the cores divided by them.")
@click.option(
    "--instances", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N", help="Engines per bundle."
)
@click.option(
    "--cache-mb",
    type=opt.FiniteRange(0),
    default=64.0,
    show_default=True,
    metavar="MB",
    help="Memory for cached answers, per instance of a bundle.",
)
@click.option("--require-gpu", is_flag=True, help="Refuse to start if no GPU engine runs a bundle.")
@click.option(
    "--cache",
    "shared",
    metavar="URL",
    help="Redis or Valkey cache shared by several hosts, behind each host's memory cache: redis://NAME:6379/0, or "
    "env:NAME for a variable with the URL, including the password.",
)
@click.option(
    "--cache-secret",
    metavar="SOURCE",
    help="Key that encrypts answers in that cache, the same on all hosts: file:PATH, env:NAME or cmd:COMMAND. "
    "Entries with another key are ignored. Default: the key of an encrypted bundle.",
)
@opt.opening
@opt.as_json
def serve(
    bundles: tuple[Path, ...],
    listen: tuple[str, int],
    cache_mb: float,
    shared: str | None,
    cache_secret: str | None,
    require_gpu: bool,
    as_json: bool,
    unencrypted: bool,
    **options: Any,
) -> int:
    """Serve bundles over the Open Inference Protocol v2.

    Serves each BUNDLE, or the active bundle of a ROOT. Ctrl-C or SIGTERM stops it.

    Pending requests are still answered. With --json it prints one line when ready:
    {"listening": URL, "models": [...]}.

    \b
    edgekit host serve net.ekb --listen 127.0.0.1:8000
    edgekit host serve net.ekb --listen 0.0.0.0:8443 --certificate host.pem --tokens tokens.txt
    """
    protection = {name: options.pop(name) for name in ("certificate", "key", "client_ca", "tokens")}
    folder = options.pop("models")
    _check_usage(bundles, folder, unencrypted=unencrypted, **protection)
    if cache_secret is not None and shared is None:
        raise click.UsageError("--cache-secret needs --cache")
    from edgekit.host.models import Repository
    from edgekit.host.server import Protection, bind, check_exposure
    from edgekit.host.server import serve as serve_until_told
    from edgekit.packaging.model_file import bundle_file
    from edgekit_runtime import CacheOptions
    from edgekit_runtime.system.board import cores

    protected = Protection(**protection)
    if options["instances"] > 1 and options["threads"] is None:
        options["threads"] = max(1, cores() // options["instances"])
    options |= {
        "folder": folder,
        "cache": CacheOptions(memory_mb=cache_mb, shared=_cache_url(shared), shared_secret=cache_secret),
        "engine": "gpu" if require_gpu else None,
        "opening": lambda path: click.echo(f"opening {path}", err=True),
    }
    with bind(*listen) as sock:  # first: a port that is taken should not cost the time of opening a bundle
        check_exposure(sock, encrypted=unencrypted or protected.certificate is not None)
        protected.check()
        scheme = "http" if protected.certificate is None else "https"
        with contextlib.ExitStack() as held:
            files = [held.enter_context(bundle_file(path)) for path in bundles]
            repository = held.enter_context(Repository.open(files, **options))
            code, said = serve_until_told(
                repository, sock, lambda: _announce(repository, sock, scheme, as_json), protected
            )
    click.echo(f"stopped: {said}", err=True)
    return code


def _cache_url(given: str | None) -> str | None:
    """Raises BadParameter if the variable is not set, or not the URL of a cache."""
    if given is None:
        return None
    url = os.environ.get(given.removeprefix("env:"), "") if given.startswith("env:") else given
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise click.BadParameter(
            "write redis://NAME:6379/0, or env:NAME for a variable with such a URL", param_hint="--cache"
        )
    return url


def _check_usage(
    bundles: tuple[Path, ...],
    folder: Path | None,
    *,
    certificate: Path | None,
    key: Path | None,
    client_ca: Path | None,
    tokens: Path | None,
    unencrypted: bool,
) -> None:
    """Raises UsageError for options that contradict each other."""
    if not bundles and folder is None:
        raise click.UsageError("name a BUNDLE to serve, or a folder to load from with --models")
    if folder is not None and tokens is None:
        raise click.UsageError("--models needs --tokens: only a token marked admin may load and unload")
    if certificate is None and (key is not None or client_ca is not None):
        raise click.UsageError("--key and --client-ca need --certificate")
    if certificate is not None and unencrypted:
        raise click.UsageError("--unencrypted contradicts --certificate")


@host.command()
@click.argument("bundle", type=opt.BUNDLE, metavar="BUNDLE|ROOT")
@click.option(
    "--for", "server", type=click.Choice(("triton", "kserve")), required=True, help="The server to write for."
)
@opt.output("DIR", "A new directory.", required=True)
@click.option(
    "--backend",
    type=click.Choice(("onnxruntime", "python")),
    default="onnxruntime",
    show_default=True,
    help="Triton's backend. Use python if Triton lacks the onnxruntime backend; its Python then needs onnxruntime.",
)
@click.option(
    "--device", type=click.Choice(("cpu", "gpu")), help="Where instances run. Default: the GPU if the profile has one."
)
@opt.recipe(help="The artifact's recipe. Default: the primary one, or the first in ONNX.")
@click.option("--storage", metavar="URI", help="URI of DIR for KServe: s3://... or pvc://... Default: pvc://NAME.")
@click.option(
    "--url", metavar="URL", help="The server's URL, for the printed Host(...) line.  [default: http://SERVER:8000]"
)
@opt.opening
@opt.as_json
def export(
    bundle: Path,
    server: Server,
    output: Path,
    backend: Backend,
    device: str | None,
    recipe: str | None,
    storage: str | None,
    url: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write the model repository of Triton or KServe.

    It contains BUNDLE, or the active one of a ROOT. Also prints the Host(...) line for devices.

    The artifact of an encrypted bundle is written decrypted.

    \b
    edgekit host export net.ekb --for triton -o repository
    """
    from edgekit.host.export import Export
    from edgekit.host.export import export as write

    read = opt.opened_bundle(bundle, options)
    gpu = None if device is None else device == "gpu"
    made = write(read, output, Export(server, backend, gpu, recipe, storage))
    line = made.host_line(url or "http://SERVER:8000")
    files = [str(path.relative_to(output)) for path in made.files]
    lines = [*map(str, made.files), f"on a device: open_bundle(..., hosts=[{line}])"]
    print_result({"model": made.model, "recipe": made.recipe, "files": files, "host": line}, lines, as_json)
    if read.secret is not None and not as_json:
        click.echo("note: the artifact is written decrypted", err=True)


def _announce(repository: Repository, sock: socket.socket, scheme: str, as_json: bool) -> None:
    name, port = sock.getsockname()[:2]
    url = f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}"
    from edgekit.host.models import not_taken

    served = [(one.manifest, one.model.describe(), len(one.models)) for one in repository.all()]
    models, lines = [], []
    for manifest, described, instances in served:
        engine, others = described["engine"], not_taken(described)
        models.append(
            {
                "name": manifest.name,
                "version": manifest.version,
                "recipe": described["recipe"],
                "contract_digest": manifest.contract_digest,
                "engine": engine["name"],
                "device": engine["device"],
                "instances": instances,
                "not_taken": dict(others),
            }
        )
        runs = "on the GPU" if engine["device"] == "gpu" else f"threads {engine['threads']}"
        runs += f", {instances} instances" if instances > 1 else ""
        by = f"{described['recipe']} with {engine['name']} {engine['version']}"
        lines.append(f"{manifest.name} version {manifest.version}: {by}, {runs}")
        lines += [f"  not with {name}: {why}" for name, why in others]
    print_result({"listening": url, "models": models}, [*lines, f"listening on {url}; Ctrl-C stops"], as_json)
