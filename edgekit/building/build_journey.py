"""The build: open, convert, compare, repair, choose, pack; then the report.

Rules:
- profiles, recipes, names, keys, tools and the output folder are checked before TensorFlow is loaded;
- each conversion and comparison is made once for all boards, and cached even if the build is interrupted;
- builds into one folder run one after the other; the kernel drops the lock of a killed build;
- a build that fails removes the empty folders that it created;
- a cache that cannot be written is skipped; a cache path that is not a folder is refused.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from edgekit.building.board_candidates import Clocks, timer, workstation
from edgekit.building.build_report import BuildReport, BundleReport, candidate_json, finding_line
from edgekit.building.build_request import BuildRequest
from edgekit.building.build_subject import Board, open_subject
from edgekit.building.evidence import evidence
from edgekit.building.field import field_findings
from edgekit.building.making import Maker, RecipeResult, Workers, convert
from edgekit.building.other_conversions import ComparedFile, measure_compared, read_compared
from edgekit.building.packing import BoardChoice, BoardRecipes, choose_all, degraded_artifact, pack, read_degraded
from edgekit.building.repairing import Search, failed_repairs, repair
from edgekit.packaging.assemble import BundleArtifact
from edgekit.packaging.output_errors import OutputError
from edgekit.packaging.signers import open_signers
from edgekit.packaging.writer import Signer, check_tools, write_whole
from edgekit_converters.choose import ChoiceLimits
from edgekit_converters.data.lint import Finding
from edgekit_converters.fidelity.compare import growth
from edgekit_converters.recipe.artifact import Recipe
from edgekit_converters.recipe.artifact import recipe as find_recipe
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_converters.recipe.progress import Progress, silent
from edgekit_converters.recipe.store import NO_STORE, DiskStore
from edgekit_profiles import Profile, ProfileError, installable, open_catalogue
from edgekit_profiles.anchors import AnchorFile, read_anchor_file, refuse_other_boards
from edgekit_runtime.bundle.manifest import RUNTIME_VERSION
from edgekit_runtime.bundle.reader import Bundle
from edgekit_runtime.engines.registry import pick
from edgekit_runtime.system.errors import MissingExtraError
from edgekit_runtime.system.files import take


def build(
    request: BuildRequest, progress: Progress = silent, say: Callable[[str], None] = lambda line: None
) -> BuildReport:
    """Build for every profile of the request. Raises EdgekitError for what stops every board.

    say: receives warnings, and the artifacts as they are before repairs.
    """
    start = time.perf_counter()
    setup = _checked(request)
    if request.model.suffix.lower() == ".gguf":
        pick("gguf")  # raises MissingExtraError
        from edgekit.building.language_model import build_language_model

        with refuse_full_disk(request.output), output_folder(request.output, progress):
            return build_language_model(setup.request, setup.boards, setup.signers, progress, _write_report)
    with refuse_full_disk(), output_folder(request.output, progress), Workers(request.jobs, progress) as workers:
        opened = _open(setup, workers, say)
        converted = convert(opened.maker, setup.recipes, setup.boards)
        compared = workers.run([partial(opened.maker.compare, one) for one in converted])
        results = repair(opened.maker, compared, setup.boards, setup.search, say)
        bundles = [
            pack(setup.request, opened.maker, one, results, setup.signers, setup.anchors, opened.degraded)
            for one in _choose(setup, opened, results)
        ]
        return _write_report(_report(setup, opened, results, bundles, start))


@dataclass(frozen=True)
class _Setup:
    """The request, and what it names, read and checked."""

    request: BuildRequest
    boards: tuple[Board, ...]
    board_recipes: BoardRecipes
    recipes: tuple[Recipe, ...]
    anchors: tuple[AnchorFile, ...]
    signers: Sequence[Signer]
    search: Search
    degraded: Mapping[str, Bundle]
    compared: tuple[ComparedFile, ...]


def _checked(request: BuildRequest) -> _Setup:
    """Raises EdgekitError, and imports nothing that takes seconds."""
    check_tools("torch" if request.model.suffix == ".pt2" or ":" in request.model.name else "convert")
    catalogue = open_catalogue(request.profile_paths)
    profiles: dict[str, Profile] = {}
    for profile in map(catalogue.load, request.profiles):
        if profiles.setdefault(profile.name, profile) != profile:  # their bundles would overwrite each other
            raise ProfileError(f"two different profiles are named '{profile.name}'", do="Rename one of them")
    # Boards compare full names, so a typo or a short name would keep a bundle off its board
    compatible = tuple(catalogue.load(name).name for name in request.terms.compatible)
    request = replace(request, terms=replace(request.terms, compatible=compatible))
    anchors = tuple(read_anchor_file(path) for path in request.anchors)
    refuse_other_boards(anchors, list(profiles.values()))
    board_recipes = BoardRecipes(request.recipes, tuple(profiles.values()))
    recipes = tuple(find_recipe(name) for name in board_recipes.names())
    finished = next((recipe.name for recipe in recipes if recipe.finished), None)
    if finished and len(recipes) > 1:
        what = f"{finished} packs the file unchanged and goes with no other recipe"
        raise ConversionError(what, do="Name it alone, or leave it out")
    if finished:
        request = replace(request, options=replace(request.options, as_is=True))
    signers = open_signers(request.signing)
    _ = request.bundle_name  # raises if it is not a plain file name
    check_cache(request.cache)
    boards = tuple((profile, installable(profile)) for profile in profiles.values())
    limits = ChoiceLimits(max_drop=request.max_drop, budget_ms=request.budget_ms, alternates=request.alternates)
    search = Search(limits, request.repair_s, request.jobs)
    degraded = read_degraded(request.degraded, profiles, request.encrypt)
    compared = read_compared(request.compare)
    return _Setup(request, boards, board_recipes, recipes, anchors, signers, search, degraded, compared)


@dataclass(frozen=True)
class _OpenedBuild:
    """The model, the data and the original's answers.

    others: measured files of other tools.
    degraded: profile -> the artifact for answers that would be late.
    """

    maker: Maker
    others: tuple[RecipeResult, ...]
    degraded: Mapping[str, BundleArtifact]


def _open(setup: _Setup, workers: Workers, say: Callable[[str], None]) -> _OpenedBuild:
    """Open model and data, and report their warnings at once."""
    request = setup.request
    store = NO_STORE if request.cache is None else DiskStore(request.cache)
    subject = open_subject(request, store, workers.progress)
    for finding in subject.findings:
        if finding.level == "warning":
            say(finding_line(finding))
    maker = Maker(subject, subject.workspace(workers.progress), workers)
    degraded = {profile: degraded_artifact(one, subject.contract) for profile, one in setup.degraded.items()}
    return _OpenedBuild(maker, tuple(measure_compared(maker, setup.compared)), degraded)


def _choose(setup: _Setup, opened: _OpenedBuild, results: Sequence[RecipeResult]) -> list[BoardChoice]:
    subject, measured = opened.maker.subject, [*results, *opened.others]
    clocks = Clocks(timer(subject, subject.store, measured), workstation(subject.store, measured), setup.anchors)
    return choose_all(setup.request, setup.boards, setup.board_recipes, results, clocks, opened.others)


def _report(
    setup: _Setup,
    opened: _OpenedBuild,
    results: Sequence[RecipeResult],
    bundles: Sequence[BundleReport],
    start: float,
) -> BuildReport:
    request, maker, subject = setup.request, opened.maker, opened.maker.subject
    progress = maker.workers.progress
    source, store, task = subject.source, subject.store, subject.contract.task
    existing = [one for one in (*results, *opened.others) if one.artifact is not None]

    def describe(one: RecipeResult) -> dict[str, object]:
        return candidate_json(one, evidence(one, subject, maker.workspace, progress))

    tools = {name: version for one in existing if one.artifact for name, version in one.artifact.tools.items()}
    notes = _notes(maker, results)
    candidates = tuple(maker.workers.run([partial(describe, one) for one in existing]))
    return BuildReport(
        model={"path": str(request.model), "sha256": source.sha256, "format": source.format, "task": task},
        findings=(*subject.findings, *notes, *field_findings(request.calibration, subject, existing, progress)),
        candidates=candidates,
        bundles=tuple(bundles),
        report=request.output / f"{request.bundle_name}-build.json",
        seconds=time.perf_counter() - start,
        command=request.command,
        tools=dict(sorted({"edgekit-deploy": RUNTIME_VERSION, **tools}.items())),
        random_data=subject.sets.random,
        limits={"max_drop": request.max_drop, "budget_ms": request.budget_ms},
        not_repaired=tuple(failed_repairs(results, setup.search.limits)),
        cache_failure=store.failure if isinstance(store, DiskStore) else "",
    )


def _write_report(report: BuildReport) -> BuildReport:
    """Write the JSON, and the HTML page if its tools are installed."""
    from edgekit.report.html import html

    page: str | None = None
    with_page = replace(report, page=report.report.with_suffix(".html"))
    with contextlib.suppress(MissingExtraError):
        page = html(with_page.as_json())
    report = report if page is None else with_page
    write_whole(report.report, (json.dumps(report.as_json(), indent=2) + "\n").encode(), "the report")
    if page is not None and report.page is not None:
        try:
            write_whole(report.page, page.encode(), "the HTML report")
        except OutputError as error:  # bundles and JSON exist already
            return replace(report, page=None, page_failure=str(error))
    return report


def _notes(maker: Maker, results: Sequence[RecipeResult]) -> list[Finding]:
    """Notes on early ends of calibration, transposed layouts, and files that grew."""
    existing = [(one.recipe, one.artifact) for one in results if one.artifact is not None]
    notes = []
    given = len(maker.subject.sets.calibration or ())
    read = {recipe.format: artifact.samples for recipe, artifact in existing if recipe.needs_calibration}
    early = [f"{count} of {given} samples ({form})" for form, count in read.items() if count < given]
    if early:
        what = f"calibration stopped after {' and '.join(early)}: the ranges had settled"
        notes.append(Finding("settled", "note", what, "More of the same kind would not change the artifact"))
    converted = [(recipe, artifact) for recipe, artifact in existing if not recipe.finished]
    if any(recipe.format == "tflite" for recipe, _ in converted):
        count = maker.workspace.float_model("tflite").transposes
        if count:
            left = "1 layout transpose is" if count == 1 else f"{count} layout transposes are"
            do = "They cost time and no accuracy; channels-last models have none"
            notes.append(Finding("layout-transposes", "note", f"{left} left in the TFLite graph", do))
    for recipe, artifact in converted:
        before = maker.workspace.float_model(recipe.format).data
        if why := growth(recipe.format, before, artifact.data):
            do = "A smaller file is the float one; 8 bits may still be faster"
            notes.append(Finding("grown", "note", f"{recipe.name} is {why}", do))
    return notes


def check_cache(folder: Path | None) -> None:
    """Raises OutputError if the path, or a parent of it, is a file."""
    if folder is None:
        return
    with contextlib.suppress(OSError):
        there = next((place for place in (folder, *folder.parents) if place.exists()), folder)
        if there.exists() and not there.is_dir():
            what = "not a directory" if there == folder else f"{there} is not a directory"
            do = "Choose a folder with --cache, or keep nothing: --no-cache"
            raise OutputError(what, where=str(folder), do=do)


@contextmanager
def output_folder(folder: Path, progress: Progress = silent) -> Iterator[None]:
    """Create and lock the folder. Raises OutputError if it cannot be created or written."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    # The inner clean-up runs under the lock, the outer one where the lock was never taken
    with _remove_if_empty(missing), _locked(folder, progress), _remove_if_empty(missing):
        yield


@contextmanager
def _remove_if_empty(made: Sequence[Path]) -> Iterator[None]:
    """After an error, remove the folders of `made` that are empty."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # not empty: a user's file, or a finished bundle
            for place in made:
                place.rmdir()
        raise


@contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[None]:
    """Lock the folder itself, so that no lock file is left in it."""
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            why = error.strerror or error
            raise OutputError(
                f"cannot be written: {why}", where=str(folder), do="Choose a writable folder with -o"
            ) from error
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # the build before us failed and removed its folder
            continue
        try:
            # A file system without locks (some network shares) admits every process
            with contextlib.suppress(OSError):
                if take(handle) is False:
                    progress(f"waiting for another build in {folder}", 0, None)
                    take(handle, wait=True)
            try:
                same = os.path.samestat(os.fstat(handle), folder.stat())
            except OSError:
                same = False
            if not same:  # the build before us removed the folder while we waited
                continue
            yield
            return
        finally:
            os.close(handle)


@contextmanager
def refuse_full_disk(output: Path | None = None) -> Iterator[None]:
    """Turn a tool's OSError of a full disk into an OutputError.

    output: a folder that is also written to, if nothing is cached for the next run.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where, do = tempfile.gettempdir(), "Make room there, or name another folder for temporary files with TMPDIR"
        if output is None:
            do += "; what was made so far is kept, and the next run resumes there"
        else:
            where, do = f"{output}, or {where}", f"{do} or for the result with -o; then run the same command again"
        raise OutputError(f"the disk is full: {error.strerror}", where=str(error.filename or where), do=do) from error
