"""sources.load -> contract -> data -> reference -> convert and compare -> choose -> assemble and write.

Rules:
- what can be refused before TensorFlow is loaded is refused then: profiles, recipes, names, the output folder, the
  signing key;
- one board's refusal never costs another board its bundle;
- nothing that was made is lost: each bundle is written as soon as it is chosen.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgekit import __version__
from edgekit.building.candidates import Made, Subject, candidates, make, timer
from edgekit.building.data import open_sets, unused_labels
from edgekit.building.report import BuildReport, BundleReport, estimate_json, fidelity_json
from edgekit.building.request import BuildRequest
from edgekit.errors import OutputError
from edgekit.packaging import Content, SigningKey, assemble, load_signing_key, write_bundle, write_whole
from edgekit_converters import contract_file, fidelity, sources, targets
from edgekit_converters.calibration import Finding
from edgekit_converters.choose import Choice, Limits, choose
from edgekit_converters.progress import Progress, silent
from edgekit_converters.targets import Recipe
from edgekit_profiles import Profile, ProfileError, RuntimeSupport, installable, load
from edgekit_runtime.bundle import Target

__all__ = ["build"]

Board = tuple[Profile, tuple[RuntimeSupport, ...]]


def build(request: BuildRequest, progress: Progress = silent) -> BuildReport:
    """Build for every profile of the request. Raises EdgekitError for what no board can get past."""
    start = time.perf_counter()
    boards = _boards(request.profiles)
    recipes = [targets.recipe(name) for name in dict.fromkeys(request.recipes or targets.default_recipes())]
    keys = [load_signing_key(request.sign)] if request.sign else []
    path = request.output / f"{request.bundle_name}-build.json"
    with _output_folder(request.output):
        subject, notes = _subject(request, progress)
        made = _made(subject, recipes, boards, progress)
        bundles = tuple(_bundle(request, subject, board, made, keys) for board in boards)
        report = BuildReport(
            model={"path": str(request.model), "sha256": subject.source.sha256, "format": subject.source.format},
            findings=(*subject.sets.findings, *notes),
            candidates=tuple(_candidate_json(m) for m in made if m.artifact),
            bundles=bundles,
            report=path,
            seconds=time.perf_counter() - start,
        )
        write_whole(path, (json.dumps(report.as_json(), indent=2) + "\n").encode(), "the report")
    return report


def _boards(profiles: Sequence[str]) -> list[Board]:
    """Each profile once. Raises ProfileError where two files claim one name: their bundles would overwrite each other."""
    found: dict[str, Profile] = {}
    for profile in map(load, profiles):
        if found.setdefault(profile.name, profile) != profile:
            raise ProfileError(f"two different profiles are called '{profile.name}'", do="Rename one of them")
    return [(profile, installable(profile)) for profile in found.values()]


def _subject(request: BuildRequest, progress: Progress) -> tuple[Subject, tuple[Finding, ...]]:
    """The model, its data and the original's answers; and notes on what was guessed from them."""
    source = sources.load(request.model)
    file = request.contract or contract_file.find_contract_file(request.model)
    contract = contract_file.describe(source, file)
    sets = open_sets(request, contract, progress)
    reference = fidelity.reference(source, contract, sets.evaluation, progress)
    contract, guesses = contract_file.settle(contract, reference.outputs, contract_file.stated_keys(file))
    unread = reference.labels is not None and not fidelity.task_metrics(contract, reference.labels, None)
    unused = unused_labels(contract, unread, sets.evaluation.name)
    if contract.task != "classification":
        reference = replace(reference, best=None)
    return Subject(source, contract, sets, reference), (*guesses, *unused)


def _made(subject: Subject, recipes: Sequence[Recipe], boards: Sequence[Board], progress: Progress) -> list[Made]:
    wanted = [recipe for recipe in recipes if any(_runs(recipe, support) for _, support in boards)]
    why = "no board that was asked for has an engine for it"
    rest = [Made(recipe, None, None, why) for recipe in recipes if recipe not in wanted]
    return [*make(subject, wanted, progress), *rest]


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
        fidelity=fidelity_json(made.fidelity),
        estimate=estimate_json(choice.chosen.estimate),
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


@contextmanager
def _output_folder(folder: Path) -> Iterator[None]:
    """Make sure that it can be written before the long work; what was made for a build that failed goes away again."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            why = error.strerror or error
            raise OutputError(
                f"cannot be written: {why}", where=str(folder), do="Choose a writable folder with -o"
            ) from error
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # not empty: somebody's file, or a bundle that is finished
            for place in missing:
                place.rmdir()
        raise
