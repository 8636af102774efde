"""Keys that bundles are encrypted with: NAME.secret in the folder of a person's keys.

made = create_secret(KeyFolder(default_folder()), "camera")      # KeysError where 'camera' is there already
made.path, made.id

Rules: 32 bytes of the system's random source, in hex, below a remark that says what it is; 0600 in a folder 0700. Nothing is
ever overwritten: a lost key takes every bundle with it that was encrypted with it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from edgekit.keys.folder import KeyFolder
from edgekit_runtime.bundle.cipher import KEY_BYTES
from edgekit_runtime.bundle.secrets import Secret, load_secret
from edgekit_runtime.errors import SecretError

__all__ = ["SecretEntry", "create_secret", "secrets_in"]

ENDING = ".secret"


@dataclass(frozen=True)
class SecretEntry:
    """id: what names the key in bundles and messages; empty where the file holds none. trouble: why not."""

    name: str
    path: Path
    id: str
    trouble: str = ""


def create_secret(folder: KeyFolder, name: str) -> SecretEntry:
    """A new key. Raises KeysError where the name is taken, makes no file's name, or the folder is open to others."""
    secret = Secret([os.urandom(KEY_BYTES)])
    (key,) = secret.handed()
    text = f"# edgekit: key {secret.id} of encrypted bundles. Who has it can read them.\n{key}\n"
    path = folder.add(f"{name}{ENDING}", name, text.encode())
    return SecretEntry(name, path, secret.id)


def secrets_in(folder: KeyFolder) -> tuple[SecretEntry, ...]:
    """Every one of the folder, by name."""
    try:
        files = sorted(file for file in folder.path.iterdir() if file.name.endswith(ENDING))
    except OSError:
        return ()
    return tuple(_entry(file) for file in files)


def _entry(file: Path) -> SecretEntry:
    name = file.name.removesuffix(ENDING)
    try:
        return SecretEntry(name, file, load_secret(f"file:{file}").id)
    except SecretError as error:
        return SecretEntry(name, file, "", error.what)
