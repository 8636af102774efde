"""Turn a fetched file into an object, and an object into a generation, each atomically.

    adopt(root, part, sha256)
    stage(root, generation_of(attempt, bundle))

Rules: a folder is made beside its name and moved there, flushed before and after; what a cut left complete is taken as
it is; a link is never followed, and what edgekit did not make is an error.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit_runtime.bundle.codec import json_text
from edgekit_runtime.errors import InstallError
from edgekit_runtime.install.disk import (
    drop_folder,
    drop_twin,
    make_folder,
    make_link,
    move,
    move_between,
    open_regular,
    remove,
    storage_errors,
    sync_folder,
    write_file,
)
from edgekit_runtime.install.layout import Generation, Root

if TYPE_CHECKING:
    from edgekit_runtime.bundle import Bundle
    from edgekit_runtime.install.journal import Attempt

__all__ = ["adopt", "generation_of", "is_whole", "stage", "still_here"]

_READ_BYTES = 1 << 20


def generation_of(attempt: Attempt, bundle: Bundle) -> Generation:
    """What is written down of it."""
    manifest, trust_decision = bundle.manifest, bundle.trust_decision
    return Generation(
        number=attempt.generation,
        object=attempt.object,
        header=attempt.header,
        bundle=attempt.bundle,
        name=manifest.name,
        version=manifest.version,
        recipe=bundle.artifact().recipe,
        profile=manifest.target.profile,
        size=bundle.size,
        source=attempt.source,
        at=attempt.began,
        told=trust_decision.lasting_text,
        seq=manifest.rollout_seq,
        signed_by=trust_decision.signers,
        unsigned=not trust_decision.trusted,
    )


def stage(root: Root, generation: Generation) -> None:
    """The generation's folder, complete or not there.
    One that a cut left complete stays, and nothing else may be there.
    """
    folder = root.generation(generation.number)
    draft = folder.with_name(f"{folder.name}.new")
    if os.path.lexists(folder):
        try:
            complete = not folder.is_symlink() and root.record(generation.number) == generation
        except InstallError as error:
            if error.code != "no-generation":
                raise
            complete = False
        if complete:
            with storage_errors(folder):
                sync_folder(root.generations)
            return
        what = "a generation that was not made yet stands there"
        raise InstallError(what, where=str(folder), do="Install again, which takes the next number", code="planted")
    drop_folder(draft)
    make_folder(draft)
    write_file(draft / "generation.json", json_text(generation))
    with storage_errors(draft):
        make_link(draft / "bundle.ekb", f"../../objects/{generation.object}.ekb")
        sync_folder(draft)
    move(draft, folder)


def still_here(root: Root, part: Path, sha256: str) -> bool:
    """Whether what was fetched is.
    A power cut may take it on its way from one folder to the other."""
    return os.path.lexists(part) or os.path.lexists(root.object(sha256))


def adopt(root: Root, part: Path, sha256: str) -> Path:
    """What was fetched becomes an object.
    One that is there and sound stays; one that was damaged is replaced."""
    path = root.object(sha256)
    with storage_errors(path):
        drop_twin(part, path)
        if not os.path.lexists(part):  # moved by a run that was killed before that was flushed
            sync_folder(root.objects)
            sync_folder(root.incoming)
            return path
        try:
            if _sha256(path) == sha256:
                sync_folder(root.objects)
                remove(part)
                return path
        except FileNotFoundError:
            pass
        descriptor = open_regular(part)
        try:
            os.fchmod(descriptor, 0o444)
        finally:
            os.close(descriptor)
        move_between(part, path)
    return path


def is_whole(root: Root, sha256: str) -> bool:
    """Whether the object is there, and is what it was."""
    try:
        return _sha256(root.object(sha256)) == sha256
    except (OSError, InstallError):
        return False


def _sha256(path: Path) -> str:
    """Of a file of ours. Raises OSError, InstallError (planted)."""
    digest, descriptor = hashlib.sha256(), open_regular(path)
    try:
        while chunk := os.read(descriptor, _READ_BYTES):
            digest.update(chunk)
    finally:
        os.close(descriptor)
    return digest.hexdigest()
