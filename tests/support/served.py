"""The host's server in this process, in a thread with its own event loop, on a free port of loopback."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from edgekit.host.api import Api
from edgekit.host.connection import Server
from edgekit.host.http1 import HttpLimits, Patience
from edgekit.host.models import Repository
from edgekit.host.server import Protection, bind, protected


class Serving:
    """with Serving(bundle) as host: HostClient(host.url, model="tiny") ...

    host.server, host.repository: the real parts. host.call(f): f() on the server's loop, waited for.
    """

    def __init__(
        self,
        *bundles: Path,
        limits: HttpLimits | None = None,
        patience: Patience | None = None,
        protection: Protection | None = None,
        **options,
    ):
        self._settings, self._protection = (limits, patience), protection
        self.repository = Repository.open(bundles, **options)
        self.model = self.repository.all()[0].model if bundles else None

    def __enter__(self):
        self._sock = bind("127.0.0.1", 0)
        self.port = self._sock.getsockname()[1]
        secure = self._protection is not None and self._protection.certificate is not None
        self.url = f"http{'s' * secure}://127.0.0.1:{self.port}"
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), name="served", daemon=True)
        self._thread.start()
        assert started.wait(20)
        return self

    def __exit__(self, *_):
        self.stop()
        self.repository.close()

    def stop(self, drain_s: float = 5.0):
        """Drain and end, as a signal does. Idempotent."""
        if self._thread.is_alive():
            self._drain_s = drain_s
            self.loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(20)
        assert not self._thread.is_alive()

    def call(self, function):
        async def on_loop():
            return function()

        return asyncio.run_coroutine_threadsafe(on_loop(), self.loop).result(20)

    async def _serve(self, started: threading.Event):
        self.loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self.api = Api(self.repository)
        if self._protection is not None:
            self.server = protected(self.api, self._protection)
        else:
            self.server = Server(self.api, *self._settings)
        await self.server.start(self._sock)
        started.set()
        await self._ended.wait()
        await self.server.stop(self._drain_s)
