"""The metrics page over HTTP: on loopback, on request, and nobody's trouble."""

from __future__ import annotations

import gc
import socket
import threading
import urllib.error
import urllib.request
import weakref

import pytest
import tiny

from edgekit_runtime import open_bundle
from edgekit_runtime.system.errors import ClosedError, MetricsError
from edgekit_runtime.telemetry.metrics import CONTENT_TYPE, serve_metrics

PAGE = 'edgekit_healthy{model="digits"} 1\n'


def fetch(url: str, method: str = "GET"):
    return urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10)


@pytest.fixture
def server():
    with serve_metrics(lambda: PAGE) as made:
        yield made


def test_the_page_is_there_for_whoever_asks_on_this_machine(server):
    with fetch(server.url) as answer:
        assert answer.read().decode() == PAGE
        assert answer.headers["Content-Type"] == CONTENT_TYPE
    with fetch(server.url + "?debug=1", "HEAD") as answer:
        assert (answer.read(), int(answer.headers["Content-Length"])) == (b"", len(PAGE))


def test_a_model_is_served_until_it_is_closed(tmp_path):
    with open_bundle(tiny.bundle(tmp_path)) as model:
        model.predict(tiny.RED)
        server = serve_metrics(model)
        with fetch(server.url) as answer:
            page = answer.read().decode()
    assert 'edgekit_requests_total{model="tiny",version="1",source="device"} 1' in page
    assert not server._thread.is_alive()
    with pytest.raises(urllib.error.URLError):
        fetch(server.url)


def test_a_closed_model_has_no_page(tmp_path):
    with open_bundle(tiny.bundle(tmp_path)) as model:
        pass
    before = set(threading.enumerate())
    with pytest.raises(ClosedError):
        serve_metrics(model)
    assert set(threading.enumerate()) <= before


def test_a_server_that_was_closed_is_not_kept_by_its_model(tmp_path):
    with open_bundle(tiny.bundle(tmp_path)) as model:
        server = serve_metrics(model)
        server.close()
        gone = weakref.ref(server)
        del server
        gc.collect()
        assert gone() is None


def test_it_listens_on_loopback_only(server):
    assert server._server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("path", ["/", "/etc/passwd", "/metrics/../x"])
def test_there_is_nothing_else(server, path):
    with pytest.raises(urllib.error.HTTPError) as caught:
        fetch(server.url.replace("/metrics", path))
    assert caught.value.code == 404


def test_a_page_that_cannot_be_made_is_an_error_and_the_next_one_may_do_better():
    pages = iter([ZeroDivisionError(), "fine 1\n"])

    def page() -> str:
        made = next(pages)
        if isinstance(made, Exception):
            raise made
        return made

    with serve_metrics(page) as server:
        with pytest.raises(urllib.error.HTTPError) as caught:
            fetch(server.url)
        assert caught.value.code == 500
        with fetch(server.url) as answer:
            assert answer.read() == b"fine 1\n"


def test_a_client_that_says_nothing_holds_nobody_up(server, capfd):
    with socket.create_connection(("127.0.0.1", server.port)), fetch(server.url) as answer:
        assert answer.status == 200
    with socket.create_connection(("127.0.0.1", server.port)) as rude:
        rude.sendall(b"GET /metrics HTTP/1.1\r\n")
    with fetch(server.url) as answer:
        assert answer.status == 200
    assert capfd.readouterr() == ("", "")


def test_closing_ends_the_thread_and_frees_the_port_and_may_be_done_twice():
    before = set(threading.enumerate())
    server = serve_metrics(lambda: PAGE)
    port = server.port
    assert set(threading.enumerate()) - before
    server.close()
    server.close()
    assert not set(threading.enumerate()) - before
    with serve_metrics(lambda: PAGE, port) as again:
        assert again.port == port


@pytest.mark.parametrize("port", ["taken", 70_000, -1])
def test_a_port_that_cannot_be_had_is_a_clear_error(server, port):
    with pytest.raises(MetricsError, match=r"127\.0\.0\.1:.*cannot listen there"):
        serve_metrics(lambda: PAGE, server.port if port == "taken" else port)
