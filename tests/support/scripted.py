"""A server on loopback that says exactly what a test tells it to, over real sockets."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Asked:
    """One request as it came in."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def json(self):
        return json.loads(self.body[: int(self.headers.get("inference-header-content-length", len(self.body)))])


@dataclass
class Scripted:
    """answer: takes what was asked and the socket; returns bytes to send, or None to end the connection.

    Every connection has a thread, which ends with it; leaving the `with` ends all of them.
    """

    answer: Callable[[Asked, socket.socket], bytes | None]
    asked: list[Asked] = field(default_factory=list)
    tls: ssl.SSLContext | None = None
    port: int = 0

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"
        self.ended = threading.Event()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self.ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _accept(self):
        number = 0
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection, number))
            self._threads.append(thread)
            thread.start()
            number += 1

    def _serve(self, connection, number):
        if self.tls:
            try:
                connection = self.tls.wrap_socket(connection, server_side=True)
            except OSError:
                return
        with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rb") as file:
            while line := file.readline():
                headers = {}
                while (header := file.readline().strip()) != b"":
                    name, _, value = header.decode().partition(":")
                    headers[name.lower()] = value.strip()
                asked = Asked(line.decode().strip(), headers, file.read(int(headers.get("content-length", 0))), number)
                self.asked.append(asked)
                said = self.answer(asked, connection)
                if said is None:
                    return
                connection.sendall(said)


def http(status: int, body: bytes | dict, *headers: str) -> bytes:
    """A whole response."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    head = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join([*head, "", ""]).encode() + data


def reset(connection: socket.socket) -> None:
    """End the connection with RST instead of FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.shutdown(socket.SHUT_RD)
