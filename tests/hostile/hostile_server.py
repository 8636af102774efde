"""An HTTP server that misbehaves, for downloads: `with serving(answer) as url`."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

Answer = Callable[[dict[str, str], Callable[[bytes], None]], None]
"""Told the request's headers in lower case, and what to send with; the connection ends when it returns."""


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """The URL of a bundle there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener, answer), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/net.ekb"


def _serve(listener: socket.socket, answer: Answer) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # the test is over
            return
        with connection, contextlib.suppress(OSError):
            answer(_headers(connection), connection.sendall)


def _headers(connection: socket.socket) -> dict[str, str]:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(4096)
        if not piece:
            break
        data += piece
    lines = data.decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}


def head(status: str, **headers: object) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\n{lines}Connection: close\r\n\r\n".encode()
