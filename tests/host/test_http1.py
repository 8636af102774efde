"""Heads of HTTP/1.1: what is understood, and a status for everything else."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.host.http1 import HttpLimits, RequestError, Response, body_length, parse_head, response_head

LIMITS = HttpLimits(head_bytes=1000, headers=5, body_bytes=100)


def head(*lines: str, first="POST /v2 HTTP/1.1", host="Host: h"):
    return "\r\n".join([first, *([host] if host else []), *lines]).encode("latin-1")


def test_a_request_is_read():
    found = parse_head(
        head("Content-Length:  12 ", "X-A: b", "x-a:\tc", first="get /v2/models/a%2Fb%20c?q=1 HTTP/1.1"), LIMITS
    )
    assert (found.method, found.segments) == ("GET", ("v2", "models", "a/b c"))
    assert found.headers["x-a"] == "b, c"
    assert body_length(found, LIMITS) == 12
    assert found.keep_alive


@pytest.mark.parametrize(
    ("first", "lines", "kept"),
    [
        ("GET / HTTP/1.1", [], True),
        ("GET / HTTP/1.1", ["Connection: close"], False),
        ("GET / HTTP/1.1", ["Connection: x, CLOSE"], False),
        ("GET / HTTP/1.0", [], False),
        ("GET / HTTP/1.0", ["Connection: Keep-Alive"], True),
    ],
)
def test_who_keeps_the_connection(first, lines, kept):
    assert parse_head(head(*lines, first=first), LIMITS).keep_alive is kept


@pytest.mark.parametrize("target", ["/v2/health/live", "http://h:80/v2/health/live", "HTTP://h/v2//health/live/"])
def test_every_spelling_of_a_path_is_one_path(target):
    assert parse_head(head(first=f"GET {target} HTTP/1.1"), LIMITS).segments == ("v2", "health", "live")


WRONG = {
    "no HTTP": (b"\x16\x03\x01 hello", 400),
    "HTTP/2": (head(first="GET / HTTP/2.0"), 400),
    "no path": (head(first="GET HTTP/1.1"), 400),
    "two spaces": (head(first="GET  / HTTP/1.1"), 400),
    "a bare line feed": (head("A: b\nC: d"), 400),
    "a NUL": (head("A: b\0"), 400),
    "a folded line": (head("A: b", " c"), 400),
    "a space before the colon": (head("Content-Length : 3"), 400),
    "no colon": (head("hello"), 400),
    "no name": (head(": x"), 400),
    "no host": (head(host=""), 400),
    "two hosts": (head("Host: i"), 400),
    "two lengths": (head("Content-Length: 3", "Content-Length: 3"), 400),
    "a list of lengths": (head("Content-Length: 3, 3"), 400),
    "a negative length": (head("Content-Length: -1"), 400),
    "a length with a plus": (head("Content-Length: +1"), 400),
    "a length of text": (head("Content-Length: many"), 400),
    "an empty length": (head("Content-Length:"), 400),
    "too long": (head("Content-Length: 101"), 413),
    "two gigabytes": (head("Content-Length: 2147483648"), 413),
    "a length of many digits": (head("Content-Length: " + "9" * 500), 413),
    "chunked": (head("Transfer-Encoding: chunked"), 411),
    "chunked and a length": (head("Transfer-Encoding: chunked", "Content-Length: 3"), 411),
    "two JSON lengths": (head("Inference-Header-Content-Length: 1", "Inference-Header-Content-Length: 2"), 400),
    "too many headers": (head(*["A: b"] * 6), 431),
}


@pytest.mark.parametrize(("data", "status"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_has_a_status_and_ends_the_connection(data, status):
    with pytest.raises(RequestError) as caught:
        body_length(parse_head(data, LIMITS), LIMITS)
    assert caught.value.status == status
    assert caught.value.close


def test_a_response_is_these_bytes():
    response = Response(503, (b"ab", memoryview(b"c")), {"Content-Type": "text/plain"}, close=True)
    assert response_head(response) == (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: 3\r\nConnection: "
        b"close\r\n\r\n"
    )


@given(st.binary(max_size=200) | st.lists(st.sampled_from([b"GET ", b"/", b" HTTP/1.1", b"\r\n", b"Host: h",
    b"Content-Length: ", b"1", b"\xff", b":", b" "]), max_size=30).map(b"".join))  # fmt: skip
def test_whatever_bytes_come_nothing_but_our_error_is_raised(data):
    with contextlib.suppress(RequestError):
        assert 0 <= body_length(parse_head(data, LIMITS), LIMITS) <= 100
