"""Bundle files that the fleet server hands out to boards: `/bundles/SHA256.ekb`.

    files = BundleFiles(Path("bundles"))
    bundle = files.add(Path("net.ekb"))            # copied there under the name of its bytes

Rules:
- a file is served if a roll-out knows it; its name is the SHA-256 of its bytes, which only who has the bundle, or was
  ordered to fetch it, can know;
- nothing here is trusted: a board checks the digest, the signature and the rest by itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.fleet.errors import FleetError
from edgekit.fleet.rollout_tables import RolloutBundle
from edgekit_runtime.bundle.checks import parse_manifest
from edgekit_runtime.install.fetch import head_of, source_of
from edgekit_runtime.whole_file import write_durably

if TYPE_CHECKING:
    from starlette.routing import Route

_NAME = re.compile(r"([0-9a-f]{64})\.ekb\Z")


def read_bundle_facts(path: Path) -> tuple[RolloutBundle, bytes]:
    """What a roll-out needs to know, and the bytes.
    Raises BundleError; no signature is checked: boards do that."""
    header = head_of(source_of(path))
    manifest = parse_manifest(header.manifest_bytes, str(path))
    data = path.read_bytes()
    target = manifest.target
    compatible = tuple(dict.fromkeys((target.profile, *manifest.compatible)))
    digest = hashlib.sha256(data).hexdigest()
    name, version = manifest.name[:64], manifest.version[:64]  # as boards report them
    return RolloutBundle(name, version, target.profile, compatible, digest, header.digest[:12], len(data)), data


def bundles_beside(store: str) -> Path:
    """Where a server with that store keeps bundles, unless it is named another folder."""
    _, found, path = store.partition(":///")
    return Path(path).parent / "bundles" if store.startswith("sqlite") and found else Path("bundles")


class BundleFiles:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, sha256: str, data: bytes) -> Path:
        """Raises FleetError where it cannot be written."""
        path = self.folder / f"{sha256}.ekb"
        try:
            self.folder.mkdir(exist_ok=True)
            write_durably(path, data)
        except OSError as error:
            what = f"the bundle cannot be kept for the server ({error.strerror or error})"
            raise FleetError(
                what, where=str(path), do="Check the folder's rights; or offer it yourself: --url"
            ) from error
        return path

    def find(self, name: str, knows: Callable[[str], bool]) -> Path | None:
        found = _NAME.match(name)
        path = self.folder / name
        return path if found is not None and path.is_file() and knows(found[1]) else None


def bundle_route(files: BundleFiles, knows: Callable[[str], bool]) -> Route:
    """With ranges and validators, as a download that resumes needs them."""
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
