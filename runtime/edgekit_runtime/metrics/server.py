"""The metrics page over HTTP, for a Prometheus or a person on the same board.

    with serve_metrics(model, port=9400) as server:     # or any function that makes the page
        print(server.url)                               # http://127.0.0.1:9400/metrics

Rules:
- on loopback only: what shall be seen from elsewhere is for a proxy with a password to show;
- the page is made when it is asked for, in the server's own thread; what a server needs is imported at the first use;
- it ends with its model: when `model.close()` returns, the port is free. Between two clients nothing runs;
- a client that says nothing, goes away or asks for something else disturbs nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from edgekit_runtime.errors import MetricsError
from edgekit_runtime.metrics.text import CONTENT_TYPE

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

__all__ = ["MetricsServer", "serve_metrics"]


class Telling(Protocol):
    """A model, as far as this room knows it."""

    def metrics_text(self) -> str: ...
    def close_with(self, companion: MetricsServer) -> None: ...


def serve_metrics(of: Telling | Callable[[], str], port: int = 0) -> MetricsServer:
    """Serve the page on http://127.0.0.1:PORT/metrics until `close`, or until the model is closed; port 0 takes any that is
    free. of: a model, or a function that makes the page. Raises MetricsError, and ClosedError for a closed model; ValueError
    for a port that is no number, or for something else than a model.
    """
    if not isinstance(port, int) or isinstance(port, bool):
        raise ValueError(f"port must be a whole number, not {port!r:.40}")  # noqa: TRY004 - as all options
    if not callable(of) and not hasattr(of, "metrics_text"):
        raise ValueError(f"of must be a model or a function, not {of!r:.40}")
    if callable(of):
        return MetricsServer(of, port)
    server = MetricsServer(of.metrics_text, port)
    try:
        of.close_with(server)
    except BaseException:
        server.close()
        raise
    return server


class MetricsServer:
    """A small HTTP server in a thread of its own. GET and HEAD of /metrics; anything else is 404."""

    def __init__(self, text: Callable[[], str], port: int = 0) -> None:
        try:
            self._server = _bound(text, port)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise MetricsError(
                f"cannot listen there: {why}", where=f"127.0.0.1:{port}", do="Take another port, or 0 for any"
            ) from error
        from socket import socketpair

        self._ended, self._end = socketpair()
        self._thread = threading.Thread(target=self._serve, name="edgekit-metrics", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        import selectors

        with self._server, self._ended, selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._ended, selectors.EVENT_READ)
            while not any(key.fileobj is self._ended for key, _ in selector.select()):
                self._server.handle_request()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._end.close()
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _bound(text: Callable[[], str], port: int) -> ThreadingHTTPServer:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Page(BaseHTTPRequestHandler):
        timeout = 5.0  # a client that says nothing holds its thread no longer
        server_version, sys_version = "edgekit", ""

        def do_GET(self) -> None:
            if self.path.split("?")[0] != "/metrics":
                self.send_error(404, "The page is /metrics")
                return
            try:
                body = text().encode()
            except Exception as error:  # noqa: BLE001 - the next scrape may do better, and this one must hear of it
                self.send_error(500, type(error).__name__)
                return
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """A board's log is no place for scrapes."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        timeout = 0.0  # it is asked to look for a client when there is one

        def handle_error(self, *_: object) -> None:
            """A client that went away is nobody's trouble."""

    return Server(("127.0.0.1", port), Page)
