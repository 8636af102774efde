"""The degraded artifact of a bundle.
Another bundle's model, for answers that would be late otherwise.

    small = read_degraded([Path("small-raspberry-pi-4.ekb")], profiles, secret)["raspberry-pi-4"]
    shipped = degraded_artifact(small, contract)

Rules:
- it comes from a bundle that was built for the same board, with limits and a report of its own;
- it has the contract of the model that it stands in for, in everything but the names of inputs and outputs;
- its recipe is called `degraded-` and what it was called, so that answers and reports distinguish the two.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from edgekit.errors import PackagingError
from edgekit.packaging.assemble import BundleArtifact
from edgekit_converters.targets.artifact import Artifact, Precision, Recipe
from edgekit_runtime.bundle.codec import to_json
from edgekit_runtime.bundle.reader import Bundle, read_bundle
from edgekit_runtime.bundle.secrets import Secret, find_secret
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.tensors import TensorSpec

_DO = "Build the smaller model for this board first, then pass its bundle"


def read_degraded(paths: Sequence[Path], profiles: Collection[str], secret: Secret | None) -> dict[str, Bundle]:
    """Board -> the bundle to take it from.
    Raises PackagingError, BundleError, IntegrityError, SecretError."""
    found: dict[str, Bundle] = {}
    for path in paths:
        bundle = read_bundle(path, secret=secret or find_secret)
        profile = bundle.manifest.target.profile
        if profile not in profiles:
            raise PackagingError(f"it is for {profile}, for which nothing is built here", where=str(path), do=_DO)
        if profile in found:
            raise PackagingError(f"it is a second one for {profile}", where=str(path), do="Pass one for each board")
        if bundle.locked:
            raise PackagingError(
                "its model file is encrypted", where=str(path), do="Pass its key with --encrypt, or set EDGEKIT_SECRET"
            )
        found[profile] = bundle
    return found


def degraded_artifact(bundle: Bundle, contract: Contract) -> BundleArtifact:
    """The bundle's primary artifact with the names of this contract.
    Raises PackagingError where they do not fit."""
    theirs, entry, where = bundle.manifest.contract, bundle.artifact(), str(bundle.path)
    if contract.state != "none":
        raise PackagingError("a model that keeps a state has no degraded artifact", where=where, do="Leave it out")
    renamed = theirs
    if (len(theirs.inputs), len(theirs.outputs)) == (len(contract.inputs), len(contract.outputs)):
        renamed = replace(
            theirs,
            inputs=tuple(replace(a, name=b.name) for a, b in zip(theirs.inputs, contract.inputs, strict=True)),
            outputs=tuple(replace(a, name=b.name) for a, b in zip(theirs.outputs, contract.outputs, strict=True)),
        )
    if renamed != contract:
        ours, has = to_json(contract), to_json(renamed)
        apart = [key for key in sorted({*ours, *has}) if ours.get(key) != has.get(key)]
        raise PackagingError(
            f"its contract differs in: {', '.join(apart)}",
            where=where,
            do="Build both models with one contract file: same inputs, pre-processing, outputs and labels",
        )
    names = {a.name: b.name for a, b in zip(theirs.inputs, contract.inputs, strict=True)}
    names_out = {a.name: b.name for a, b in zip(theirs.outputs, contract.outputs, strict=True)}

    def called(specs: Sequence[TensorSpec], names: dict[str, str]) -> tuple[TensorSpec, ...]:
        return tuple(replace(spec, name=names[spec.name]) for spec in specs)

    recipe = Recipe(f"degraded-{entry.recipe}", entry.format, cast(Precision, entry.precision))
    data = bundle.blob(entry.blob)
    inputs, outputs = called(entry.inputs, names), called(entry.outputs, names_out)
    artifact = Artifact(recipe, data, inputs, outputs, 0.0, 0.0, entry.tools)
    return BundleArtifact(artifact, entry.fidelity, entry.estimate, settings=entry.settings)
