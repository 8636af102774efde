"""What an estimate is asked for: a model file, or the artifacts of a bundle.

    subject, *others = open_subjects(Path("net-raspberry-pi-4.ekb"))
    subject.workload.macs, subject.host          # the times that the build took on its workstation, of its report

Rule: times of the build's workstation come from the report beside a bundle, where it is there.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

from edgekit.model_file import form_of, read_model
from edgekit.report_beside import times_beside
from edgekit_converters.errors import ConversionError
from edgekit_converters.workload.counting import precision_of, read_workload
from edgekit_profiles import CannotEstimateError, HostTimes, Precision, Workload

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
