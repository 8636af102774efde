"""sources.load -> contract -> data -> reference -> convert and compare -> choose -> assemble and write.

Rules:
- what can be refused before TensorFlow is loaded is refused then: profiles, recipes, the output folder, the signing key;
- one board's refusal never costs another board its bundle;
- nothing that was made is lost: each bundle is written as soon as it is chosen.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgekit import __version__
from edgekit.building.candidates import Made, Subject, candidates, make, timer
from edgekit.building.data import open_sets
from edgekit.building.report import BuildReport, BundleReport, estimate_json, fidelity_json
from edgekit.building.request import BuildRequest
from edgekit.errors import OutputError
from edgekit.packaging import Content, SigningKey, assemble, load_signing_key, write_bundle
from edgekit_converters import contract_file, fidelity, sources, targets
from edgekit_converters.choose import Choice, Limits, choose
from edgekit_converters.progress import Progress, silent
from edgekit_converters.targets import Recipe
from edgekit_profiles import Profile, RuntimeSupport, installable, load
from edgekit_runtime.bundle import Target

__all__ = ["build"]

Board = tuple[Profile, tuple[RuntimeSupport, ...]]


def build(request: BuildRequest, progress: Progress = silent) -> BuildReport:
    """Build for every profile of the request. Raises EdgekitError for what no board can get past."""
    start = time.perf_counter()
    boards = [(profile, installable(profile)) for profile in map(load, request.profiles)]
    recipes = [targets.recipe(name) for name in request.recipes or tuple(targets.RECIPES)]
    keys = [load_signing_key(request.sign)] if request.sign else []
    _check_writable(request.output)
    source = sources.load(request.model)
    contract = contract_file.describe(source, request.contract or contract_file.find_contract_file(request.model))
    sets = open_sets(request, contract, progress)
    wanted = [recipe for recipe in recipes if any(_runs(recipe, support) for _, support in boards)]
    reference = fidelity.reference(source, contract, sets.evaluation, progress)
    contract = contract_file.with_scores(contract, reference.outputs)
    subject = Subject(source, contract, sets, reference)
    made = [
        replace(m, fidelity=replace(m.fidelity, held_out=sets.held_out)) if m.fidelity else m
        for m in make(subject, wanted, progress)
    ]
    made += [
        Made(recipe, None, None, "no board that was asked for has an engine for it")
        for recipe in recipes
        if recipe not in wanted
    ]
    bundles = tuple(_bundle(request, subject, board, made, keys) for board in boards)
    report = BuildReport(
        model={"path": str(request.model), "sha256": source.sha256, "format": source.format},
        findings=sets.findings,
        candidates=tuple(_candidate_json(m) for m in made if m.artifact),
        bundles=bundles,
        report=request.output / f"{request.bundle_name}-build.json",
        seconds=time.perf_counter() - start,
    )
    assert report.report is not None
    _write_report(report.report, report.as_json())
    return report


def _runs(recipe: Recipe, support: Sequence[RuntimeSupport]) -> bool:
    return any(s.ok and s.format == recipe.format for s in support)


def _bundle(
    request: BuildRequest, subject: Subject, board: Board, made: Sequence[Made], keys: Sequence[SigningKey]
) -> BundleReport:
    profile, support = board
    limits = Limits(max_drop=request.max_drop, budget_ms=request.budget_ms)
    choice = choose(profile.name, candidates(profile, support, made, timer(subject)), limits, support)
    if choice.chosen is None:
        return BundleReport(profile.name, None, choice)
    path = request.output / f"{request.bundle_name}-{profile.name}.ekb"
    draft, manifest = assemble(_content(request, subject, profile, _chosen(choice, made), choice))
    write_bundle(path, draft, manifest, keys)
    return BundleReport(profile.name, path, choice)


def _chosen(choice: Choice, made: Sequence[Made]) -> Made:
    assert choice.chosen is not None
    recipe = choice.chosen.recipe
    return next(m for m in made if m.recipe.name == recipe)


def _content(request: BuildRequest, subject: Subject, profile: Profile, made: Made, choice: Choice) -> Content:
    assert made.artifact is not None
    assert choice.chosen is not None
    golden = subject.sets.evaluation.pick(fidelity.pick_golden(subject.reference))
    return Content(
        name=request.bundle_name,
        version=request.version,
        model_id=subject.source.sha256,
        contract=subject.contract,
        target=Target(profile.name, profile.arch, profile.threads, request.budget_ms),
        artifact=made.artifact,
        golden=[example.inputs for example in golden],
        fidelity=_jsonable(fidelity_json(made.fidelity)),
        estimate=_jsonable(estimate_json(choice.chosen.estimate)),
        tools={"edgekit-deploy": __version__},
    )


def _candidate_json(made: Made) -> dict[str, Any]:
    assert made.artifact is not None
    return {
        "recipe": made.recipe.name,
        "bytes": len(made.artifact.data),
        "fidelity": fidelity_json(made.fidelity),
        "tools": made.artifact.tools,
        "samples": made.artifact.samples,
    }


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot be written: {error.strerror or error}", where=str(folder), do="Choose a writable folder with -o"
        ) from error


def _write_report(path: Path, value: dict[str, Any]) -> None:
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(value, indent=2) + "\n")
    partial.replace(path)


def _jsonable(value: dict[str, Any] | None) -> dict[str, Any] | None:
    """Tuples as lists, as the manifest's JSON will have them."""
    parsed: dict[str, Any] | None = json.loads(json.dumps(value))
    return parsed
