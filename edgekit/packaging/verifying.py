"""Why a bundle is trusted, or why not: every check of opening, one after another.

    verification = Verification(Path("net.ekb"), VerifyOptions(trust=("root.json",)))
    for check in verification: print(check)
    verification.error                               # None, or the first reason against it

Rules:
- everything is read from one open descriptor, even what a child loads at the end;
- what no trusted key has signed is not parsed, and what is malformed is not loaded;
- the first refusal ends it; a check that was left out is reported as such;
- a root's record of an unsigned install does not count here: anyone who can write to the root can write that;
- a bundle for another board is refused if the board was named, else mentioned.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgekit_runtime.system.errors import BundleError, EdgekitError, InstallError, SignatureError

if TYPE_CHECKING:
    from edgekit_runtime.bundle.manifest import ArtifactEntry, Manifest
    from edgekit_runtime.bundle.reader import Bundle, BundleCheck, Opening, Step
    from edgekit_runtime.bundle.secrets import SecretArgument
    from edgekit_runtime.bundle.trust_finding import TrustDecision
    from edgekit_runtime.bundle.trust_store import TrustStore, TrustTime
    from edgekit_runtime.engines.registry import EngineSetup
    from edgekit_runtime.install.layout import Generation
    from edgekit_runtime.install.lock import Lease
    from edgekit_runtime.install.rules import BoardIdentity

_Result = tuple[bool | None, str]


@dataclass(frozen=True)
class VerifyOptions:
    """trust: keys or a root.json, empty for what this machine (or the root) trusts
    allow_unsigned: continue if no trusted key has signed it
    board: what this machine is
    named: whether a person named the board, so that the bundle must fit
    secret: of an encrypted bundle
    replay: whether a child loads it and replays its golden examples
    """

    trust: tuple[str | Path, ...] = ()
    allow_unsigned: bool = False
    board: BoardIdentity | None = None
    named: bool = False
    secret: SecretArgument = None
    replay: bool = False


class Verification:
    """The checks of one bundle; iterating makes and yields them, and the last one may refuse.

    path: a bundle, or an install root for its active one
    checks: those made so far
    error: the first reason against the bundle
    generation, state: of a root's active bundle

    Iterating raises EdgekitError if there is nothing to verify, or if a key that was named cannot be read.
    """

    def __init__(self, path: Path, options: VerifyOptions) -> None:
        self._path = self._where = path
        self._options = options
        self.checks: list[BundleCheck] = []
        self.error: EdgekitError | None = None
        self._opening: Opening | None = None
        self.generation: Generation | None = None
        self.state: Literal["committed", "trial"] = "committed"

    def __iter__(self) -> Iterator[BundleCheck]:
        from edgekit_runtime.bundle.reader import NO_KEY, checks_of

        with _open_subject(self._path) as subject:
            self._where, self.generation, self.state = subject.where, subject.generation, subject.state
            try:
                for check in checks_of(self._steps(subject)):
                    self.checks.append(check)
                    yield check
            except EdgekitError as error:
                if error.code in NO_KEY:
                    raise
                if subject.generation is not None and subject.generation.unsigned and isinstance(error, SignatureError):
                    error.what += "; it was installed with --allow-unsigned"
                error.speak_cli()
                self.error = error

    @property
    def trust_decision(self) -> TrustDecision | None:
        """Who signed it; None if that was not checked."""
        return getattr(self._opening, "trust_decision", None)

    @property
    def manifest(self) -> Manifest | None:
        return getattr(self._opening, "manifest", None)

    @property
    def trusted(self) -> bool:
        return self.error is None and self.trust_decision is not None and self.trust_decision.trusted

    def as_json(self) -> dict[str, Any]:
        record: dict[str, Any] = {
            "bundle": str(self._where),
            "digest": self._opening.header.digest if self._opening is not None and self.manifest is not None else None,
            "ok": self.error is None,
            "trusted": self.trusted,
            "signed_by": list(self.trust_decision.signers) if self.trust_decision is not None else [],
            "checks": [{"check": one.name, "ok": one.ok, "told": one.text} for one in self.checks],
        }
        return record if self.error is None else {**record, "error": self.error.as_json()}

    def open_as_application(self, engine: str | None, threads: int | None) -> dict[str, Any]:
        """Choose, load, replay and warm up what was verified, as an application would.

        Raises what `prepare` raises, and SecretError for an encrypted bundle without its key.
        """
        from edgekit_runtime.loading.candidates import TuningOptions
        from edgekit_runtime.loading.readiness import Preparation, prepare

        assert self._opening is not None
        prepared = prepare(self._opening.bundle, Preparation(TuningOptions(engine, threads)))
        prepared.close()
        info, tested = prepared.engine.info, prepared.tested
        return {
            "recipe": prepared.entry.recipe,
            "engine": {name: getattr(info, name) for name in ("name", "version", "threads", "arithmetic")},
            "examples": tested.examples,
            "same_engine": tested.same_engine,
            "worst_steps": tested.worst_steps,
            "worst_cosine": tested.worst_cosine,
        }

    def _steps(self, subject: _OpenFile) -> Iterator[tuple[str, Step]]:
        from edgekit_runtime.bundle.reader import Opening, read_open
        from edgekit_runtime.bundle.secrets import find_secret
        from edgekit_runtime.bundle.trust_finding import TrustPolicy
        from edgekit_runtime.bundle.trust_store import judge

        def everything() -> bytes:
            with subject.lease.file() as file:
                return read_open(file, str(subject.where))

        options, store = self._options, subject.store(self._options.trust)
        moment = judge(seen_s=subject.seen_s, issued_s=store.issued_s if store is not None else None)
        policy = TrustPolicy(store, options.allow_unsigned, new=subject.generation is None, now=moment)
        own = options.secret is None  # this machine's key is used for digests alone
        secret = find_secret if own else options.secret
        opening = self._opening = Opening(subject.where, policy, secret, spare_key=own)
        yield from opening.steps(everything)
        manifest, bundle = opening.manifest, opening.bundle
        yield "dates", partial(_check_dates_of, manifest, moment, subject)
        yield "board", partial(_check_board_of, manifest, options, subject)
        for entry in manifest.artifacts:
            yield (
                f"model {entry.recipe}" + (" (batch)" if entry.role == "batch" else ""),
                partial(_check_model_file, bundle, entry),
            )
        yield "golden", partial(_describe_golden, bundle)
        yield from _replay_steps(bundle, subject, options.replay)


@dataclass(frozen=True)
class _OpenFile:
    """An open descriptor, with its root's facts."""

    lease: Lease
    where: Path
    store: Callable[[tuple[str | Path, ...]], TrustStore | None]
    seen_s: float | None = None
    generation: Generation | None = None
    state: Literal["committed", "trial"] = "committed"


@contextmanager
def _open_subject(path: Path) -> Iterator[_OpenFile]:
    """A bundle, or a root's active one, held open; links are followed once. Raises BundleError."""
    from edgekit_runtime.install.layout import Root, is_root
    from edgekit_runtime.install.lock import hold
    from edgekit_runtime.install.root_objects import store_of

    if is_root(path):
        root = Root.open(path)
        lease, generation = root.hold_current()
        journal = root.journal()
        state: Literal["committed", "trial"] = "trial" if journal.on_trial == generation.number else "committed"
        subject = _OpenFile(lease, lease.path, partial(store_of, root), journal.seen_s, generation, state)
    else:
        try:
            lease = hold(path.resolve(strict=True))
        except InstallError as error:
            if error.code != "planted":
                raise
            what = "a folder, and no root of `edgekit install`" if path.is_dir() else "not a regular file"
            raise BundleError(what, where=str(path), do="Pass a file that `edgekit build` wrote") from error
        except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a NUL
            why = getattr(error, "strerror", None) or str(error)
            raise BundleError(f"cannot be read: {why}", where=str(path), do="Check the path") from error
        subject = _OpenFile(lease, path, partial(store_of, None))
    try:
        yield subject
    finally:
        lease.release()


def _check_dates_of(manifest: Manifest, moment: TrustTime, subject: _OpenFile) -> _Result:
    from edgekit_runtime.install.rules import check_dates

    said = [f"until {manifest.expires}"] if manifest.expires else []
    said += [f"from {manifest.not_before}"] if manifest.not_before else []
    try:
        check_dates(manifest, moment, str(subject.where))
    except InstallError as error:
        if error.code != "expired" or subject.generation is None:
            raise
        return None, f"{error.what}; it was installed in time, and stays active"
    return True, f"good {' and '.join(said)} {moment.text}" if said else "it does not expire"


def _check_board_of(manifest: Manifest, options: VerifyOptions, subject: _OpenFile) -> _Result:
    from edgekit_runtime.install.rules import BoardIdentity, check_board

    board = options.board or BoardIdentity()
    here = ", ".join(board.profiles) or f"not known, its architecture is {board.arch}"
    try:
        check_board(manifest, board, str(subject.where))
    except InstallError as error:
        if error.code != "incompatible" or options.named:
            raise
        named = subject.generation is not None
        aside = "it was installed for a board that was named" if named else "`edgekit install` would refuse it here"
        return None, f"{error.what}; {aside}"
    return True, f"for {', '.join(manifest.compatible)}; this board is {here}"


def _check_model_file(bundle: Bundle, entry: ArtifactEntry) -> _Result:
    from edgekit_runtime.modelfile.check import check_artifact

    if bundle.locked:
        return None, "not checked: it is encrypted, and no key was given (--secret)"
    facts = check_artifact(bundle, entry)
    allowed = "all of them allowed by the manifest" if entry.ops is not None else "the manifest lists none"
    kinds = f"{facts.operators} operators of {len(facts.ops)} kinds, {allowed}"
    structure = f"{entry.format}, {facts.version}: every offset and size holds; {kinds}"
    return True, f"{structure}; the largest tensor has {facts.largest_tensor_bytes:,} bytes"


def _describe_golden(bundle: Bundle) -> _Result:
    golden = bundle.manifest.golden
    if bundle.locked:
        return None, "not checked: they are encrypted"
    if not golden:
        return None, "there are none: nothing shows whether this machine computes what the workstation did"
    answered = sorted({answer.recipe for one in golden for answer in one.answers})
    examples = "1 example" if len(golden) == 1 else f"{len(golden)} examples"
    return True, f"{examples}, finite and of the right size, answered by {', '.join(answered)}"


def _replay_steps(bundle: Bundle, subject: _OpenFile, replay: bool) -> Iterator[tuple[str, Step]]:
    from edgekit_runtime.engines.registry import available
    from edgekit_runtime.loading.candidates import TuningOptions, candidates, untried_candidates
    from edgekit_runtime.modelfile.check import delegated_operators
    from edgekit_runtime.system.board import cores
    from edgekit_runtime.system.children import may_start

    why = ""
    if not replay:
        why = "not asked for (--replay)"
    elif bundle.locked:
        why = "the model file is encrypted"
    elif not may_start():
        why = "no process can be started for it here"
    wanted = TuningOptions.needed_by(bundle.manifest)
    ways = [wanted, *(replace(wanted, pin=one.recipe) for one in bundle.manifest.artifacts if one.role == "degraded")]
    offer = tuple(
        one
        for way in ([] if why else ways)
        for one in untried_candidates(candidates(bundle.manifest, available(), way, cores=cores()))
    )
    if not offer:
        needed = delegated_operators(bundle.artifact().ops)
        engine = (
            f"only a delegate runs {needed[0]}: set EDGEKIT_DELEGATE"
            if needed
            else "no engine that runs it is installed here"
        )
        yield "replay", lambda: (None, f"not loaded: {why or engine}")
    for recipe in dict.fromkeys(one.recipe for one in offer):
        candidate = next(one for one in offer if one.recipe == recipe)
        entry = next(one for one in bundle.manifest.artifacts if one.blob == candidate.blob)
        yield f"replay {recipe}", partial(_replay, bundle, entry, candidate.engine, candidate.setup, subject.lease)


def _replay(bundle: Bundle, entry: ArtifactEntry, engine: str, setup: EngineSetup, lease: Lease) -> _Result:
    from edgekit_runtime.engines.registry import expected_info
    from edgekit_runtime.loading.selftest import first_open, last_verdict
    from edgekit_runtime.system.children import run

    info = expected_info(engine, setup)
    with closing(lease.file()) as file, tempfile.TemporaryDirectory() as folder:
        descriptor = file.fileno()
        child = partial(run, pass_fds=(descriptor,))
        ran = first_open(bundle, entry, info, folder=Path(folder), source=f"/dev/fd/{descriptor}", run=child)
        tested = last_verdict(bundle, entry, info, folder=Path(folder))
    if not ran or tested is None:
        return None, f"{info.name} {info.version} came to no test in a process of its own"
    by = "the one that made them" if tested.same_engine else "a different one from the one that made them"
    return True, (
        f"{info.name} {info.version}, {by}, gives {tested.examples} of {len(bundle.manifest.golden)} examples in a "
        f"process of its own: at most {tested.worst_steps:.3g} steps apart, cosine {tested.worst_cosine:.5f}, "
        f"{info.arithmetic} arithmetic"
    )
