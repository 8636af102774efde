"""Bundles to install, made in milliseconds, and what is the same for every test that installs one."""

from __future__ import annotations

import json
from pathlib import Path

import tiny

from edgekit.packaging.assemble import assemble
from edgekit.packaging.bundle_options import BundleTerms
from edgekit.packaging.writer import SigningKey, write_bundle
from edgekit_runtime.bundle.manifest import Promise
from edgekit_runtime.install import BoardIdentity, InstallOptions, TrialOptions

BOARD = BoardIdentity(("x86-64",))
QUICK = TrialOptions(answers=25, most_s=5.0, least=20)
UNSIGNED = InstallOptions(allow_unsigned=True, board=BOARD, proving=QUICK)


class Maker:
    """The same arguments give the same file."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._known = folder, {}

    def __call__(
        self,
        version: str = "1",
        terms: BundleTerms | None = None,
        promise: Promise | None = None,
        key: SigningKey | None = None,
        **changes,
    ) -> Path:
        asked = (version, terms, promise, None if key is None else key.keyid, repr(sorted(changes.items())))
        if asked not in self._known:
            path = self._folder / f"tiny-{version}-{len(self._known)}.ekb"
            content = tiny.content(version=version, terms=terms or BundleTerms(), promise=promise, **changes)
            draft, manifest = assemble(content)
            write_bundle(path, draft, manifest, [key] if key else [])
            self._known[asked] = path
        return self._known[asked]


def new_key(folder: Path, name: str = "alice") -> tuple[SigningKey, Path]:
    """A private key, and the file with its public half."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    file = folder / f"{name}.pub.pem"
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    file.write_bytes(private.public_key().public_bytes(encoding, form))
    return SigningKey(private), file


def events(root: Path) -> list[dict]:
    file = root / "events.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def current(root: Path) -> str | None:
    """Where `current` leads, as it is written."""
    link = root / "current"
    return str(link.readlink()) if link.is_symlink() else None


def names(folder: Path) -> list[str]:
    """What lies in it."""
    return sorted(entry.name for entry in folder.iterdir())
