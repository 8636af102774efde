"""The served bundles by name and version, and the folder to load more from.

    repository = Repository.open(["digits-host-cpu.ekb"], trust=[...])
    repository.find("digits").metadata()
    Folder(Path("/srv/models")).find("digits")                  # the files of every version of that model

Rules:
- two bundles of one name need two versions; without a version the one opened last answers;
- an image input takes the canonical tensor (UINT8, height by width by channels) or the original model's floats;
- each item of a request is answered as if it had come alone;
- a name from a client is compared with manifests, and never becomes part of a path;
- only plain files NAME.ekb directly in the folder count, not links;
- a head is read for listing only: loading verifies the whole bundle.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.host.http1 import RequestError, ServeError
from edgekit_runtime import Answer, CacheOptions, Model, open_bundle
from edgekit_runtime.bundle.checks import parse_manifest
from edgekit_runtime.bundle.header import MAX_HEADER_BYTES, read_header
from edgekit_runtime.bundle.manifest import ArtifactEntry, Manifest
from edgekit_runtime.bundle.secrets import SecretArgument
from edgekit_runtime.contract.kinds import kind_of
from edgekit_runtime.contract.spec import Contract, InputContract
from edgekit_runtime.engines.cuda import absent
from edgekit_runtime.engines.registry import ENGINES, available, on_gpu
from edgekit_runtime.policy.options import EngineName
from edgekit_runtime.remote.oip import datatype_of
from edgekit_runtime.system.closing import ClosedOnExit
from edgekit_runtime.system.errors import EdgekitError, install_command


@dataclass(frozen=True)
class ListedBundle:
    """One bundle file. manifest: None if unreadable, with the `reason`."""

    path: Path
    manifest: Manifest | None
    reason: str = ""


class Folder:
    """A folder of bundles. Raises ServeError if it is not a folder."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise ServeError("not a folder", where=str(path), do="Pass the folder with the bundles")
        self.path = path
        self._seen: dict[Path, tuple[tuple[int, int, int], ListedBundle]] = {}

    def find(self, name: str) -> list[ListedBundle]:
        """The files of one model, by file name."""
        return [one for one in self.bundles() if one.manifest is not None and one.manifest.name == name]

    def bundles(self) -> list[ListedBundle]:
        """Every NAME.ekb in the folder. Unchanged files are not read again."""
        try:
            paths = sorted(self.path.glob("*.ekb"))
        except OSError:
            return []
        seen = {}
        for path in paths:
            try:
                found = path.lstat()
            except OSError:  # gone meanwhile
                continue
            if not stat.S_ISREG(found.st_mode):
                continue
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            before = self._seen.get(path)
            seen[path] = before if before is not None and before[0] == stamp else (stamp, _listed(path))
        self._seen = seen
        return [listed for _, listed in seen.values()]


def _listed(path: Path) -> ListedBundle:
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            head = read_header(file.read(MAX_HEADER_BYTES), path.name)
        return ListedBundle(path, parse_manifest(head.manifest_bytes, path.name))
    except EdgekitError as error:
        return ListedBundle(path, None, error.what)
    except OSError as error:
        return ListedBundle(path, None, f"it cannot be read: {error.strerror}")


MAX_ITEMS = 256
MAX_ANSWER = 256 * 2**20
"""Bytes of one answer's tensors."""
Item = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class ServedModel:
    """One open bundle. copies: of the model, each with its own engine."""

    manifest: Manifest
    model: Model
    copies: tuple[Model, ...] = ()

    @property
    def models(self) -> tuple[Model, ...]:
        return (self.model, *self.copies)

    def close(self) -> None:
        for model in self.models:
            model.close()

    @cached_property
    def artifact(self) -> ArtifactEntry:
        """The artifact chosen when the bundle was opened."""
        blob = self.model.describe()["artifact"]
        return next(entry for entry in self.manifest.artifacts if entry.blob == blob)

    @cached_property
    def answer_bytes(self) -> int:
        """Size of one item's outputs."""
        return sum(math.prod(o.shape) * np.dtype(o.dtype).itemsize for o in self.contract.outputs)

    @property
    def contract(self) -> Contract:
        return self.manifest.contract

    def metadata(self, versions: Sequence[str]) -> dict[str, Any]:
        """The answer to `GET /v2/models/M`. The key `edgekit` is for edgekit devices."""
        described, entry = self.model.describe(), self.artifact
        return {
            "name": self.manifest.name,
            "versions": list(versions),
            "platform": f"{described['engine']['name']}_{entry.format}",
            "inputs": [
                {"name": i.name, "datatype": self._datatype(i), "shape": [-1, *i.shape]} for i in self.contract.inputs
            ],
            "outputs": [
                {"name": o.name, "datatype": datatype_of(np.dtype(o.dtype)), "shape": [-1, *o.shape]}
                for o in self.contract.outputs
            ],
            "edgekit": {
                "model_id": self.manifest.model_id,
                "contract_digest": self.manifest.contract_digest,
                "artifact": entry.blob,
                "recipe": entry.recipe,
                "precision": entry.precision,
            },
        }

    def items(self, inputs: Mapping[str, NDArray[Any]]) -> list[Item]:
        """The request's tensors as single items. Raises RequestError(400)."""
        count = self.count({name: array.shape for name, array in inputs.items()})
        ready = {spec.name: self._converted(spec, inputs[spec.name]) for spec in self.contract.inputs}
        return [{name: array[i] for name, array in ready.items()} for i in range(count)]

    def count(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Number of items in inputs of these shapes. Raises RequestError(400)."""
        names = [spec.name for spec in self.contract.inputs]
        odd = [name for name in shapes if name not in names] or [name for name in names if name not in shapes]
        if odd:
            raise RequestError(400, f"unknown or missing input '{odd[0]}'; inputs: {', '.join(names)}")
        for spec in self.contract.inputs:
            shape = shapes[spec.name]
            if len(shape) != len(spec.shape) + 1 or shape[1:] != tuple(spec.shape):
                takes = [-1, *spec.shape]
                raise RequestError(400, f"input '{spec.name}' has shape {list(shape)}; expected {takes}")
        counts = {shape[0] for shape in shapes.values()}
        if len(counts) > 1:
            raise RequestError(400, "the inputs have different batch sizes")
        (count,) = counts
        most = min(MAX_ITEMS, max(1, MAX_ANSWER // max(1, self.answer_bytes)))
        if not 1 <= count <= most:
            raise RequestError(400, f"{count} items in one request; 1 to {most} are allowed")
        return count

    def outputs(self, answers: Sequence[Answer], wanted: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Answers as batched tensors. wanted: names, empty for all. Raises RequestError(400)."""
        names = [spec.name for spec in self.contract.outputs]
        odd = [name for name in wanted if name not in names]
        if odd:
            raise RequestError(400, f"unknown output '{odd[0]}'; outputs: {', '.join(names)}")
        if len(answers) == 1:
            return {name: answers[0].outputs[name][None] for name in wanted or names}
        return {name: np.stack([answer.outputs[name] for answer in answers]) for name in wanted or names}

    @staticmethod
    def _datatype(spec: InputContract) -> str:
        return datatype_of(kind_of(spec).dtypes(spec)[0])

    @staticmethod
    def _converted(spec: InputContract, array: NDArray[Any]) -> NDArray[Any]:
        original = np.dtype(spec.dtype)
        if array.dtype in kind_of(spec).dtypes(spec):
            return array
        if array.dtype.kind == original.kind == "f":
            return array.astype(original)
        takes = " or ".join(dict.fromkeys(map(datatype_of, kind_of(spec).dtypes(spec))))
        raise RequestError(400, f"input '{spec.name}' is {datatype_of(array.dtype)}; expected {takes}")


class Repository(ClosedOnExit["Repository"]):
    """name -> version -> ServedModel. folder: bundles to load later. opener: opens one of them."""

    def __init__(
        self,
        served: Sequence[ServedModel],
        folder: Folder | None = None,
        opener: Callable[[Path], ServedModel] | None = None,
    ) -> None:
        self.folder, self._opener = folder, opener
        self._models: dict[str, dict[str, ServedModel]] = {}
        for one in served:
            if one.manifest.version in self._models.get(one.manifest.name, {}):
                raise ServeError(
                    f"two bundles contain '{one.manifest.name}' version {one.manifest.version}",
                    do="Serve one of them, or build with another --name or --model-version",
                )
            self.add(one)

    @classmethod
    def open(
        cls,
        paths: Sequence[str | os.PathLike[str]],
        *,
        folder: Path | None = None,
        trust: Sequence[str | os.PathLike[str]] = (),
        allow_unsigned: bool = False,
        secret: SecretArgument = None,
        threads: int | None = None,
        engine: EngineName | None = None,
        cache: CacheOptions | bool = True,
        instances: int = 1,
        opening: Callable[[str], None] = lambda _: None,
    ) -> Repository:
        """Open every bundle, or none. Options as in `open_bundle`.

        instances: engines of each bundle, each with its own threads and cache.
        Raises what `open_bundle` raises, and ServeError.
        """
        model_of = partial(
            open_bundle, trust=trust, allow_unsigned=allow_unsigned, secret=secret, engine=engine, threads=threads,
            cache=cache, settled=True,
        )  # fmt: skip

        def opened(path: str | os.PathLike[str]) -> ServedModel:
            opening(str(path))
            with ExitStack() as stack:
                models = [stack.enter_context(model_of(path))]
                manifest = models[0].manifest
                if manifest.contract.state != "none":  # a request belongs to no session that could keep it
                    raise ServeError(
                        "the model is stateful, and a host keeps no sessions",
                        where=str(path),
                        do="Run it on the device with model.session()",
                    )
                models += [stack.enter_context(model_of(path)) for _ in range(instances - 1)]
                if len({model.describe()["artifact"] for model in models}) > 1:
                    raise ServeError(
                        "its instances run different artifacts and would answer differently",
                        where=str(path),
                        do="Try again; if it repeats, set EDGEKIT_STATE_DIR to a writable folder",
                    )
                stack.pop_all()
            return ServedModel(manifest, models[0], tuple(models[1:]))

        kept = Folder(folder) if folder is not None else None
        served: list[ServedModel] = []
        try:
            for path in paths:
                served.append(opened(path))
            return cls(served, kept, opened)
        except BaseException:
            for each in served:
                each.close()
            raise

    def open_one(self, path: Path) -> ServedModel:
        """Open a bundle of the folder without serving it. Raises as `open` does."""
        assert self._opener is not None
        return self._opener(path)

    def add(self, served: ServedModel) -> ServedModel | None:
        """Serve a bundle as its model's default version; returns the one it replaces."""
        versions = self._models.setdefault(served.manifest.name, {})
        before = versions.pop(served.manifest.version, None)
        versions[served.manifest.version] = served
        return before

    def remove(self, name: str, version: str | None = None) -> list[ServedModel]:
        """Stop serving one version, or all; returns them still open. Raises RequestError(404)."""
        gone = [self.find(name, version)] if version is not None else list(self._models.get(name, {}).values())
        if not gone:
            self.find(name)
        for one in gone:
            del self._models[name][one.manifest.version]
        if not self._models[name]:
            del self._models[name]
        return gone

    def find(self, name: str, version: str | None = None) -> ServedModel:
        """Raises RequestError(404)."""
        versions = self._models.get(name)
        if versions is None:
            raise RequestError(404, f"unknown model '{name[:100]}'; models: {', '.join(self._models) or 'none'}")
        if version is None:
            return list(versions.values())[-1]
        if version not in versions:
            raise RequestError(404, f"'{name}' has no version '{version[:100]}'; versions: {', '.join(versions)}")
        return versions[version]

    def versions(self, name: str) -> list[str]:
        return list(self._models[name])

    def all(self) -> list[ServedModel]:
        return [one for versions in self._models.values() for one in versions.values()]

    def close(self) -> None:
        for one in self.all():
            one.close()


def not_taken(
    described: Mapping[str, Any],
    installed: Callable[[], Mapping[str, str]] = available,
    no_gpu: Callable[[], str] = absent,
) -> tuple[tuple[str, str], ...]:
    """(engine, reason) for each GPU engine not in use, in order of trial.

    described: of `Model.describe`."""
    here = [name for name in installed() if on_gpu(name)]
    if not here and no_gpu():
        return ()
    runs, found = described["engine"]["name"], []
    for name in filter(on_gpu, ENGINES):
        if name == runs:
            continue
        tried = [one for one in described["tuning"]["candidates"] if one["engine"] == name]
        refused = [one["refused"] for one in tried if one["refused"]]
        times = [one["p50_ms"] for one in tried if one["p50_ms"] is not None]
        if name not in here:
            why = f"not installed: {install_command(ENGINES[name].extra)}"
        elif times:
            why = f"slower: {min(times):.3g} ms"
        else:
            why = refused[0] if refused else "not measured"
        found.append((name, why))
    return tuple(found)
