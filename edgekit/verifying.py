"""Why a bundle is trusted, or why it is not: every check that opening makes, one after another, each told.

    report = verify(Path("net.ekb"), Asked(trust=("root.json",)), tell=print)
    report.error                                     # None, or the first reason against it

Rules:
- one descriptor is opened; what is checked, and what the child loads at the end, is read from it, whatever becomes of the name;
- the order is that of distrust: what nobody vouches for is not parsed, and what is not sound is not loaded;
- the first refusal ends it; what was not checked is told as such, never left out and never taken for good;
- a root may say that what answers there was taken unsigned: that is no waiver here, because who writes to it writes that;
- that a bundle is for another board is a refusal where the board was named, and a remark on a workstation.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit_runtime.errors import BundleError, EdgekitError

if TYPE_CHECKING:
    from edgekit_runtime.bundle import ArtifactEntry, Bundle, Manifest
    from edgekit_runtime.bundle.header import Header
    from edgekit_runtime.bundle.secrets import Given
    from edgekit_runtime.install.lock import Lease
    from edgekit_runtime.install.rules import Board
    from edgekit_runtime.trust import Moment, TrustStore, Vouched

__all__ = ["Asked", "Check", "Report", "verify"]


@dataclass(frozen=True)
class Asked:
    """trust: keys or a root.json, empty for what this machine (or the root) trusts. allow_unsigned: go on where nobody vouches.

    board: what this machine is. named: whether a person said so, and the bundle must fit. secret: where the key of an
    encrypted bundle is. load: whether a child loads it and replays its golden examples.
    """

    trust: tuple[str | Path, ...] = ()
    allow_unsigned: bool = False
    board: Board | None = None
    named: bool = False
    secret: Given = None
    load: bool = True


@dataclass(frozen=True)
class Check:
    """name: what was looked at. ok: None where it was not, or where it is a remark. told: what was found, in words."""

    name: str
    ok: bool | None
    told: str


@dataclass
class Report:
    """checks: in their order. vouched: whether somebody who is trusted here signed it. error: the first reason against it."""

    where: Path
    checks: list[Check] = field(default_factory=list)
    vouched: Vouched | None = None
    digest: str | None = None
    title: str | None = None
    error: EdgekitError | None = None

    @property
    def by_the_root(self) -> bool:
        """Whether the root itself says whom to trust, and not the caller or this machine."""
        from edgekit_runtime.install.reading import BY_THE_ROOT

        return self.vouched is not None and self.vouched.told.endswith(BY_THE_ROOT)

    @property
    def trusted(self) -> bool:
        return self.error is None and self.vouched is not None and self.vouched.trusted

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "bundle": str(self.where),
            "digest": self.digest,
            "ok": self.error is None,
            "trusted": self.trusted,
            "signed_by": list(self.vouched.signers) if self.vouched is not None else [],
            "checks": [{"check": one.name, "ok": one.ok, "told": one.told} for one in self.checks],
        }
        return told if self.error is None else {**told, "error": self.error.as_json()}


def verify(path: Path, asked: Asked, tell: Callable[[Check], object] = lambda check: None) -> Report:
    """path: a bundle, or a root of `edgekit install`, of which what answers is meant. tell: called after each check.

    Raises EdgekitError where there is nothing to verify (no such file, no such root), and where the key that was named for an
    encrypted one cannot be had: that says nothing against the bundle. What is wrong with the bundle stands in the report.
    """
    from edgekit_runtime.bundle.secret_key import SecretFormatError, SecretUnreadableError

    with _opened(path) as subject:
        work = _Verifying(subject, asked, tell)
        try:
            work.run()
        except (SecretFormatError, SecretUnreadableError):
            raise
        except EdgekitError as error:
            work.say(work.at, False, error.what)
            work.report.error = error
    return work.report


@dataclass(frozen=True)
class _Subject:
    """An open descriptor, and what is known of it from where it was found."""

    lease: Lease
    where: Path
    store: Callable[[tuple[str | Path, ...]], TrustStore | None]
    seen_s: float | None = None
    installed: bool = False


@contextmanager
def _opened(path: Path) -> Iterator[_Subject]:
    from edgekit_runtime.install.layout import Root, is_root
    from edgekit_runtime.install.reading import store_of

    if is_root(path):
        root = Root.open(path)
        lease, _ = root.hold_current()
        subject = _Subject(lease, lease.path, partial(store_of, root), root.journal().seen_s, True)
    else:
        lease = _held(path)
        subject = _Subject(lease, path, partial(store_of, None))
    try:
        yield subject
    finally:
        lease.release()


def _held(path: Path) -> Lease:
    """A file that a person named: links are followed, once. Raises BundleError."""
    from edgekit_runtime.install.errors import PlantedError
    from edgekit_runtime.install.lock import hold

    try:
        return hold(path.resolve(strict=True))
    except PlantedError as error:
        what = "a folder, and no root of `edgekit install`" if path.is_dir() else "not a regular file"
        raise BundleError(what, where=str(path), do="Pass a file that `edgekit build` wrote") from error
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a NUL
        why = getattr(error, "strerror", None) or str(error)
        raise BundleError(f"cannot be read: {why}", where=str(path), do="Check the path") from error


class _Verifying:
    def __init__(self, subject: _Subject, asked: Asked, tell: Callable[[Check], object]) -> None:
        self._subject, self._asked, self._tell = subject, asked, tell
        self._where = str(subject.where)
        self.report = Report(subject.where)
        self.at = "file"
        """What is being checked: whose refusal it would be."""

    def say(self, name: str, ok: bool | None, told: str) -> None:
        check = Check(name, ok, told)
        self.report.checks.append(check)
        self._tell(check)

    def run(self) -> None:
        """Raises EdgekitError at the first refusal."""
        from edgekit_runtime.bundle.header import read_header

        data = self._read()
        header = read_header(data, self._where)
        self.say("file", True, f"{len(data):,} bytes; the head is what was written")
        self.at = "signature"
        store = self._subject.store(self._asked.trust)
        moment = self._moment(store)
        self.report.vouched = self._vouched(store, header, moment)
        self.say("signature", self.report.vouched.trusted or None, self._who(store))
        self.at = "manifest"
        manifest = self._manifest(header)
        self.at = "contents"
        bundle = self._contents(data, manifest)
        self.at = "dates"
        self._dates(manifest, moment)
        self.at = "board"
        self._board(manifest)
        self._models(bundle)
        self._golden(bundle)
        self._replay(bundle)

    def _read(self) -> bytes:
        from edgekit_runtime.bundle.reader import read_open

        with self._subject.lease.file() as file:
            return read_open(file, self._where)

    def _moment(self, store: TrustStore | None) -> Moment:
        from edgekit_runtime.trust import judge

        return judge(seen_s=self._subject.seen_s, issued_s=store.issued_s if store is not None else None)

    def _vouched(self, store: TrustStore | None, header: Header, moment: Moment) -> Vouched:
        from edgekit_runtime.trust import vouch

        return vouch(
            store,
            header.manifest_bytes,
            header.signatures,
            now=moment,
            new=not self._subject.installed,
            allow_unsigned=self._asked.allow_unsigned,
            where=self._where,
        )

    def _who(self, store: TrustStore | None) -> str:
        assert self.report.vouched is not None
        if store is None or not self.report.vouched.trusted:
            return self.report.vouched.told
        needed = f"{store.bundle.threshold} of {len(store.bundle.keyids)} keys must sign"
        return f"{self.report.vouched.told} ({store.where}: {needed})"

    def _manifest(self, header: Header) -> Manifest:
        from edgekit_runtime.bundle.checks import parse_manifest

        manifest = parse_manifest(header.manifest_bytes, self._where)
        self.report.digest = hashlib.sha256(header.manifest_bytes).hexdigest()
        needs = ", ".join((f"edgekit {manifest.min_runtime} or newer", *manifest.requires))
        seq = "" if manifest.rollout_seq is None else f", rollout_seq {manifest.rollout_seq}"
        name = f"{manifest.name} version {manifest.version} for {manifest.target.profile}"
        self.report.title = name
        self.say("manifest", True, f"{name}: format {manifest.format}{seq}; it needs {needs}")
        return manifest

    def _contents(self, data: bytes, manifest: Manifest) -> Bundle:
        """Digests are checked without the key of an encrypted bundle; one that is found here and is another's is none."""
        from edgekit_runtime.bundle.reader import bundle_of
        from edgekit_runtime.bundle.secrets import find_secret

        vouched = self.report.vouched
        assert vouched is not None
        secret = self._asked.secret
        if secret is None and manifest.encrypted_with is not None:
            found = find_secret()
            secret = found if found is not None and manifest.encrypted_with in found.ids else None
        bundle = bundle_of(data, self._subject.where, lambda header: vouched.trusted, secret)
        sealed = "; encrypted, and opened with its key" if bundle.secret is not None else ""
        sealed = f"; encrypted with the key {manifest.encrypted_with:.12}" if bundle.locked else sealed
        self.say("contents", True, f"{len(bundle.manifest.blobs)} blobs, each with its SHA-256{sealed}")
        return bundle

    def _dates(self, manifest: Manifest, moment: Moment) -> None:
        from edgekit_runtime.install.errors import BundleExpiredError
        from edgekit_runtime.install.rules import check_dates

        said = [f"until {manifest.expires}"] if manifest.expires else []
        said += [f"from {manifest.not_before}"] if manifest.not_before else []
        try:
            check_dates(manifest, moment, self._where)
        except BundleExpiredError as error:
            if not self._subject.installed:
                raise
            self.say("dates", None, f"{error.what}; it was installed in time, and answers on")
            return
        self.say("dates", True, f"good {' and '.join(said)} {moment.told}" if said else "it does not expire")

    def _board(self, manifest: Manifest) -> None:
        from edgekit_runtime.install.errors import IncompatibleError
        from edgekit_runtime.install.rules import Board, check_board

        board = self._asked.board or Board()
        here = ", ".join(board.profiles) or f"not known, its architecture is {board.arch}"
        try:
            check_board(manifest, board, self._where)
        except IncompatibleError as error:
            if self._asked.named:
                raise
            aside = (
                "it was installed for a board that was named"
                if self._subject.installed
                else "`edgekit install` would refuse it here"
            )
            self.say("board", None, f"{error.what}; {aside}")
        else:
            self.say("board", True, f"for {', '.join(manifest.compatible)}; this board is {here}")

    def _models(self, bundle: Bundle) -> None:
        from edgekit_runtime.modelfile import check_artifact

        for entry in bundle.manifest.artifacts:
            self.at = f"model {entry.recipe}" + (" (batch)" if entry.role == "batch" else "")
            if bundle.locked:
                self.say(self.at, None, "not looked into: it is encrypted, and no key was given (--secret)")
                continue
            facts = check_artifact(bundle, entry)
            allowed = "all of them allowed by the manifest" if entry.ops is not None else "the manifest lists none"
            kinds = f"{facts.operators} operators of {len(facts.ops)} kinds, {allowed}"
            told = f"{entry.format}, {facts.version}: every offset and size holds; {kinds}"
            self.say(self.at, True, f"{told}; the largest tensor has {facts.largest_tensor_bytes:,} bytes")

    def _golden(self, bundle: Bundle) -> None:
        self.at = "golden"
        golden = bundle.manifest.golden
        if bundle.locked:
            self.say("golden", None, "not looked into: they are encrypted")
        elif not golden:
            self.say(
                "golden", None, "there are none: nothing tells whether this machine computes what the workstation did"
            )
        else:
            answered = sorted({answer.recipe for one in golden for answer in one.answers})
            examples = "1 example" if len(golden) == 1 else f"{len(golden)} examples"
            self.say("golden", True, f"{examples}, finite and of the right size, answered by {', '.join(answered)}")

    def _replay(self, bundle: Bundle) -> None:
        from edgekit_runtime.board import cores
        from edgekit_runtime.children import may_start
        from edgekit_runtime.engines import available
        from edgekit_runtime.modelfile.facts import delegated
        from edgekit_runtime.tuning.candidates import Wanted, candidates

        self.at = "replay"
        why = (
            "not asked for (--no-load)"
            if not self._asked.load
            else "the model file is encrypted"
            if bundle.locked
            else "no process can be started for it here"
            if not may_start()
            else ""
        )
        offer = (
            () if why else candidates(bundle.manifest, available(), Wanted.needed_by(bundle.manifest), cores=cores())
        )
        if not offer:
            needed = delegated(bundle.artifact().ops)
            engine = (
                f"only a delegate runs {needed[0]}: set EDGEKIT_DELEGATE"
                if needed
                else "no engine that runs it is installed here"
            )
            self.say("replay", None, f"not loaded: {why or engine}")
            return
        for recipe in dict.fromkeys(one.recipe for one in offer):
            candidate = next(one for one in offer if one.recipe == recipe)
            entry = next(one for one in bundle.manifest.artifacts if one.blob == candidate.blob)
            self.at = f"replay {recipe}"
            self._replay_one(bundle, entry, candidate.engine, candidate.setup)

    def _replay_one(self, bundle: Bundle, entry: ArtifactEntry, engine: str, setup: Any) -> None:
        from edgekit_runtime.children import run
        from edgekit_runtime.engines import expected_info
        from edgekit_runtime.selftest import first_open

        info = expected_info(engine, setup)
        with closing(self._subject.lease.file()) as file, tempfile.TemporaryDirectory() as folder:
            descriptor = file.fileno()
            child = partial(run, pass_fds=(descriptor,))
            ran = first_open(bundle, entry, info, folder=Path(folder), source=f"/dev/fd/{descriptor}", run=child)
            told = [json.loads(one.read_text(encoding="utf-8")) for one in Path(folder).glob("selftest/*.json")]
        if not ran or not told:
            self.say(self.at, None, f"{info.name} {info.version} came to no test in a process of its own")
            return
        by = "which made them" if told[0]["same_engine"] else "another than made them"
        count = told[0]["examples"]
        self.say(
            self.at,
            True,
            f"{info.name} {info.version}, {by}, gives {count} of {len(bundle.manifest.golden)} examples in a process of its own: "
            f"at most {told[0]['worst_steps']:.3g} steps apart, cosine {told[0]['worst_cosine']:.5f}, {info.arithmetic} arithmetic",
        )
