"""Models that come and go while the server runs: the protocol's repository extension.

    loader = Loader(repository, lanes, clock)
    await loader.load("digits")                 # returns once it is verified, self-tested and warm
    await loader.unload("digits")               # returns once its requests are answered and it is closed

Rules:
- one model is loaded at a time, in a thread; requests for others are answered meanwhile;
- a version that replaces another answers as soon as it is warm; the old one is closed after its last request;
- a client that leaves does not interrupt a load;
- a failed load is 400 with the reason, and changes nothing that is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from edgekit.host.admission import Lane
from edgekit.host.http1 import RequestError
from edgekit.host.models import ListedBundle, Repository, ServedModel
from edgekit_runtime import EdgekitError

_DRAIN_S = 10.0
_LOOK_S = 0.01
Key = tuple[str, str]
Result = TypeVar("Result")


class Loader:
    """Belongs to one event loop. lanes: id of a served model -> its lane."""

    def __init__(self, repository: Repository, lanes: dict[int, Lane], new_lane: Callable[[ServedModel], Lane]) -> None:
        self._repository, self._lanes, self._new_lane = repository, lanes, new_lane
        self._one = asyncio.Lock()
        self._loading: set[Key] = set()
        self._failed: dict[Key, str] = {}
        self._tasks: set[asyncio.Future[Any]] = set()

    def loading(self, name: str, version: str | None) -> bool:
        """Whether this model is still loading."""
        return any(one == name and version in (None, two) for one, two in self._loading)

    async def index(self, *, ready: bool) -> list[dict[str, str]]:
        """Every model and version in the protocol's form. ready: only the served ones."""
        served = {(one.manifest.name, one.manifest.version): one for one in self._repository.all()}
        states = [_state(key, "READY") for key in served]
        if ready or self._repository.folder is None:
            return states
        for listed in await asyncio.to_thread(self._repository.folder.bundles):
            if listed.manifest is None:
                states.append(_state((listed.path.stem, ""), "UNAVAILABLE", listed.reason))
                continue
            key = (listed.manifest.name, listed.manifest.version)
            if key in self._loading:
                states.append(_state(key, "LOADING"))
            elif key not in served:
                states.append(_state(key, "UNAVAILABLE", self._failed.get(key, "not loaded")))
        return states

    async def load(self, name: str, version: str | None = None) -> None:
        """Load one version of a model from the folder, or all. Raises RequestError."""
        await self._shielded(self._load(name, version))

    async def unload(self, name: str, version: str | None = None) -> None:
        """Raises RequestError(404)."""

        async def unload() -> None:
            async with self._one:
                for one in self._repository.remove(name, version):
                    await self._close(one)

        await self._shielded(unload())

    async def _shielded(self, work: Awaitable[Result]) -> Result:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _load(self, name: str, version: str | None) -> None:
        async with self._one:
            folder = self._repository.folder
            found = await asyncio.to_thread(folder.find, name) if folder is not None else []
            wanted = [one for one in found if version in (None, _key(one)[1])]
            if not wanted:
                raise RequestError(404, "the folder has no such version" if found else "the folder has no such bundle")
            served = {one.manifest.version: one.manifest for one in self._repository.all() if one.manifest.name == name}
            fresh = [one for one in wanted if served.get(_key(one)[1]) != one.manifest]
            self._loading |= {_key(one) for one in fresh}
            try:
                for one in fresh:
                    await self._serve(one)
            finally:
                self._loading -= {_key(one) for one in fresh}

    async def _serve(self, listed: ListedBundle) -> None:
        try:
            served = await asyncio.to_thread(self._repository.open_one, listed.path)
        except EdgekitError as error:
            self._failed[_key(listed)] = error.what
            raise RequestError(400, f"'{_key(listed)[0]}' cannot be loaded: {error.what}") from error
        self._failed.pop(_key(listed), None)
        self._lanes[id(served)] = self._new_lane(served)
        replaced = self._repository.add(served)
        if replaced is not None:
            await self._close(replaced)

    async def _close(self, served: ServedModel) -> None:
        """Close it after its last request, or ten seconds."""
        lane, loop = self._lanes[id(served)], asyncio.get_running_loop()
        until = loop.time() + _DRAIN_S
        while lane.ahead and loop.time() < until:
            await asyncio.sleep(_LOOK_S)
        await asyncio.to_thread(served.close)
        del self._lanes[id(served)]


def _key(listed: ListedBundle) -> Key:
    assert listed.manifest is not None
    return listed.manifest.name, listed.manifest.version


def _state(key: Key, state: str, reason: str = "") -> dict[str, str]:
    return {"name": key[0], "version": key[1], "state": state, "reason": reason}
