"""Who signs, as options that mean the same in every command; a passphrase never stands on a command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgekit.cli import completion
from edgekit.cli.options import PATH

if TYPE_CHECKING:
    from edgekit.keys import KeyFolder, Signing

__all__ = ["PASSPHRASE", "folder", "folder_of", "passphrase_file", "sign", "signer", "signing_of", "warn_open"]

Command = TypeVar("Command", bound=Callable[..., Any])

PASSPHRASE = "EDGEKIT_PASSPHRASE"

sign = click.option(
    "--sign",
    "sign",
    shell_complete=completion.keys,
    multiple=True,
    metavar="KEY",
    help="Sign with this key: a name from `edgekit keys list`, or the PEM file of an Ed25519 private key; repeatable.",
)
signer = click.option(
    "--signer",
    metavar="CMD",
    help="A command that signs for the keys of --sign that are public ones: it reads the bytes on its standard input, or in "
    "the file that {} stands for, and prints the signature.",
)
passphrase_file = click.option(
    "--passphrase-file",
    type=PATH,
    metavar="FILE",
    help=f"The passphrase of the keys is the first line of FILE. Else it is ${PASSPHRASE}, or asked for on a terminal.",
)
folder = click.option(
    "--folder",
    type=PATH,
    metavar="DIR",
    help="Where keys are kept. Default: $EDGEKIT_KEYS, or edgekit/keys in ~/.config.",
)


def folder_of(path: Path | None) -> KeyFolder:
    from edgekit.keys import KeyFolder, default_folder

    return KeyFolder(path or default_folder())


def signing_of(keys: tuple[str, ...], signer: str | None, passphrase_file: Path | None) -> Signing:
    """What --sign, --signer and --passphrase-file say together."""
    from edgekit.keys import Signing

    if signer is not None and not keys:
        raise click.UsageError("--signer signs for a public key: name that with --sign.")
    return Signing(keys, signer, lambda key: passphrase(passphrase_file, f"passphrase of {key}"), warn_open)


def warn_open(key: Path) -> None:
    """On stderr, where it spoils no --json."""
    click.echo(f"warning: other users can read {key}. Run: chmod 600 {key}", err=True)


def passphrase(file: Path | None, prompt: str, *, twice: bool = False) -> bytes | None:
    """From the file, the environment or a person, in this order; None where there is none of them. Raises KeysError."""
    if file is not None:
        return _first_line(file)
    if given := os.environ.get(PASSPHRASE):
        return given.encode()
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    return str(click.prompt(prompt, hide_input=True, confirmation_prompt=twice, err=True)).encode()


def _first_line(file: Path) -> bytes:
    from edgekit.keys import KeysError

    try:
        with file.open("rb") as stream:
            line = stream.readline(4096).rstrip(b"\r\n")
    except OSError as error:
        raise KeysError(f"the passphrase cannot be read: {error.strerror or error}", where=str(file)) from error
    if not line:
        raise KeysError("the first line is empty, and should be a passphrase", where=str(file))
    return line
