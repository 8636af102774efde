"""uvicorn's HTTP with bounds on connections and deadlines; bundle files for boards.

    uvicorn.Config(app, http=bounded(request_s=10, most=256, most_a_peer=64, exempt=("127.0.0.1",)))

    bundle = BundleFiles(Path("bundles")).add(Path("net.ekb"))            # boards fetch it as /bundles/SHA256.ekb

Rules:
- a connection is closed if a request is incomplete `request_s` after the connection, or after its own first byte;
- at most `most` connections are open, and `most_a_peer` of one address (IPv6: one network); a new one replaces the one
  that has waited longest without a complete request, or is closed;
- `most` is at most a quarter of the process's descriptors; an exempt address, a trusted proxy's, has no own bound;
- a bundle is served if a roll-out knows it, under the SHA-256 of its bytes, which outsiders cannot guess;
- nothing here is trusted: a board checks digest and signature itself.
"""

from __future__ import annotations

import asyncio  # noqa: TID253 - this module is only loaded by a server
import hashlib
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: TID253

from edgekit.fleet.open_files import raise_limit
from edgekit.fleet.rollouts.rollout_tables import RolloutBundle
from edgekit.fleet.store.fleet_errors import FleetError
from edgekit.peers import peer_of
from edgekit_runtime.bundle.checks import parse_manifest
from edgekit_runtime.install.fetch import head_of, source_of
from edgekit_runtime.system.files import write_durably

if TYPE_CHECKING:
    from starlette.routing import Route

MOST_HEAD_BYTES = 16 * 1024


def bounded(*, request_s: float, most: int, most_a_peer: int, exempt: Collection[str] = ()) -> type[H11Protocol]:
    """A protocol class for `uvicorn.Config(http=...)`; its connections count together."""

    class Protocol(_BoundedProtocol):
        _table = _Table(request_s, min(most, max(8, raise_limit() // 4)), most_a_peer, frozenset(exempt))

    return Protocol


class _Table:
    """The open connections, oldest first, each with its peer's address."""

    def __init__(self, request_s: float, most: int, most_a_peer: int, exempt: Collection[str]) -> None:
        self.request_s = request_s
        self._most, self._most_a_peer, self._exempt = most, most_a_peer, exempt
        self._open: dict[_BoundedProtocol, str] = {}  # with whose it is

    def admit(self, one: _BoundedProtocol, peer: str) -> bool:
        """Add a connection, replacing a waiting one at the limit. False if there is no room."""
        exempt, peer = peer in self._exempt, peer_of(peer)
        same = [other for other, theirs in self._open.items() if theirs == peer]
        full = not exempt and len(same) >= self._most_a_peer
        if full or len(self._open) >= self._most:
            waiting = next((other for other in (same if full else self._open) if other.waits), None)
            if waiting is None:
                return False
            self.remove(waiting)
            waiting.transport.abort()
        self._open[one] = peer
        return True

    def remove(self, one: _BoundedProtocol) -> None:
        self._open.pop(one, None)


class _BoundedProtocol(H11Protocol):
    _table: _Table

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._admitted = False

    @property
    def waits(self) -> bool:
        """Whether it waits for a complete request."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        address = transport.get_extra_info("peername")
        self._admitted = self._table.admit(self, str(address[0]) if address else "")
        if not self._admitted:
            transport.abort()
            return
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._table.remove(self)
        if self._admitted:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._admitted:
            return
        super().data_received(data)
        if self.waits:
            self._begin()
        else:
            self._end()

    def _begin(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._table.request_s, self._time_out)

    def _end(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _time_out(self) -> None:
        self._deadline = None
        if self.waits:
            self.transport.abort()


_NAME = re.compile(r"([0-9a-f]{64})\.ekb\Z")


def read_bundle_facts(path: Path) -> tuple[RolloutBundle, bytes]:
    """(facts for a roll-out, bytes), without checking the signature. Raises BundleError."""
    header = head_of(source_of(path))
    manifest = parse_manifest(header.manifest_bytes, str(path))
    data = path.read_bytes()
    target = manifest.target
    compatible = tuple(dict.fromkeys((target.profile, *manifest.compatible)))
    digest = hashlib.sha256(data).hexdigest()
    name, version = manifest.name[:64], manifest.version[:64]  # as boards report them
    return RolloutBundle(name, version, target.profile, compatible, digest, header.digest[:12], len(data)), data


def bundles_beside(store: str) -> Path:
    """Default folder of the bundles of a server with that store."""
    _, found, path = store.partition(":///")
    return Path(path).parent / "bundles" if store.startswith("sqlite") and found else Path("bundles")


class BundleFiles:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, sha256: str, data: bytes) -> Path:
        """Raises FleetError if it cannot be written."""
        path = self.folder / f"{sha256}.ekb"
        try:
            self.folder.mkdir(exist_ok=True)
            write_durably(path, data)
        except OSError as error:
            what = f"cannot store the bundle for the server ({error.strerror or error})"
            do = "Check the folder's permissions, or serve it yourself with --url"
            raise FleetError(what, where=str(path), do=do) from error
        return path

    def find(self, name: str, knows: Callable[[str], bool]) -> Path | None:
        found = _NAME.match(name)
        path = self.folder / name
        return path if found is not None and path.is_file() and knows(found[1]) else None


def bundle_route(files: BundleFiles, knows: Callable[[str], bool]) -> Route:
    """Serves ranges and validators, for downloads that resume."""
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import FileResponse, PlainTextResponse, Response
    from starlette.routing import Route

    async def give(request: Request) -> Response:
        name = request.path_params["name"]
        path = await run_in_threadpool(files.find, name, knows)
        if path is None:
            return PlainTextResponse("Not Found: no roll-out has that bundle.\n", 404)
        headers = {"etag": f'"{path.stem}"', "cache-control": "private, immutable"}
        return FileResponse(path, media_type="application/octet-stream", headers=headers)

    return Route("/bundles/{name}", give)
