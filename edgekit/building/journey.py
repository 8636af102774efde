"""The build: load, reference, convert, compare, repair, choose, assemble, write.

Rules:
- what can be refused before TensorFlow is loaded is refused then: profiles, recipes, names, the output folder, the
  signing key, tools that writing needs;
- one board's refusal never costs another board its bundle; every conversion and comparison is made once for all boards;
- nothing that was made is lost: each bundle is written as soon as it is chosen, and what costs time is kept for the
  next build, also where this one is interrupted;
- one build at a time writes into a folder, another waits and says so; the kernel holds the lock, so a killed build
  holds none;
- a cache folder that cannot be written is done without; a path that is no folder is refused;
- `--recipe` decides for every board; else a profile's own `recipes` are made for it, and no other board is offered
  those.
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
from typing import Any

from numpy.typing import NDArray

from edgekit import __version__
from edgekit.building.candidates import (
    Clocks,
    candidates,
    evidence,
    lasting_estimate,
    lasting_json,
    promise_of,
    timer,
    with_memory,
    workstation,
)
from edgekit.building.making import Made, Maker, make
from edgekit.building.repairing import failed_repairs, to_search, with_repairs, with_variants
from edgekit.building.report import (
    BuildReport,
    BundleReport,
    before_repairs,
    candidate_json,
    fidelity_json,
    finding_line,
)
from edgekit.building.request import BuildRequest
from edgekit.building.subject import Subject, open_subject
from edgekit.building.workers import Workers
from edgekit.errors import OutputError
from edgekit.keys.signers import open_signers
from edgekit.packaging import (
    Content,
    Shipped,
    Signer,
    assemble,
    check_tools,
    write_bundle,
    write_whole,
)
from edgekit_converters import fidelity, targets
from edgekit_converters.calibration import Finding
from edgekit_converters.choose import Candidate, Choice, Limits, choose
from edgekit_converters.errors import ConversionError
from edgekit_converters.fidelity.reference import golden_sequences
from edgekit_converters.progress import Progress, silent
from edgekit_converters.store import NO_STORE, DiskStore
from edgekit_converters.targets import Recipe
from edgekit_profiles import Catalogue, Profile, ProfileError, RuntimeSupport, caution, installable, open_catalogue
from edgekit_profiles.anchors import read_anchor_file, refuse_strangers
from edgekit_runtime.bundle import Target
from edgekit_runtime.errors import MissingExtraError
from edgekit_runtime.whole_file import take

__all__ = ["Wanted", "build", "check_cache", "output_folder"]


def check_cache(folder: Path | None) -> None:
    """Raises OutputError for a path that cannot be a folder: a file stands there, or in its way."""
    if folder is None:
        return
    with contextlib.suppress(OSError):
        there = next((place for place in (folder, *folder.parents) if place.exists()), folder)
        if there.exists() and not there.is_dir():
            raise OutputError(
                "a file cannot be the cache" if there == folder else f"{there} is a file, so this cannot be the cache",
                where=str(folder),
                do="Choose a folder with --cache, or keep nothing: --no-cache",
            )


@contextmanager
def output_folder(folder: Path, progress: Progress = silent) -> Iterator[None]:
    """Raises OutputError where the folder cannot be made or written."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    with _taken_away(missing), _locked(folder, progress), _taken_away(missing):  # the inner one under the lock
        yield


@contextmanager
def _taken_away(made: Sequence[Path]) -> Iterator[None]:
    """After an error, the folders that were made and are empty."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # not empty: somebody's file, or a bundle that is finished
            for place in made:
                place.rmdir()
        raise


@contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[None]:
    """Holds the folder itself: no file of ours is left in it."""
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
        except FileNotFoundError:  # the build before us failed, and took its folder away
            continue
        try:
            # A file system that knows no locks (some network shares) lets everybody in
            with contextlib.suppress(OSError):
                if take(handle) is False:
                    progress(f"waiting for another build in {folder}", 0, None)
                    take(handle, wait=True)
            if not _is(handle, folder):
                continue
            yield
            return
        finally:
            os.close(handle)


def _is(handle: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), folder.stat())
    except OSError:
        return False


@dataclass(frozen=True)
class Wanted:
    """asked: the recipes of the request. profiles: of every board of the build."""

    asked: tuple[str, ...]
    profiles: tuple[Profile, ...]

    def names(self) -> tuple[str, ...]:
        if self.asked:
            return tuple(dict.fromkeys(self.asked))
        return tuple(
            dict.fromkeys(
                name for profile in self.profiles for name in (profile.recipes or tuple(targets.default_recipes()))
            )
        )

    def of(self, profile: Profile, made: Sequence[Made]) -> list[Made]:
        if self.asked:
            return list(made)
        if profile.recipes:
            return [one for one in made if one.recipe.name in profile.recipes]
        foreign = {name for other in self.profiles for name in other.recipes} - {*targets.default_recipes()}
        return [one for one in made if one.recipe.name not in foreign]


Board = tuple[Profile, tuple[RuntimeSupport, ...]]


def build(
    request: BuildRequest, progress: Progress = silent, say: Callable[[str], None] = lambda line: None
) -> BuildReport:
    """Build for every profile of the request. Raises EdgekitError for what no board can get past.

    say: is given what a person should know before the end: warnings, and the artifacts that there are before repairs.
    """
    start = time.perf_counter()
    check_tools("torch" if request.model.suffix == ".pt2" or ":" in request.model.name else "convert")
    catalogue = open_catalogue(request.profile_paths)
    boards = _boards(request.profiles, catalogue)
    for name in request.terms.compatible:  # a slip of the pen would keep a bundle off the board it is for
        catalogue.load(name)
    anchors = [read_anchor_file(path) for path in request.anchors]
    refuse_strangers(anchors, [profile for profile, _ in boards])
    wanted = Wanted(request.recipes, tuple(profile for profile, _ in boards))
    recipes = [targets.recipe(name) for name in wanted.names()]
    request = _as_is(request, recipes)
    keys = open_signers(request.signing)
    path = request.output / f"{request.bundle_name}-build.json"
    check_cache(request.cache)
    store = NO_STORE if request.cache is None else DiskStore(request.cache)
    with (
        _disk_full_is_told(),
        output_folder(request.output, progress),
        Workers(request.jobs, progress) as workers,
    ):
        subject = open_subject(request, store, workers.progress)
        maker = Maker(subject, subject.workspace(workers.progress), workers)
        limits = Limits(max_drop=request.max_drop, budget_ms=request.budget_ms, alternates=request.alternates)
        for finding in subject.findings:
            if finding.level == "warning":
                say(finding_line(finding))
        made = with_variants(maker, _made(maker, recipes, boards), boards)
        if missing := to_search(maker, made, limits, request.repair_s, request.jobs):
            for line in before_repairs(made, missing, request.repair_s):
                say(line)
        made = with_repairs(maker, made, limits, request.repair_s, request.jobs)
        clocks = Clocks(timer(subject, subject.store, made), workstation(subject.store, made), anchors)
        packer = _Packer(request, maker, made, keys, clocks, wanted)
        bundles = tuple(packer.bundle(board) for board in boards)
        shown = _shown(maker, made)
        report = BuildReport(
            model={"path": str(request.model), "sha256": subject.source.sha256, "format": subject.source.format},
            findings=(*subject.findings, *_settled(subject, made), *_transposed(maker, made), *_grown(maker, made)),
            candidates=shown,
            bundles=bundles,
            report=path,
            seconds=time.perf_counter() - start,
            command=request.command,
            tools=_tools(made),
            random_data=subject.sets.random,
            limits={"max_drop": request.max_drop, "budget_ms": request.budget_ms},
            not_repaired=tuple(failed_repairs(made, limits)),
            cache_failure=store.failure if isinstance(store, DiskStore) else "",
        )
        return _written(report)


def _as_is(request: BuildRequest, recipes: Sequence[Recipe]) -> BuildRequest:
    """The model's file is read as finished where the recipe takes it so.

    Raises ConversionError beside other recipes.
    """
    if not any(recipe.finished for recipe in recipes):
        return request
    if len(recipes) > 1:
        raise ConversionError(
            f"{next(recipe.name for recipe in recipes if recipe.finished)} packs the file as it is, and other recipes "
            "make another of it",
            do="Name it alone, or leave it out",
        )
    return replace(request, options=replace(request.options, as_is=True))


def _written(report: BuildReport) -> BuildReport:
    """The JSON, and the page made of it where its tools are installed."""
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
        except OutputError as error:  # bundles and JSON are there; the page is made of the latter
            return replace(report, page=None, page_failure=str(error))
    return report


@contextmanager
def _disk_full_is_told() -> Iterator[None]:
    """The tools write into temporary folders, and say `OSError` when there is no room."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OutputError(
            f"the disk is full: {error.strerror}",
            where=str(error.filename or tempfile.gettempdir()),
            do="Make room there, or name another folder for temporary files with TMPDIR; what was made so far is "
            "kept, and the next run goes on from there",
        ) from error


def _tools(made: Sequence[Made]) -> dict[str, str]:
    found = {"edgekit-deploy": __version__}
    for one in made:
        found.update(one.artifact.tools if one.artifact is not None else {})
    return dict(sorted(found.items()))


def _settled(subject: Subject, made: Sequence[Made]) -> tuple[Finding, ...]:
    """A note where calibration stopped before the last sample."""
    given = len(subject.sets.calibration or ())
    read = {one.recipe.format: one.artifact.samples for one in made if one.artifact and one.recipe.needs_calibration}
    early = [f"{count} of {given} samples ({form})" for form, count in read.items() if count < given]
    if not early:
        return ()
    what = f"calibration stopped after {' and '.join(early)}: the ranges had settled"
    return (Finding("settled", "note", what, "More of the same kind would not change the artifact"),)


def _transposed(maker: Maker, made: Sequence[Made]) -> tuple[Finding, ...]:
    """A note where a TFLite graph turns pictures from one layout to the other on its way."""
    if not any(one.artifact and one.recipe.format == "tflite" and not one.recipe.finished for one in made):
        return ()
    count = maker.workspace.float_model("tflite").transposes
    if not count:
        return ()
    what = f"{count} layout transpose{'s' * (count > 1)} {'are' if count > 1 else 'is'} left in the TFLite graph"
    return (
        Finding("layout-transposes", "note", what, "They cost time and no accuracy; channels-last models have none"),
    )


def _grown(maker: Maker, made: Sequence[Made]) -> tuple[Finding, ...]:
    """A note for every artifact that is larger than the float file it was made from, with the part that grew."""
    found = []
    for one in made:
        if one.artifact is None or one.recipe.finished:
            continue
        before = maker.workspace.float_model(one.recipe.format).data
        if why := fidelity.growth(one.recipe.format, before, one.artifact.data):
            what = f"{one.recipe.name} is {why}"
            found.append(Finding("grown", "note", what, "A smaller file is the float one; 8 bits may still be faster"))
    return tuple(found)


def _shown(maker: Maker, made: Sequence[Made]) -> tuple[dict[str, object], ...]:
    """What the report has of every artifact, whether a board took it or not."""
    existing = [one for one in made if one.artifact is not None]

    def task(one: Made) -> dict[str, object]:
        return candidate_json(one, evidence(one, maker.subject, maker.workspace, maker.workers.progress))

    return tuple(maker.workers.run([partial(task, one) for one in existing]))


def _boards(profiles: Sequence[str], catalogue: Catalogue) -> list[Board]:
    """Each profile once.

    Raises ProfileError where two files claim one name: their bundles would overwrite each other.
    """
    found: dict[str, Profile] = {}
    for profile in map(catalogue.load, profiles):
        if found.setdefault(profile.name, profile) != profile:
            raise ProfileError(f"two different profiles are called '{profile.name}'", do="Rename one of them")
    return [(profile, installable(profile)) for profile in found.values()]


def _made(maker: Maker, recipes: Sequence[Recipe], boards: Sequence[Board]) -> list[Made]:
    wanted = [
        recipe
        for recipe in recipes
        if any(any(s.ok and s.format == recipe.format for s in support) for _, support in boards)
    ]
    why = "no board that was asked for has an engine for it"
    rest = [Made(recipe, None, None, why) for recipe in recipes if recipe not in wanted]
    return [*make(maker, wanted), *rest]


@dataclass(frozen=True)
class _Packer:
    """Chooses for a board among what was made, and writes its bundle."""

    request: BuildRequest
    maker: Maker
    made: Sequence[Made]
    keys: Sequence[Signer]
    clocks: Clocks
    wanted: Wanted

    def bundle(self, board: Board) -> BundleReport:
        profile, support = board
        request = self.request
        limits = Limits(request.max_drop, request.budget_ms, profile.memory.ram_mb, request.alternates)
        seen = candidates(profile, support, self.wanted.of(profile, self.made), self.clocks)
        # A note where the chosen one's estimate is of a kind of board that estimates err most for
        choice = choose(profile.name, seen, limits, support)
        found, said = choice.chosen and choice.chosen.estimate, caution(profile)
        choice = replace(choice, notes=(*choice.notes, said)) if found and said in found.notes else choice
        if choice.chosen is None:
            return BundleReport(profile.name, None, choice, tuple(seen))
        path = request.output / f"{request.bundle_name}-{profile.name}.ekb"
        batches = self._batches(choice.chosen, limits)
        draft, manifest = assemble(self._content(board, choice, batches))
        estimated = {one.recipe: one.memory_bytes for one in (choice.chosen, *choice.alternates)}
        manifest = with_memory(draft, manifest, estimated, self.maker.subject.store, request.secret)
        write_bundle(path, draft, manifest, self.keys)
        return BundleReport(profile.name, path, choice, tuple(seen), tuple(batches))

    def _batches(self, chosen: Candidate, limits: Limits) -> list[Made]:
        """The chosen artifact for several items at once, where its file has a fixed batch.

        What drifts too far is none.
        """
        one = next(one for one in self.made if one.recipe.name == chosen.recipe)
        alone = one.recipe.finished or self.maker.subject.contract.state != "none"
        if one.artifact is None or one.artifact.inputs[0].shape[0] != 1 or alone:
            return []
        found = [self.maker.batched(one, size) for size in self.request.batches]
        return [_within(each, limits) for each in found]

    def _content(self, board: Board, choice: Choice, batches: Sequence[Made]) -> Content:
        assert choice.chosen is not None
        request, subject, profile = self.request, self.maker.subject, board[0]
        taken = (choice.chosen, *choice.alternates)
        primary, *alternates = (self._shipped(candidate, board) for candidate in taken)
        return Content(
            name=request.bundle_name,
            version=request.version,
            model_id=subject.source.sha256,
            contract=subject.contract,
            target=Target(profile.name, profile.arch, profile.threads, request.budget_ms),
            artifact=primary.artifact,
            golden=_golden(subject),
            fidelity=primary.fidelity,
            estimate=primary.estimate,
            tools={"edgekit-deploy": __version__},
            alternates=alternates,
            batches=[Shipped(one.artifact, fidelity_json(one.fidelity)) for one in batches if one.artifact is not None],
            terms=request.terms,
            secret=request.secret,
            promise=promise_of(request.budget_ms, primary.estimate),
        )

    def _shipped(self, candidate: Candidate, board: Board) -> Shipped:
        one = next(one for one in self.made if one.recipe.name == candidate.recipe)
        assert one.artifact is not None
        found = lasting_estimate(*board, one, self.clocks.anchors)
        return Shipped(one.artifact, fidelity_json(one.fidelity), lasting_json(found))


def _golden(subject: Subject) -> Sequence[Mapping[str, NDArray[Any]]]:
    evaluation, reference = subject.sets.evaluation, subject.reference
    if subject.contract.state != "none":
        return golden_sequences(evaluation, subject.contract, reference)
    return [example.inputs for example in evaluation.pick(fidelity.pick_golden(reference))]


def _within(made: Made, limits: Limits) -> Made:
    if made.fidelity is None or limits.allow(made.fidelity.loss):
        return made
    return replace(made, artifact=None, fidelity=None, failed="it drifts further than the limit")
