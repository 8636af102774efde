"""Choose each board's artifacts among the results, and write its bundle.

    choices = choose_all(request, boards, recipes, results, clocks)
    bundles = [pack(request, maker, one, results, signers, anchors, {}) for one in choices]

Rules:
- a refusal for one board costs no other board its bundle; a written bundle stays, whatever fails later;
- a bundle holds no time of this machine: two builds of the same inputs write the same bytes;
- a batch artifact that drifts further than the limit is left out, with the reason;
- the degraded artifact, for answers that would be late, comes from another bundle for the same board;
- it has the contract of the model that it replaces, except for the names of inputs and outputs;
- its recipe is `degraded-NAME`, so that answers and reports distinguish the two.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from edgekit.building.board_candidates import Clocks, candidates, lasting_estimate
from edgekit.building.build_report import BundleReport, OtherFile, measured_json
from edgekit.building.build_request import BuildRequest
from edgekit.building.build_subject import Board
from edgekit.building.making import Maker, RecipeResult
from edgekit.building.promises import lasting_json, promise_of, with_memory
from edgekit.packaging.assemble import BundleArtifact, BundleContent, assemble
from edgekit.packaging.output_errors import PackagingError
from edgekit.packaging.writer import Signer, write_bundle
from edgekit_converters.choose import Candidate, Choice, ChoiceLimits, beyond_memory, choose
from edgekit_converters.fidelity.reference import golden_sequences, pick_golden
from edgekit_converters.formats.workload import PROCESS_BYTES, memory_bytes
from edgekit_converters.recipe.artifact import Artifact, Precision, Recipe, default_recipes
from edgekit_profiles import Profile, caution
from edgekit_profiles.anchors import AnchorFile
from edgekit_runtime.bundle.manifest import RUNTIME_VERSION, Target
from edgekit_runtime.bundle.reader import Bundle, read_bundle
from edgekit_runtime.bundle.secrets import Secret, find_secret
from edgekit_runtime.contract.spec import Contract, TensorSpec
from edgekit_runtime.system.strict_json import to_json


@dataclass(frozen=True)
class BoardRecipes:
    """What each board is offered: the requested recipes, its profile's own, or the defaults."""

    requested: tuple[str, ...]
    profiles: tuple[Profile, ...]

    def names(self) -> tuple[str, ...]:
        """Of all boards, each once."""
        each = (profile.recipes or tuple(default_recipes()) for profile in self.profiles)
        return tuple(dict.fromkeys(self.requested or [name for names in each for name in names]))

    def of(self, profile: Profile, results: Sequence[RecipeResult]) -> list[RecipeResult]:
        if self.requested:
            return list(results)
        if profile.recipes:
            return [one for one in results if one.recipe.name in profile.recipes]
        foreign = {name for other in self.profiles for name in other.recipes} - {*default_recipes()}
        return [one for one in results if one.recipe.name not in foreign]


@dataclass(frozen=True)
class BoardChoice:
    """One board's decision.

    candidates: every recipe as this board sees it.
    others: files of other tools, for comparison only.
    """

    board: Board
    choice: Choice
    candidates: tuple[Candidate, ...]
    others: tuple[OtherFile, ...] = ()


def choose_all(
    request: BuildRequest,
    boards: Sequence[Board],
    recipes: BoardRecipes,
    results: Sequence[RecipeResult],
    clocks: Clocks,
    others: Sequence[RecipeResult] = (),
) -> list[BoardChoice]:
    """Choose for each board, with a reason for each refusal.

    others: files of other tools, each judged alone by the same limits.
    """
    found = []
    for profile, support in boards:
        limits = ChoiceLimits(request.max_drop, request.budget_ms, profile.memory.ram_mb, request.alternates)
        seen = candidates(profile, support, recipes.of(profile, results), clocks)
        choice = choose(profile.name, seen, limits, support)
        # A note where the chosen one's estimate is of a kind of board that estimates err most for
        estimate, note = choice.chosen and choice.chosen.estimate, caution(profile)
        if estimate and note in estimate.notes:
            choice = replace(choice, notes=(*choice.notes, note))
        alone = [
            OtherFile(one, next(iter(choose(profile.name, [one], limits, support).refused), None))
            for one in candidates(profile, support, others, clocks)
        ]
        found.append(BoardChoice((profile, support), choice, tuple(seen), tuple(alone)))
    return found


def pack(
    request: BuildRequest,
    maker: Maker,
    chosen_for: BoardChoice,
    results: Sequence[RecipeResult],
    signers: Sequence[Signer],
    anchors: Sequence[AnchorFile],
    degraded_by_profile: Mapping[str, BundleArtifact],
) -> BundleReport:
    """Write the board's bundle; nothing if every recipe was refused."""
    profile, choice, subject = chosen_for.board[0], chosen_for.choice, maker.subject
    if choice.chosen is None:
        return BundleReport(profile.name, None, choice, chosen_for.candidates, others=chosen_for.others)
    by_name = {one.recipe.name: one for one in results}
    degraded = degraded_by_profile.get(profile.name)

    def shipped(candidate: Candidate) -> BundleArtifact:
        one = by_name[candidate.recipe]
        assert one.artifact is not None
        found = lasting_estimate(*chosen_for.board, one, anchors)
        scores = one.fidelity.top_scores if one.fidelity is not None and not subject.sets.random else None
        return BundleArtifact(one.artifact, measured_json(one.fidelity), lasting_json(found), top_scores=scores)

    kept = (choice.chosen, *choice.alternates)
    if degraded is not None:
        notes = too_large_together(profile, choice.chosen, degraded.artifact)
        choice = replace(choice, notes=(*choice.notes, *notes))
    primary, *alternates = map(shipped, kept)
    batches = _batches(request, maker, by_name[kept[0].recipe])
    evaluation, reference = subject.sets.evaluation, subject.reference
    golden: Sequence[Mapping[str, NDArray[Any]]]
    texts: Sequence[str | None] = ()
    if subject.contract.state != "none":
        golden = golden_sequences(evaluation, subject.contract, reference)
    else:
        examples = list(evaluation.pick(pick_golden(reference)))
        golden, texts = [example.inputs for example in examples], [example.text for example in examples]
    draft, manifest = assemble(
        BundleContent(
            name=request.bundle_name,
            version=request.model_version,
            model_id=subject.source.sha256,
            contract=subject.contract,
            target=Target(profile.name, profile.arch, profile.threads, request.budget_ms),
            artifact=primary.artifact,
            golden=golden,
            texts=texts,
            fidelity=primary.fidelity,
            estimate=primary.estimate,
            top_scores=primary.top_scores,
            tools={"edgekit-deploy": RUNTIME_VERSION},
            alternates=alternates,
            batches=[
                BundleArtifact(one.artifact, measured_json(one.fidelity)) for one in batches if one.artifact is not None
            ],
            degraded=degraded,
            terms=request.terms,
            secret=request.encrypt,
            promise=promise_of(request.budget_ms, primary.estimate),
        )
    )
    estimated = {one.recipe: one.memory_bytes for one in kept}
    if degraded is not None:
        small = degraded.artifact
        estimated[small.recipe.name] = memory_bytes(small.recipe.format, small.data)
    manifest = with_memory(draft, manifest, estimated, subject.store, request.encrypt)
    path = request.output / f"{request.bundle_name}-{profile.name}.ekb"
    write_bundle(path, draft, manifest, signers)
    return BundleReport(profile.name, path, choice, chosen_for.candidates, tuple(batches), degraded, chosen_for.others)


def too_large_together(profile: Profile, chosen: Candidate, degraded: Artifact) -> tuple[str, ...]:
    """A note if the board's memory may not hold the chosen and the degraded artifact at once."""
    beside = memory_bytes(degraded.recipe.format, degraded.data)
    if chosen.memory_bytes is None or beside is None:
        return ()
    if chosen.format == degraded.recipe.format:  # one runtime for both
        beside -= PROCESS_BYTES[degraded.recipe.format]
    why = beyond_memory(profile.name, chosen.memory_bytes + beside, profile.memory.ram_mb)
    return () if why is None else (f"with the degraded artifact loaded, too, {why}",)


def _batches(request: BuildRequest, maker: Maker, chosen: RecipeResult) -> list[RecipeResult]:
    """Variants of the chosen artifact for the requested batches, if its file has a fixed batch."""
    alone = chosen.recipe.finished or maker.subject.contract.state != "none"
    if chosen.artifact is None or chosen.artifact.inputs[0].shape[0] != 1 or alone:
        return []
    limits = ChoiceLimits(request.max_drop)
    return [
        replace(one, artifact=None, fidelity=None, failed="it exceeds the limit")
        if one.fidelity is not None and not limits.allow(one.fidelity.loss)
        else one
        for one in (maker.batched(chosen, size) for size in request.batches)
    ]


_DO = "Build the smaller model for this board first, then pass its bundle"


def read_degraded(paths: Sequence[Path], profiles: Collection[str], secret: Secret | None) -> dict[str, Bundle]:
    """Board -> the bundle with its degraded artifact.

    Raises PackagingError, BundleError, IntegrityError, SecretError."""
    found: dict[str, Bundle] = {}
    for path in paths:
        bundle = read_bundle(path, secret=secret or find_secret)
        profile = bundle.manifest.target.profile
        if profile not in profiles:
            raise PackagingError(
                f"it is for {profile}, which is not among this build's profiles", where=str(path), do=_DO
            )
        if profile in found:
            raise PackagingError(f"a second bundle for {profile}", where=str(path), do="Pass one for each board")
        if bundle.locked:
            raise PackagingError(
                "its model file is encrypted", where=str(path), do="Pass its key with --encrypt, or set EDGEKIT_SECRET"
            )
        found[profile] = bundle
    return found


def degraded_artifact(bundle: Bundle, contract: Contract) -> BundleArtifact:
    """The bundle's primary artifact, renamed to this contract. Raises PackagingError."""
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
