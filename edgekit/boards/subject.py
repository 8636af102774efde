"""What is checked: a bundle's artifacts, or one model file with made-up inputs.

    with open_subject(Path("net.tflite")) as subject:
        subject.artifacts[0].format, subject.bundle

Rules: a model file is put into a bundle of its own, its golden answers are those of this machine's engine to inputs
that are made up (seeded), so that it is replayed like any other; a file that this machine cannot run is checked without
a replay.

What an estimate is asked for: a model file, or the artifacts of a bundle.

    subject, *others = open_subjects(Path("net-raspberry-pi-4.ekb"))
    subject.workload.macs, subject.host          # the times that the build took on its workstation, of its report

Rule: times of the build's workstation come from the report beside a bundle, where it is there.
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
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from edgekit.packaging.model_file import form_of, read_model
from edgekit.packaging.output_errors import OutputError
from edgekit.report.html import times_beside
from edgekit_converters.formats.workload import precision_of, read_workload
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_profiles import CannotEstimateError, HostTimes, Precision, Workload
from edgekit_runtime.bundle.manifest import Target
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.bundle.secrets import Secret, SecretArgument, find_secret
from edgekit_runtime.system.errors import BundleError, EdgekitError, MissingExtraError

if TYPE_CHECKING:
    from edgekit_runtime.engines.registry import Engine

_EXAMPLES = 8
_LARGEST = 4 << 20  # elements of one made-up item


@dataclass(frozen=True)
class Checkable:
    """One artifact. recipe: as the bundle calls it; of a bare file its name."""

    recipe: str
    role: str
    format: str
    data: bytes


@dataclass(frozen=True)
class CheckSubject:
    """path: what the person named.
    size: of that file.
    bundle: what is replayed, None where nothing can be, and then why_no_replay says why, and do_for_replay what helps,
        if something does.
    target: what a bundle was built for.
    made_up: its golden inputs are.
    secret: its blobs' key."""

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
    """secret: see `open_bundle`.
    Raises BundleError for a file that is neither a bundle nor a model, SecretError."""
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
            packed = _packed(only, Path(folder))
        except OutputError as error:  # the folder of this machine's temporary files, not the model
            why, do = error.what, f"Make room in {tempfile.gettempdir()}, or name another folder with TMPDIR"
        except EdgekitError as error:
            why, do = error.what, f"{error.do}; or pass the bundle" if isinstance(error, MissingExtraError) else ""
        yield CheckSubject(path, len(data), (only,), packed, made_up=True, why_no_replay=why, do_for_replay=do)


def _packed(one: Checkable, folder: Path) -> Path:
    """The file in a bundle with answers of this machine's engine.
    Raises EngineError where it does not run here."""
    from edgekit.packaging.assemble import BundleContent, assemble
    from edgekit.packaging.writer import write_bundle
    from edgekit_converters.recipe.artifact import Artifact, Recipe
    from edgekit_runtime.engines.registry import load_engine

    with load_engine(one.format, one.data, threads=1) as engine:
        contract = _contract(engine)
        precision = "float32" if all(spec.dtype.startswith("float") for spec in engine.outputs) else "int8"
        recipe = Recipe(one.recipe, one.format, precision)  # type: ignore[arg-type]
        artifact = Artifact(recipe, one.data, engine.inputs, engine.outputs, 0.0, 0.0, {})
        golden: list[dict[str, Any]] = [{} for _ in range(_EXAMPLES)]
        for seed, item in enumerate(golden):
            random = np.random.default_rng(seed)
            for spec in contract.inputs:
                made = random.normal(size=spec.shape) if spec.dtype.startswith("float") else None
                made = random.integers(0, 2, spec.shape) if made is None else made
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


def _contract(engine: Engine) -> Any:
    """What goes in and comes out as the file has it, in real numbers."""
    from edgekit_runtime.contract.spec import Contract, InputContract, OutputContract

    def real(dtype: str, quantized: bool) -> str:
        return "float32" if quantized or dtype == "float16" else dtype

    def sides(shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(max(1, side) for side in shape[1:])

    inputs = tuple(
        InputContract(spec.name, sides(spec.shape), real(spec.dtype, spec.quantization is not None))
        for spec in engine.inputs
    )
    outputs = tuple(
        OutputContract(spec.name, sides(spec.shape), real(spec.dtype, spec.quantization is not None))
        for spec in engine.outputs
    )
    for name, shape in [*((spec.name, spec.shape) for spec in inputs), *((spec.name, spec.shape) for spec in outputs)]:
        if math.prod(shape) > _LARGEST:
            raise BundleError(f"'{name}' is too large to make inputs up for it")
    return Contract("raw", inputs, outputs)


ESTIMATED = ("float32", "int8", "dynamic")


@dataclass(frozen=True)
class EstimateSubject:
    """One artifact.
    name: its recipe in a bundle, its file name otherwise.
    precision: what it computes in.
    profile: the bundle's board, empty for a file.
    host: times of the build's workstation, None where it took none.
    blob: what its bundle calls it, empty for a file; of an encrypted one another name than the SHA-256 of its bytes."""

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
        """Raises CannotEstimateError for a precision of which nothing is known."""
        if self.precision not in ESTIMATED:
            raise CannotEstimateError(f"nothing was timed of {self.precision} on boards", where=self.name, do=_MEASURE)
        return read_workload(self.format, self.data, cast(Precision, self.precision))


_MEASURE = "Measure it on the board instead: edgekit bench BUNDLE -o RECORD.json there"


def open_subjects(path: Path, secret: str | None = None) -> list[EstimateSubject]:
    """A bundle's primary and alternate artifacts, or the one model file.
    Raises BundleError and ConversionError."""
    form = form_of(path)
    if form == "bundle":
        from edgekit_runtime.bundle.reader import read_bundle
        from edgekit_runtime.bundle.secrets import find_secret

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
