"""The question that the images' HEALTHCHECK asks, of real servers."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import certificates
import pytest

from edgekit.fleet.pages.access import Access
from edgekit.fleet.serve import FleetServer, Settings
from edgekit.host.server import tls_context

HEALTHY = Path(__file__).parents[2] / "container" / "healthy.py"


def healthy(where):
    done = subprocess.run([sys.executable, HEALTHY, where], capture_output=True, text=True, timeout=60)
    assert done.stdout == ""
    return done.returncode, done.stderr


class Answers(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else 503)
        self.end_headers()


@contextmanager
def serving(context=None):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.handle_error = lambda *_: None
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.fixture(scope="module")
def issued(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    certificates.authority(folder)
    return certificates.certificate(folder, "host")


def test_it_asks_over_http_and_over_https(issued):
    for context in (None, tls_context(issued)):
        with serving(context) as port:
            assert healthy(f"{port}/ready") == (0, "")
            assert healthy(f"{port}/other")[0] == 1
    assert healthy(f"{port}/ready")[0] == 1, "it is gone"


def test_a_server_that_wants_a_clients_certificate_is_there(issued):
    with serving(tls_context(issued, client_ca=issued.parent / "ca.pem")) as port:
        assert healthy(f"{port}/ready") == (0, "")


def test_a_fleet_server_with_a_sign_in_answers_by_its_broker_alone(tmp_path):
    password = Access.by_password("correct-horse-battery", lambda: 0.0)
    settings = Settings(store=f"sqlite:///{tmp_path}/fleet.db", broker_port=0, listen="127.0.0.1:0", access=password)
    with FleetServer(settings) as server:
        port = server.url.rsplit(":", 1)[1].strip("/")
        for _ in range(100):
            if server.ingest.link.connected:
                break
            threading.Event().wait(0.1)
        assert healthy(f"{port}/healthz") == (0, "")
    lost = Settings("mqtt://127.0.0.1:1", store=f"sqlite:///{tmp_path}/fleet.db", listen="127.0.0.1:0", access=password)
    with FleetServer(lost) as server:
        port = server.url.rsplit(":", 1)[1].strip("/")
        code, why = healthy(f"{port}/healthz")
        assert (code, "503" in why) == (1, True)
