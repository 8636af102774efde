"""Group 10: whatever a server does, a board neither waits for ever nor takes what it was not promised."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hostile.board import asked, refuses
from hostile.hostile_server import head, serving
from hostile.make_corpus import CORPUS

from edgekit_runtime.install import FetchOptions, install
from edgekit_runtime.install.http import DownloadLimits

GOOD = (CORPUS / "good" / "newer.ekb").read_bytes()
LIMITS = DownloadLimits(silence_s=20, head_s=20, least_rate=1024, slow_s=20, total_s=60, tries=2)
PATIENT = FetchOptions(limits=LIMITS, sleep=lambda _: None)
"""Nothing that a busy machine delays is taken for the server's fault."""
QUICK = replace(PATIENT, limits=replace(LIMITS, silence_s=0.3, slow_s=0.3))
"""Where the time it takes is the fault."""
MOST_SENT = 64 << 20
"""What a board lets a server send for a bundle of a few kilobytes: 1 MiB a try, and what sockets hold on their way."""


def truncated(_headers, send):
    send(head("200 OK", Content_Length=len(GOOD), ETag='"1"') + GOOD[:3000])


def silent(_headers, send):
    import time

    send(head("200 OK", Content_Length=len(GOOD)) + GOOD[:100])
    time.sleep(1)


def a_byte_at_a_time(_headers, send):
    import time

    send(head("200 OK", Content_Length=len(GOOD)))
    for at in range(len(GOOD)):
        send(GOOD[at : at + 1])
        time.sleep(0.02)


def endless(_headers, send):
    send(head("200 OK") + GOOD)
    while True:
        send(bytes(1 << 16))


def endless_zeros(_headers, send):
    send(head("200 OK"))
    while True:
        send(bytes(1 << 16))


def endless_head(_headers, send):
    send(b"HTTP/1.1 200 OK\r\n")
    while True:
        send(b"X-More: " + b"y" * 60000 + b"\r\n")


CHUNKED = head("200 OK", Transfer_Encoding="chunked") + b"%x\r\n%s\r\n" % (len(GOOD), GOOD)


def endless_trailers(_headers, send):
    """Behind the last byte of the bundle: a reader that discards them never returns."""
    send(CHUNKED + b"0\r\n")
    while True:
        send((b"X-More: " + b"y" * 60000 + b"\r\n") * 8)


def dripping_trailers(_headers, send):
    import time

    send(CHUNKED + b"0\r\n")
    while True:
        send(b"X: y\r\n")
        time.sleep(0.02)


def chunks_of_one_byte_with_long_extensions(_headers, send):
    send(head("200 OK", Transfer_Encoding="chunked"))
    for at in range(len(GOOD)):
        send(b"1;" + b"y" * 60000 + b"\r\n" + GOOD[at : at + 1] + b"\r\n")


def endless_continues(_headers, send):
    while True:
        send(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def claims_a_terabyte(_headers, send):
    send(head("200 OK", Content_Length=1 << 40) + GOOD)


def a_page(_headers, send):
    send(head("200 OK", Content_Type="text/html", Content_Length=23) + b"<html>Log in first</html>"[:23])


def moved_in_a_circle(_headers, send):
    send(head("302 Found", Location="/net.ekb", Content_Length=0))


def moved_to_a_file(_headers, send):
    send(head("302 Found", Location="file:///etc/passwd", Content_Length=0))


def packed_on_the_way(_headers, send):
    import gzip

    data = gzip.compress(GOOD)
    send(head("200 OK", Content_Encoding="gzip", Content_Length=len(data)) + data)


def no_http(_headers, send):
    send(b"220 mail.example ESMTP\r\n")


def gone(_headers, send):
    send(head("404 Not Found", Content_Length=0))


CASES = {
    "truncated": (truncated, "download", "."),
    "silent in the middle": (silent, "download(-slow)?", "."),
    "a byte now and then": (a_byte_at_a_time, "download-slow", "."),
    "without an end": (endless, "download-size", "."),
    "zeros without an end": (endless_zeros, "bundle-format", "not an edgekit bundle"),
    "a head without an end": (endless_head, "download", "."),
    "trailers without an end": (endless_trailers, "download", "more headers and trailers than data"),
    "long extensions of chunks": (chunks_of_one_byte_with_long_extensions, "download", "more headers and trailers"),
    "continues without an end": (endless_continues, "download", "."),
    "more than a bundle may have": (claims_a_terabyte, "download-size", "."),
    "a page that asks to log in": (a_page, "bundle-format", "not an edgekit bundle"),
    "moved in a circle": (moved_in_a_circle, "download", "."),
    "moved to a file of the board": (moved_to_a_file, "download", "."),
    "compressed on the way": (packed_on_the_way, "download", "."),
    "no HTTP": (no_http, "download", "."),
    "not there": (gone, "download", "404"),
}


@pytest.mark.parametrize("case", CASES)
def test_group_10_a_download_that_misbehaves_is_refused_in_time(case, root):
    """S21"""
    answer, code, says = CASES[case]
    limits = QUICK if answer in (silent, a_byte_at_a_time) else PATIENT
    sent = [0]

    def counting(headers, send):
        def count(data):
            send(data)
            sent[0] += len(data)

        answer(headers, count)

    with serving(counting) as url:
        refuses(root, url, asked(fetching=limits), code, says)
    assert sent[0] < MOST_SENT


def test_group_10_a_trailer_now_and_then_holds_nobody_who_has_the_whole_bundle(root):
    with serving(dripping_trailers) as url:
        assert install(url, root, asked(fetching=QUICK)).generation.number == 2


class Resuming:
    """Breaks off in the middle once; what it answers to the request for the rest is the test's."""

    def __init__(self, rest):
        self._rest, self.asked = rest, []

    def __call__(self, headers, send):
        self.asked.append(headers.get("range"))
        if len(self.asked) == 1:
            send(head("200 OK", Content_Length=len(GOOD), ETag='"1"', Accept_Ranges="bytes") + GOOD[:4000])
        else:
            self._rest(headers, send)


def part(start, data, *, claimed=None, total=None):
    def rest(_headers, send):
        first = start if claimed is None else claimed
        place = f"bytes {first}-{first + len(data) - 1}/{total or len(GOOD)}"
        send(head("206 Partial Content", Content_Range=place, Content_Length=len(data), ETag='"1"') + data)

    return rest


def whole_again(_headers, send):
    send(head("200 OK", Content_Length=len(GOOD), ETag='"2"') + GOOD)


@pytest.mark.parametrize("rest", [part(4000, GOOD[4000:]), whole_again], ids=["the rest", "all of it again"])
def test_group_10_a_download_that_broke_goes_on(rest, root):
    server = Resuming(rest)
    with serving(server) as url:
        assert install(url, root, asked(fetching=PATIENT)).generation.number == 2
    assert server.asked == [None, "bytes=4000-"]


WRONG = {
    "another part": part(3000, GOOD[3000:]),
    "other bytes under the right place": part(4000, bytes(len(GOOD) - 4000)),
    "a part beyond the end": part(4000, GOOD[4000:], claimed=1 << 40, total=1 << 41),
    "another length in all": part(4000, GOOD[4000:] + bytes(64), total=len(GOOD) + 64),
}


@pytest.mark.parametrize("case", WRONG)
def test_group_10_a_wrong_part_never_becomes_the_bundle(case, root):
    """S21"""
    with serving(Resuming(WRONG[case])) as url:
        refuses(root, url, asked(fetching=PATIENT), "download|download-size|bundle-integrity")
