"""What is checked or estimated: a bundle's artifacts, or one model file.

    with open_subject(Path("net.tflite")) as subject:
        subject.artifacts[0].format, subject.bundle
    subject, *others = open_subjects(Path("net-raspberry-pi-4.ekb"))
    subject.workload.macs, subject.host          # times on the build's workstation, of the report next to the bundle

Rule: a model file is packed into a bundle with this machine's answers to seeded inputs, so that it is replayed like any
other; one that this machine cannot run is checked without a replay.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from edgekit.packaging.model_file import form_of, read_model
from edgekit.packaging.output_errors import OutputError
from edgekit.report.html import times_beside
from edgekit_converters.formats.workload import precision_of, read_workload
from edgekit_converters.recipe.artifact import Artifact, Recipe
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_profiles import CannotEstimateError, HostTimes, Precision, Workload
from edgekit_runtime.bundle.manifest import Target
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.bundle.secrets import Secret, SecretArgument, find_secret
from edgekit_runtime.contract.spec import Contract, InputContract, OutputContract, TensorSpec
from edgekit_runtime.engines.registry import Engine, load_engine
from edgekit_runtime.system.errors import BundleError, EdgekitError, MissingExtraError

_EXAMPLES = 8
_LARGEST = 4 << 20  # elements of one made-up item


@dataclass(frozen=True)
class Checkable:
    """One artifact. recipe: as in the bundle; a bare file's name."""

    recipe: str
    role: str
    format: str
    data: bytes


@dataclass(frozen=True)
class CheckSubject:
    """path, size: of the file that was named
    bundle: what is replayed, or None with the reason in why_no_replay and a remedy in do_for_replay
    target: what a bundle was built for
    made_up: whether its golden inputs are
    secret: the key of its blobs
    """

    path: Path
    size: int
    artifacts: tuple[Checkable, ...]
    bundle: Path | None
    target: Target | None = None
    made_up: bool = False
    why_no_replay: str = ""
    do_for_replay: str = ""
    secret: Secret | None = None


@contextmanager
def open_subject(path: Path, secret: SecretArgument = None) -> Iterator[CheckSubject]:
    """secret: see `open_bundle`. Raises BundleError for any other file, SecretError."""
    form = form_of(path)
    if form == "bundle":
        bundle = read_bundle(path, secret=find_secret if secret is None else secret)
        artifacts = tuple(
            Checkable(entry.recipe, entry.role, entry.format, bundle.blob(entry.blob))
            for entry in bundle.manifest.artifacts
        )
        yield CheckSubject(path, bundle.size, artifacts, path, bundle.manifest.target, secret=bundle.secret)
        return
    data = read_model(path)
    only, packed, why, do = Checkable(path.name, "primary", form, data), None, "", ""
    with tempfile.TemporaryDirectory(prefix="edgekit-check-") as folder:
        try:
            packed = _pack(only, Path(folder))
        except OutputError as error:  # the folder of this machine's temporary files, not the model
            why, do = error.what, f"Make room in {tempfile.gettempdir()}, or name another folder with TMPDIR"
        except EdgekitError as error:
            why, do = error.what, f"{error.do}; or pass the bundle" if isinstance(error, MissingExtraError) else ""
        yield CheckSubject(path, len(data), (only,), packed, made_up=True, why_no_replay=why, do_for_replay=do)


def _pack(one: Checkable, folder: Path) -> Path:
    """Pack the file with answers of this machine's engine. Raises EngineError."""
    from edgekit.packaging.assemble import BundleContent, assemble
    from edgekit.packaging.writer import write_bundle

    with load_engine(one.format, one.data, threads=1) as engine:
        contract = _contract_of(engine)
        precision = "float32" if all(spec.dtype.startswith("float") for spec in engine.outputs) else "int8"
        recipe = Recipe(one.recipe, one.format, precision)  # type: ignore[arg-type]
        artifact = Artifact(recipe, one.data, engine.inputs, engine.outputs, 0.0, 0.0, {})
        golden: list[dict[str, Any]] = [{} for _ in range(_EXAMPLES)]
        for seed, item in enumerate(golden):
            random = np.random.default_rng(seed)
            for spec in contract.inputs:
                is_float = spec.dtype.startswith("float")
                made = random.normal(size=spec.shape) if is_float else random.integers(0, 2, spec.shape)
                item[spec.name] = made.astype(spec.dtype)
        content = BundleContent(
            name="checked",
            version="1",
            model_id=hashlib.sha256(one.data).hexdigest(),
            contract=contract,
            target=Target("any", "any", 1),
            artifact=artifact,
            golden=golden,
        )
        draft, manifest = assemble(content)
    bundle = folder / "checked.ekb"
    write_bundle(bundle, draft, manifest, [])
    return bundle


def _contract_of(engine: Engine) -> Contract:
    """The file's own inputs and outputs, as real numbers."""

    def described(spec: TensorSpec) -> tuple[str, tuple[int, ...], str]:
        shape = tuple(max(1, side) for side in spec.shape[1:])
        if math.prod(shape) > _LARGEST:
            raise BundleError(f"'{spec.name}' is too large to make inputs up for it")
        real = "float32" if spec.quantization is not None or spec.dtype == "float16" else spec.dtype
        return spec.name, shape, real

    inputs = tuple(InputContract(*described(spec)) for spec in engine.inputs)
    return Contract("raw", inputs, tuple(OutputContract(*described(spec)) for spec in engine.outputs))


ESTIMATED = ("float32", "float16", "int8", "dynamic")


@dataclass(frozen=True)
class EstimateSubject:
    """One artifact.

    name: its recipe in a bundle, else its file name
    precision: what it computes in
    profile: the bundle's board, empty for a file
    host: times on the build's workstation, or None
    blob: SHA-256 of the bundle's blob, of its encrypted bytes if it is; empty for a file
    """

    name: str
    format: str
    data: bytes
    precision: str
    profile: str = ""
    host: HostTimes | None = None
    blob: str = ""

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def workload(self) -> Workload:
        """Raises CannotEstimateError for a precision that was never timed."""
        if self.precision not in ESTIMATED:
            raise CannotEstimateError(f"nothing was timed of {self.precision} on boards", where=self.name, do=_MEASURE)
        return read_workload(self.format, self.data, cast(Precision, self.precision))


_MEASURE = "Measure it on the board instead: edgekit bench BUNDLE -o RECORD.json"


def open_subjects(path: Path, secret: str | None = None) -> list[EstimateSubject]:
    """A bundle's primary and alternate artifacts, or the one model file.

    Raises BundleError, ConversionError.
    """
    form = form_of(path)
    if form == "bundle":
        bundle = read_bundle(path, secret=find_secret if secret is None else secret)
        times, profile = times_beside(bundle), bundle.manifest.target.profile
        subjects = [
            EstimateSubject(
                entry.recipe, entry.format, bundle.blob(entry.blob), entry.precision, profile, blob=entry.blob
            )
            for entry in bundle.manifest.artifacts
            if entry.role in ("primary", "alternate")
        ]
        return [replace(one, host=times.get(one.sha256)) for one in subjects]
    data = read_model(path)
    try:
        return [EstimateSubject(path.name, form, data, precision_of(form, data))]
    except ConversionError as error:
        raise ConversionError(error.what, where=str(path), do=error.do) from error
