"""Push a bundle to a board over ssh: copy, install, self-test and time it.

    pushed = push(PushRequest(Path("digits.ekb"), Address("pi@board")), open_catalogue())
    pushed.sent_bytes, pushed.bench["p50_ms"]

Rules:
- the board is probed, and refused if it cannot take the bundle, before anything is sent;
- files are sent into the prefix alone, because its parent may belong to another user;
- the board keeps files by their SHA-256: it gets only what it lacks, and resumes partial files;
- the board's `edgekit install` decides whether the bundle becomes active.
"""

from __future__ import annotations

import io
import re
import shlex
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from edgekit.shipping import ssh
from edgekit.shipping.folder import board_script
from edgekit.shipping.package import PackageOptions, PackageRequest, PackageResult, pack, packed_files
from edgekit.shipping.plan import BoardRefusedError, ShippingError, package_name
from edgekit.shipping.wheels import sha256_of
from edgekit_profiles import Catalogue, Profile
from edgekit_profiles.anchors import parse_anchor_file
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.system.strict_json import read_json

_SMALL = 1 << 20
_UNPACKED = 3.5  # an environment's size on the disk against that of its wheels, rounded up
_WHERE = 'printf "uid %s\\nhome %s\\n" "$(id -u)" "${XDG_DATA_HOME:-$HOME/.local/share}"'
_INSTALL_S, _BENCH_S = 3600.0, 3600.0
_AS_BEFORE = "The active bundle there stays active"
_NO_KEY = (
    "Keys are never sent: put it into the board's /etc/edgekit/secret or that login's ~/.config/edgekit/secret, "
    "of mode 600, and deploy again. The active bundle there stays active"
)
Say = Callable[[str], None]


@dataclass(frozen=True)
class PushRequest(PackageOptions):
    """profile: None to detect it
    prefix: folder on the board, "" for the installer's default
    bench: arguments for `edgekit bench` there, None for no timing
    measure: whether `edgekit profiles measure` runs there
    """

    bundle: Path
    address: ssh.Address
    profile: Profile | None = None
    prefix: str = ""
    bench: tuple[str, ...] | None = ()
    measure: bool = False


@dataclass(frozen=True)
class PushResult:
    """prefix: folder on the board
    sent, kept: numbers of files
    bench: the record of `edgekit bench`, or None
    anchors: the content of an anchor file, or None
    """

    packed: PackageResult
    board: ssh.RemoteBoard
    prefix: str
    sent: int
    kept: int
    sent_bytes: int
    selftest: dict[str, Any]
    bench: dict[str, Any] | None
    anchors: dict[str, Any] | None = None


def push(request: PushRequest, catalogue: Catalogue, say: Say = lambda _: None) -> PushResult:
    """say: called at each step. Raises SshError, BoardRefusedError, and what `pack` raises."""
    manifest = read_bundle(request.bundle).manifest
    name = package_name(manifest.name)
    with (
        ssh.SshConnection(request.address) as connection,
        tempfile.TemporaryDirectory(prefix="edgekit-push-") as folder,
    ):
        board = ssh.probe(connection, catalogue, request.prefix)
        profile = ssh.profile_for(board, request.profile, request.address.to)
        say(f"{request.address.to} is {profile.name} ({board.detected.sure}: {board.detected.why})")
        prefix = _resolve_prefix(board.root, board.home, name, request.prefix)
        options = {field.name: getattr(request, field.name) for field in fields(PackageOptions)}
        place = Path(folder) / "package"
        packed = pack(PackageRequest(request.bundle, profile, place, request.measure, **options))
        say(
            f"packed {packed.bytes / 1e6:,.1f} MB for Python {packed.python} with {packed.engine} "
            f"{packed.engine_version}"
        )
        needed = packed.bytes / 1e6 * (1 + _UNPACKED)
        if board.free_mb and board.free_mb < needed:
            raise BoardRefusedError(
                f"{board.free_mb:,.0f} MB free, and copying and installing needs up to {needed:,.0f}",
                where=request.address.to,
                do="Free some space, or use another --prefix",
            )
        sent, kept, size = send(connection, packed, prefix, say)
        say(f"installing into {prefix}")
        _install(connection, packed, prefix, manifest.encrypted_with)
        waiver = ("--allow-unsigned",) if request.allow_unsigned else ()
        verify = _edgekit_command(prefix, "verify", f"{prefix}/model", "--replay", "--json", *waiver)
        selftest = _parse_record(connection.run(verify, timeout_s=_INSTALL_S), request.address.to)
        record = None
        if request.bench is not None:
            say("timing it there")
            record = _bench(connection, prefix, request.bench, request.bundle)
        anchors = None
        if request.measure:
            say("timing MobileNetV1 there")
            measure = _edgekit_command(prefix, "profiles", "measure", "--anchors", f"{prefix}/anchors", "--json")
            done = connection.run(measure)
            anchors = _parse_record(done, request.address.to)
            parse_anchor_file(done.out, request.address.to)
    return PushResult(packed, board, prefix, sent, kept, size, selftest, record, anchors)


def bench_on(address: ssh.Address, bundle: Path, arguments: tuple[str, ...], prefix: str = "") -> dict[str, Any]:
    """The record of `edgekit bench` on a board with this bundle. Raises SshError, ShippingError."""
    name = package_name(read_bundle(bundle).manifest.name)
    with ssh.SshConnection(address) as connection:
        board = ssh.probe_words(connection.check(_WHERE))
        place = _resolve_prefix(board["uid"][-1:] == ["0"], (board["home"] or [""])[-1], name, prefix)
        there = connection.run('sha256sum <"$1/model/current/bundle.ekb"', place)
        if there.code != 0 or there.out[:64] != sha256_of(bundle):
            what = "it is not installed on the board"
            if there.code == 0:
                what = "a different bundle of that name is installed on the board"
            there_too = f" --prefix {shlex.quote(prefix)}" if prefix else ""
            raise ShippingError(what, where=address.to, do=f"Run: edgekit deploy {bundle} {address.to}{there_too}")
        return _bench(connection, place, arguments, bundle)


def _resolve_prefix(root: bool, home: str, name: str, prefix: str) -> str:
    """prefix: of --prefix, "" for the default. Raises ShippingError unless it is absolute."""
    if prefix and not prefix.startswith("/"):
        raise ShippingError(f"{prefix!r:.80} is not an absolute path", where="--prefix", do="Start it with /")
    if prefix and not prefix.strip("/"):
        raise ShippingError("/ itself cannot be the prefix", where="--prefix", do="Name a folder below it")
    if not (prefix or root or home):
        raise ShippingError("the board did not report a data directory", do="Name a folder there with --prefix")
    return prefix.rstrip("/") or f"{'/opt' if root else home}/edgekit/{name}"


def send(connection: ssh.SshConnection, packed: PackageResult, prefix: str, say: Say) -> tuple[int, int, int]:
    """(files sent, files that were there, bytes sent); a damaged file is sent once more."""
    files = packed_files(packed.path)
    places = {digest: packed.path / name for name, digest in files.items()}
    sent, size = 0, 0
    for _ in range(2):
        wanted = missing_files(connection, prefix, places)
        if not wanted:
            break
        say(f"sending {len(wanted)} of {len(places)} files")
        sent, size = sent + len(wanted), size + _send_files(connection, prefix, places, wanted)
    else:
        if missing_files(connection, prefix, places):
            raise ShippingError("files arrived damaged twice", where=connection.address.to, do="Check the board's disk")
    listing = "".join(f"{digest} {name}\n" for name, digest in files.items()).encode()
    _store(connection, prefix, "place", packed.release, given=listing)
    return sent, max(len(places) - sent, 0), size


def missing_files(connection: ssh.SshConnection, prefix: str, places: dict[str, Path]) -> dict[str, int]:
    """SHA-256 of each file that the board lacks -> bytes of an earlier try."""
    asked = "".join(f"{digest} {path.stat().st_size}\n" for digest, path in sorted(places.items())).encode()
    said = re.findall(r"(?m)^([0-9a-f]{64}) ([0-9]{1,15})$", _store(connection, prefix, "wanted", given=asked))
    return {digest: min(int(have), places[digest].stat().st_size) for digest, have in said if digest in places}


def _send_files(connection: ssh.SshConnection, prefix: str, places: dict[str, Path], wanted: dict[str, int]) -> int:
    """Send small files together and resume large ones one by one; return bytes sent."""
    small = [digest for digest in wanted if places[digest].stat().st_size < _SMALL]
    size = 0
    if small:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for digest in small:
                entry = tarfile.TarInfo(digest)
                entry.size, entry.mode = places[digest].stat().st_size, 0o644
                with places[digest].open("rb") as source:
                    archive.addfile(entry, source)
        size += len(stream.getvalue())
        _store(connection, prefix, "unpack", given=stream.getvalue())
        _store(connection, prefix, "keep", *small)
    for digest in sorted(set(wanted) - set(small), key=lambda one: places[one].stat().st_size):
        with places[digest].open("rb") as source:
            source.seek(wanted[digest])
            _store(connection, prefix, "append", digest, given=source)
        size += places[digest].stat().st_size - wanted[digest]
        _store(connection, prefix, "keep", digest)
    return size


def _install(connection: ssh.SshConnection, packed: PackageResult, prefix: str, key: str | None) -> None:
    """Run the installer on the board. key: id of the key of encrypted blobs, never sent."""
    installer = f"{prefix}/pushed/{packed.release}/install.sh"
    done = connection.run('sh "$@" 2>&1', installer, "--prefix", prefix, timeout_s=_INSTALL_S)
    lines = [line for line in done.out.splitlines() if line.strip()]
    if done.code != 0:
        said = next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), "")
        why = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), said)
        raise ShippingError(
            f"the install failed: {why or (lines[-1] if lines else 'the installer printed nothing')}",
            where=connection.address.to,
            do=_NO_KEY if key is not None and f"key {key:.12}" in why else _AS_BEFORE,
        )
    _store(connection, prefix, "prune", packed.release)


def _bench(connection: ssh.SshConnection, prefix: str, arguments: tuple[str, ...], bundle: Path) -> dict[str, Any]:
    """The board's record, with the bundle's name here."""
    command = _edgekit_command(prefix, "bench", f"{prefix}/model", "--json", *arguments)
    record = _parse_record(connection.run(command, timeout_s=_BENCH_S), connection.address.to)
    return record | {"bundle": str(bundle), "on": connection.address.to}


def _parse_record(done: ssh.CommandResult, where: str) -> dict[str, Any]:
    """Parse the object that a command on the board printed. Raises ShippingError."""
    try:
        record = read_json(dict[str, Any], done.out, "its answer")
    except ValueError as error:
        last = (done.err.strip().splitlines() or ["no output"])[-1]
        raise ShippingError(f"the command returned no result: {last}", where=where) from error
    if "error" in record:
        with ssh.answered_by(where):
            what, do = str(record["error"]["what"]), str(record["error"]["do"])
        raise ShippingError(what, where=where, do=do)
    return record


def _edgekit_command(prefix: str, *words: str) -> str:
    state = shlex.quote(f"{prefix}/state")
    return f"EDGEKIT_STATE_DIR={state} {shlex.join([f'{prefix}/env/bin/edgekit', *words])}"


def _store(connection: ssh.SshConnection, prefix: str, task: str, *names: str, given: Any = None) -> str:
    again = "What was copied is kept: run it again"
    return connection.check(board_script("store"), prefix, task, *names, given=given, timeout_s=_INSTALL_S, do=again)
