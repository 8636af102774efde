"""Roots to do something to, and what may answer before and after: each made once, and copied for every point.

    scene = SCENES["install"]
    root = kit.lay(scene, folder / "1")
    kit.forks.run([scene.operation(kit, root)])

Rule: a root is made by the command line and by opening it, in the way that a user comes to one.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from install_faults.forks import Forks
from install_faults.serving import Served
from tiny import bundle

from edgekit.packaging.bundle_options import BundleTerms
from edgekit.packaging.writer import SigningKey

Step = list[Any]
VERSIONS = {"1": "tflite-int8", "2": "tflite-f32", "3": "tflite-int8"}


@dataclass
class Kit:
    """Three signed bundles of one network, of rising rollout_seq, and the key that they are trusted by."""

    folder: Path
    forks: Forks
    bundles: dict[str, Path]
    trust: Path
    key: SigningKey
    _made: dict[str, Path] = field(default_factory=dict)
    _served: dict[str, Served] = field(default_factory=dict)

    def served(self, version: str) -> Served:
        """A server of it, until this process ends."""
        if version not in self._served:
            self._served[version] = Served(self.bundles[version]).__enter__()
        return self._served[version]

    def install(self, version: str, root: Path, *more: str) -> Step:
        return self.install_from(str(self.bundles[version]), root, *more)

    def install_from(self, source: str, root: Path, *more: str) -> Step:
        return ["cli", "install", source, "--root", str(root), "--trust", str(self.trust), "--profile", "x86-64", *more]

    def lay(self, scene: Scene, folder: Path) -> Path:
        """A copy of the scene's root, where in the folder it says."""
        if scene.name not in self._made:
            made = self.folder / f"root-{scene.name}"
            for step in scene.make(self, made):
                ended = self.forks.run([step])
                if step[0] == "start":
                    assert ended.code == -signal.SIGKILL, step
                else:
                    assert ended.note.get("code", 0) == 0, (step, ended.note)
                    assert "error" not in ended.note, (step, ended.note)
            scene.spoil(made)
            self._made[scene.name] = made
        root = folder / scene.where
        if self._made[scene.name].exists():
            shutil.copytree(self._made[scene.name], root, symlinks=True)
        else:
            folder.mkdir(parents=True, exist_ok=True)
        return root


def make_kit(folder: Path, forks: Forks) -> Kit:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    folder.mkdir(parents=True, exist_ok=True)
    private = Ed25519PrivateKey.generate()
    trust = folder / "key.pub.pem"
    trust.write_bytes(
        private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    bundles = {}
    for version, recipe in VERSIONS.items():
        (folder / version).mkdir()
        terms = BundleTerms(rollout_seq=int(version))
        bundles[version] = bundle(folder / version, recipe, key=SigningKey(private), version=version, terms=terms)
    kit = Kit(folder, forks, bundles, trust, SigningKey(private))
    for version in VERSIONS:  # what an engine is measured to be is remembered: every later run finds the same
        assert forks.run([kit.install(version, folder / "warm")]).note["code"] == 0
    return kit


def _nothing(root: Path) -> None:
    pass


@dataclass(frozen=True)
class Scene:
    """before, after: the versions that answer; None for nothing. operation: what is done. again: what ends in `after`,
    whatever became of the operation: only the last step must succeed. spoil: what a root has that no command puts
    there.
    also: what may answer besides where the disk fails, because a trial that cannot be opened is given up. where: the
    root, below the folder that a point has for itself.
    """

    name: str
    before: str | None
    after: str | None
    make: Callable[[Kit, Path], list[Step]]
    operation: Callable[[Kit, Path], Step]
    again: Callable[[Kit, Path], list[Step]]
    spoil: Callable[[Path], None] = _nothing
    also: str | None = None
    where: str = "root"


def _root(command: str, *arguments: str) -> Callable[[Kit, Path], Step]:
    return lambda kit, root: ["cli", command, *arguments, "--root", str(root)]


def _installs(*versions: str) -> Callable[[Kit, Path], list[Step]]:
    return lambda kit, root: [kit.install(version, root) for version in versions]


def _install(version: str, *more: str) -> Callable[[Kit, Path], Step]:
    return lambda kit, root: kit.install(version, root, *more)


def _on_trial(kit: Kit, root: Path) -> list[Step]:
    return [kit.install("1", root), kit.install("2", root, "--trial", "app")]


def _starting(times: int) -> Callable[[Kit, Path], list[Step]]:
    return lambda kit, root: [*_on_trial(kit, root), *([["start", str(root)]] * times)]


def _litter(root: Path) -> None:
    """What a cut leaves: a download, drafts, an object and a generation that nothing names."""
    (root / "incoming" / f"{'ab' * 16}.part").write_bytes(b"half a bundle")
    (root / "incoming" / f"{'ab' * 16}.json").write_text('{"validator": "\\"1\\""}')
    (root / "incoming" / f"{'cd' * 16}.json.new").write_text("{")
    (root / "objects" / f"{'e' * 64}.ekb").write_bytes(b"of no use")
    shutil.copytree(root / "generations" / "1", root / "generations" / "9.new", symlinks=True)
    (root / "current.new").symlink_to("generations/1")
    (root / "journal.json.new").write_text("{")


def _then(*steps: Callable[[Kit, Path], Step]) -> Callable[[Kit, Path], list[Step]]:
    return lambda kit, root: [step(kit, root) for step in steps]


def _watch(kit: Kit, root: Path) -> Step:
    return ["watch", str(root), 3]


def _go_to(number: str) -> Callable[[Kit, Path], Step]:
    return _root("rollback", "--to", number)


_COMMIT = _root("install", "--commit")
_TRIED = _install("2", "--trial", "app")
_BACK = _then(_root("rollback"), _go_to("1"))

SCENES = {
    scene.name: scene
    for scene in (
        Scene("first install", None, "1", _installs(), _install("1"), _then(_install("1"))),
        Scene("install", "2", "3", _installs("1", "2"), _install("3"), _then(_install("3"))),
        Scene("install on trial", "1", "2", _installs("1"), _TRIED, _then(_TRIED, _COMMIT)),
        Scene("commit", "2", "2", _on_trial, _COMMIT, _then(_go_to("2"))),
        Scene("activate", "2", "1", _installs("1", "2"), _go_to("1"), _then(_go_to("1"))),
        Scene("roll back", "2", "1", _installs("1", "2"), _root("rollback"), _then(_go_to("1"))),
        Scene("give a trial up", "2", "1", _on_trial, _root("rollback"), _BACK),
        Scene("activate against a trial", "2", "1", _on_trial, _go_to("1"), _then(_go_to("1"))),
        Scene("collect", "2", "2", _installs("1", "2"), _root("status"), _then(_root("status")), _litter),
        Scene("third failed start", "1", "1", _starting(3), _root("status"), _then(_root("status"))),
        Scene("verdict of a trial", "2", "2", _on_trial, _watch, _then(_COMMIT, _install("2")), also="1"),
    )
}


def tree(root: Path) -> list[str]:
    """Every name below, folders and links too."""
    found = []
    for folder, folders, files in os.walk(root):
        found += [str((Path(folder) / name).relative_to(root)) for name in (*folders, *files)]
    return sorted(found)
