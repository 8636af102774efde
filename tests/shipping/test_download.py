"""Fetching: from a real server on loopback that breaks off, lies, or has gone."""

from __future__ import annotations

import errno
import hashlib
import http.server
import os
import threading

import pytest
from scripted import Scripted

from edgekit.packaging.output_errors import OutputError
from edgekit.shipping.plan import WheelDownloadError
from edgekit.shipping.wheels import RemoteWheel, fetch

DATA = bytes(range(256)) * 5000
SIZE = len(DATA)
NAME = "some-1-py3-none-any.whl"


class Index(http.server.ThreadingHTTPServer):
    """Serves DATA; `breaks_at` ends one answer there, `ranges` says whether it can go on in the middle; `holds` keeps
    one answer at its half, which `half` tells of, until it is set."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.breaks_at: int | None = None
        self.ranges = True
        self.holds: threading.Event | None = None
        self.half = threading.Event()
        self.data = DATA
        self.sent: list[int] = []


class Answer(http.server.BaseHTTPRequestHandler):
    server: Index

    def do_GET(self):
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.ranges else 0
        body = self.server.data[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(self.server.data) - 1}/{len(self.server.data)}")
        self.end_headers()
        cut, self.server.breaks_at = self.server.breaks_at, None
        self.server.sent.append(len(body[:cut]))
        holds, self.server.holds = self.server.holds, None
        if holds is not None:
            self.wfile.write(body[: SIZE // 2])
            self.server.half.set()
            holds.wait(20)
            self.wfile.write(body[SIZE // 2 : cut])
            return
        self.wfile.write(body[:cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def index():
    server = Index()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def remote(index, size=SIZE):
    return RemoteWheel(NAME, f"http://127.0.0.1:{index.server_port}/{NAME}", hashlib.sha256(DATA).hexdigest(), size)


@pytest.fixture
def get(tmp_path):
    return lambda wheel, folder="usb": fetch(wheel, tmp_path / folder, kept=tmp_path / "kept")


def test_a_file_is_fetched_once(index, get):
    assert get(remote(index)).read_bytes() == DATA
    assert get(remote(index), "another").read_bytes() == DATA
    assert index.sent == [SIZE]


@pytest.mark.parametrize("size", [SIZE, None])
def test_an_interrupted_fetch_goes_on_where_it_was(index, get, size, tmp_path):
    index.breaks_at = 700_000
    with pytest.raises(WheelDownloadError, match="what has been fetched is kept"):
        get(remote(index, size))
    assert not (tmp_path / "usb" / NAME).exists()
    assert get(remote(index, size)).read_bytes() == DATA
    assert index.sent == [700_000, SIZE - 700_000]


@pytest.mark.parametrize("killed", [False, True])
def test_two_that_fetch_the_same_file_both_get_it(index, get, tmp_path, killed):
    """The second comes when half of it is there for the first, whose connection may break off later."""
    holds = index.holds = threading.Event()
    if killed:
        index.breaks_at = SIZE - 5
    first: list[object] = []

    def run() -> None:
        try:
            first.append(get(remote(index)).read_bytes() == DATA)
        except WheelDownloadError as error:
            first.append(error.code)

    thread = threading.Thread(target=run)
    thread.start()
    assert index.half.wait(20)
    assert get(remote(index), "another").read_bytes() == DATA
    holds.set()
    thread.join(20)
    assert first == ["download" if killed else True]
    assert get(remote(index), "third").read_bytes() == DATA
    assert {path.suffix for path in (tmp_path / "kept").iterdir()} == ({"", ".part"} if killed else {""})
    assert len(index.sent) == 2


def test_a_server_that_knows_no_ranges_starts_again(index, get):
    index.breaks_at, index.ranges = 1000, False
    with pytest.raises(WheelDownloadError):
        get(remote(index))
    assert get(remote(index)).read_bytes() == DATA


def test_other_bytes_than_promised_are_refused_and_forgotten(index, get, tmp_path):
    index.data = DATA[:-1] + b"x"
    with pytest.raises(WheelDownloadError, match="its SHA-256 is another"):
        get(remote(index))
    assert list((tmp_path / "usb").iterdir()) == []
    index.data = DATA
    assert get(remote(index)).read_bytes() == DATA


TRAILERS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (SIZE, DATA)
ENDLESS = {
    "trailers": (TRAILERS, b"X: y\r\n", SIZE, True),
    "trailers where nothing was promised": (TRAILERS, b"X: y\r\n", None, False),
    "bytes": (b"HTTP/1.1 200 OK\r\n\r\n" + DATA, b"more", SIZE, True),
    "bytes where nothing was promised": (b"HTTP/1.1 200 OK\r\n\r\n" + DATA, b"more", None, False),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_a_server_that_never_ends_is_left_when_all_that_was_promised_is_here(case, get, monkeypatch):
    begin, more, size, arrives = ENDLESS[case]
    monkeypatch.setattr("edgekit.shipping.wheels._MOST_BYTES", 2 * SIZE)

    def answer(_, connection):
        connection.sendall(begin)
        while True:
            connection.sendall(more * 10_000)

    with Scripted(answer) as server:
        wheel = RemoteWheel(NAME, f"{server.url}/{NAME}", hashlib.sha256(DATA).hexdigest(), size)
        if arrives:
            assert get(wheel).read_bytes() == DATA
        else:
            with pytest.raises(WheelDownloadError, match=r"its SHA-256 is another|more headers and trailers than data"):
                get(wheel)


def test_a_kept_file_that_rotted_is_fetched_again(index, get, tmp_path):
    get(remote(index))
    (tmp_path / "kept" / remote(index).sha256).write_bytes(b"rot")
    assert get(remote(index), "another").read_bytes() == DATA


def test_a_network_that_is_gone_is_one_sentence(index, get):
    wheel = RemoteWheel(NAME, "http://127.0.0.1:9/some.whl", "0" * 64, 5)
    with pytest.raises(
        WheelDownloadError, match=r"cannot be fetched from 127.0.0.1:9: nothing listens there. Run it again"
    ) as refused:
        get(wheel)
    assert refused.value.where == "127.0.0.1"


def test_a_disk_that_is_full_is_no_matter_of_the_network(index, get, tmp_path, monkeypatch):
    def full(*_given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("edgekit.shipping.wheels._append", full)
    with pytest.raises(OutputError, match=r"kept: cannot be written: No space left on device") as refused:
        get(remote(index))
    assert "EDGEKIT_STATE_DIR" in refused.value.do


def test_a_place_to_keep_them_that_cannot_be_made_is_named(index, get, tmp_path):
    (tmp_path / "kept").touch()
    with pytest.raises(OutputError, match="kept: cannot be written"):
        get(remote(index))
