"""A proxy on loopback, before a real host, that lets answers hang, breaks them off, slows or refuses them.

    with FaultProxy(host.port) as proxy:
        proxy.fault = "trickle"
        open_bundle(bundle, hosts=[proxy.url])

Faults: none; hang (a request is taken and never answered); cut (half an answer, then the end); 503; slow (each answer
DELAY_S later); trickle (a byte now and then); kill (connections are reset and refused).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading

FAULTS = ("hang", "cut", "503", "slow", "trickle", "kill")
DELAY_S = 0.3
BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 23\r\n\r\n" + b'{"error": "overloaded"}'


class FaultProxy:
    """answered: answers passed on whole."""

    def __init__(self, port: int):
        self._upstream = port
        self._fault = "none"
        self._connections: set[asyncio.StreamWriter] = set()
        self.answered = 0

    @property
    def fault(self) -> str:
        return self._fault

    @fault.setter
    def fault(self, fault: str) -> None:
        assert fault in ("none", *FAULTS)
        self._fault = fault
        if fault == "kill":
            self._loop.call_soon_threadsafe(self._reset)

    def __enter__(self):
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(started)), daemon=True)
        self._thread.start()
        assert started.wait(20)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(20)
        assert not self._thread.is_alive()

    async def _run(self, started: threading.Event) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        started.set()
        await self._ended.wait()
        server.close()
        self._reset()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    def _reset(self) -> None:
        for writer in self._connections:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        upstream = None
        try:
            upstream = await asyncio.open_connection("127.0.0.1", self._upstream)
            while self._fault != "kill":
                request = await _message(reader)
                if self._fault == "503":
                    writer.write(BUSY)
                    continue
                upstream[1].write(request)
                answer = await _message(upstream[0])
                if not await self._pass_on(answer, writer):
                    break
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(writer)
            writer.transport.abort()
            if upstream is not None:
                upstream[1].transport.abort()

    async def _pass_on(self, answer: bytes, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        fault = self._fault
        if fault == "hang":
            await self._ended.wait()
        elif fault == "cut":
            writer.write(answer[: len(answer) // 2])
            await writer.drain()
            return False
        elif fault == "slow":
            await asyncio.sleep(DELAY_S)
        elif fault == "trickle":
            for at in range(len(answer) - 1):
                writer.write(answer[at : at + 1])
                await writer.drain()
                await asyncio.sleep(0.005)
            answer = answer[-1:]
        writer.write(answer)
        with contextlib.suppress(OSError):
            await writer.drain()
        self.answered += 1
        return True


async def _message(reader: asyncio.StreamReader) -> bytes:
    """A whole request or answer; each has a Content-Length or no body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return head + await reader.readexactly(length)
