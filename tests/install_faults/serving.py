"""A server of one bundle on loopback: whole, or only as far as a test lets it come.

with Served(path) as served:
    served.stops_at = 3000          # the connection breaks there; with `hangs`, nothing more comes
    served.ends = [3000]            # the next connection breaks there, those after it do not
    served.url, served.asked        # from which byte each asked
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Served:
    def __init__(self, path: Path) -> None:
        self.data, self.stops_at, self.hangs = path.read_bytes(), -1, False
        self.asked, self.ends = list[int](), list[int]()
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/tiny.ekb"

    def __enter__(self) -> Served:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                start = int(self.headers.get("Range", "bytes=0-")[6:].split("-")[0])
                served.asked.append(start)
                self.send_response(206 if start else 200)
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(served.data) - 1}/{len(served.data)}")
                self.send_header("Content-Length", str(len(served.data) - start))
                self.send_header("ETag", '"one"')
                self.end_headers()
                end = served.ends.pop(0) if served.ends else served.stops_at
                end = len(served.data) if end < 0 else end
                self.wfile.write(served.data[start:end])
                self.wfile.flush()
                if served.hangs and end < len(served.data):
                    served._over.wait(60)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
