"""Downloads from a real server on this machine that does what servers and networks do."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from downloads import Script, serving
from installed import UNSIGNED, current, events, names
from ports import closed_port

from edgekit_runtime import EdgekitError
from edgekit_runtime.install import BoardIdentity, DownloadLimits, FetchOptions, collect, status
from edgekit_runtime.install.fetch import fetch, source_of
from edgekit_runtime.install.http import display_url

LIMITS = DownloadLimits(silence_s=2.0, head_s=2.0, tries=3)


@pytest.fixture
def quick():
    return replace(UNSIGNED, fetching=FetchOptions(LIMITS, sleep=lambda seconds: None))


def test_a_bundle_is_installed_from_a_url(made, put, root, quick):
    script = Script(made("1").read_bytes())
    with serving(script) as url:
        assert put(url, quick).generation.source == url
    assert current(root) == "generations/1"


def test_a_connection_that_breaks_again_and_again_goes_on_where_it_was(made, put, root, quick):
    data = made("1").read_bytes()
    script = Script(data, cuts=[len(data) // 4] * 3 + [None])
    with serving(script) as url:
        assert put(url, quick).state == "committed"
    starts = [int(one["Range"].removeprefix("bytes=").rstrip("-")) for one in script.asked[1:]]
    assert starts == [len(data) // 4, 2 * (len(data) // 4), 3 * (len(data) // 4)]
    assert {one["If-Range"] for one in script.asked[1:]} == {'"one"'}


def test_what_arrived_is_kept_for_the_next_install(made, put, root, quick):
    data = made("1").read_bytes()
    script = Script(data, cuts=[len(data) // 2, 0, 0, 0, None])
    with serving(script) as url:
        with pytest.raises(EdgekitError) as caught:
            put(url, quick)
        assert caught.value.code == "download"
        (part,) = (root / "incoming").glob("*.part")
        assert part.stat().st_size == len(data) // 2
        assert put(url, quick).state == "committed"
    assert script.asked[-1]["Range"] == f"bytes={len(data) // 2}-"
    assert names(root / "incoming") == []


def test_what_a_cut_install_fetched_is_collected_where_its_owner_gives_it_up(made, put, root, quick):
    data = made("1").read_bytes()
    with serving(Script(data, cuts=[len(data) // 2, 0, 0, 0])) as url:
        with pytest.raises(EdgekitError):
            put(url, quick)
        kept = collect(root)
        assert (kept.removed, kept.unfinished) == ([], status(root).unfinished.source)
        given_up = collect(root, unfinished=True)
    assert [Path(name).suffix for name in given_up.removed] == [".part"]
    assert given_up.bytes == len(data) // 2
    assert given_up.unfinished is None
    assert status(root).unfinished is None
    assert names(root / "incoming") == []


@pytest.mark.parametrize("came", [0, 700], ids=["nothing", "a part"])
def test_what_the_board_is_need_not_be_said_again_to_go_on(came, made, put, root, quick):
    data = made("1").read_bytes()
    with serving(Script(data, cuts=[came, 0, 0, 0, None])) as url:
        asked = replace(quick, board=BoardIdentity(("raspberry-pi-4",)))
        with pytest.raises(EdgekitError) as caught:
            put(url, asked, profile="x86-64")
        assert caught.value.code == "download"
        assert put(url, asked).profile == "x86-64"


def test_what_a_power_cut_may_have_left_behind_what_was_flushed_is_fetched_again(made, put, root, quick):
    """The length of what came, and zeros: nothing says which bytes those are, so they are asked for anew."""
    data = made("1").read_bytes()
    script = Script(data, cuts=[len(data) // 2, 0, 0, 0, None])
    with serving(script) as url:
        with pytest.raises(EdgekitError):
            put(url, quick)
        (part,) = (root / "incoming").glob("*.part")
        with part.open("ab") as file:
            file.write(bytes(500))
        assert put(url, quick).state == "committed"
    assert script.asked[-1]["Range"] == f"bytes={len(data) // 2}-"


def test_a_long_download_is_flushed_every_ten_seconds(made, tmp_path):
    """So that a power cut costs no more than that of it."""
    data, known = made("1").read_bytes(), []

    class Stream:
        start, total, validator, sent = 0, len(data), '"x"', 0

        def read(self):
            if self.sent:
                known.append(json.loads((tmp_path / "x.json").read_text())["flushed"])
            self.sent += 512
            return data[self.sent - 512 : self.sent]

        def close(self):
            pass

    source = replace(source_of("http://x/net.ekb"), opens=lambda start, validator: Stream())
    seconds = itertools.count(step=4)
    how = FetchOptions(DownloadLimits(least_rate=0.0), clock=lambda: next(seconds))
    assert fetch(source, tmp_path / "x.part", lambda header: len(data), how) == hashlib.sha256(data).hexdigest()
    assert known[0] == 0
    assert 4 < len(set(known)) < len(known)
    assert known[-1] > len(data) - 2048


def test_a_file_that_changed_meanwhile_is_fetched_from_its_first_byte(made, put, root, quick):
    data = made("1").read_bytes()
    script = Script(data, cuts=[len(data) // 2, 0, 0, 0, None])
    with serving(script) as url:
        with pytest.raises(EdgekitError):
            put(url, quick)
        script.data, script.etag = made("2").read_bytes(), '"two"'
        assert put(url, quick).generation.version == "2"


def test_a_file_that_changed_under_the_same_name_of_its_server_fails_its_digests(made, put, root, quick):
    """A server whose ETag lies: the halves of two files are put together, and found out."""
    data = made("1").read_bytes()
    script = Script(data, cuts=[len(data) // 2, None])
    with serving(script) as url:
        real, script.data = script.data, script.data[: len(data) // 2] + bytes(len(data) - len(data) // 2)
        with pytest.raises(EdgekitError) as caught:
            put(url, quick)
        assert caught.value.code == "bundle-integrity"
        assert names(root / "incoming") == []
        script.data = real
        assert put(url, quick).state == "committed"


def test_without_a_validator_it_begins_anew(made, put, root, quick):
    data = made("1").read_bytes()
    script = Script(data, etag=None, cuts=[len(data) // 2, None])
    with serving(script) as url:
        assert put(url, quick).state == "committed"
    assert all("Range" not in one for one in script.asked)


def test_a_server_that_knows_no_ranges_sends_it_whole_again(made, put, root, quick):
    data = made("1").read_bytes()
    script = Script(data, ranges=False, cuts=[len(data) // 2, None])
    with serving(script) as url:
        assert put(url, quick).state == "committed"


def test_another_part_than_was_asked_for_is_not_taken(made, put, root, quick):
    data = made("1").read_bytes()
    script = Script(data, wrong_range=True, cuts=[len(data) // 2, None])
    with serving(script) as url:
        assert put(url, quick).state == "committed"
    assert "Range" in script.asked[1]
    assert "Range" not in script.asked[2]


def test_bytes_that_never_end_are_not_taken_beyond_the_signed_length(made, put, root, quick):
    """S21"""
    script = Script(made("1").read_bytes(), endless=True)
    with serving(script) as url, pytest.raises(EdgekitError, match="its signed head says") as caught:
        put(url, quick)
    assert caught.value.code == "download-size"
    assert names(root / "incoming") == []


def test_another_length_than_the_head_says_is_refused_before_the_rest_is_fetched(made, put, root, quick):
    data = made("1").read_bytes()
    script = Script(data + bytes(10_000_000))
    taken = []
    with serving(script) as url, pytest.raises(EdgekitError) as caught:
        put(url, replace(quick, fetching=replace(quick.fetching, progress=lambda s, done, t: taken.append(done))))
    assert caught.value.code == "download-size"
    assert max(taken, default=0) < 1_000_000


def test_a_head_that_nobody_trusts_is_refused_before_the_rest_is_fetched(made, put, root, quick):
    """S21"""
    data = made("1").read_bytes()
    script = Script(data + bytes(10_000_000), length=False)
    with serving(script) as url, pytest.raises(EdgekitError) as caught:
        put(url, replace(quick, allow_unsigned=False))
    assert caught.value.code == "no-trust-store"
    assert names(root / "incoming") == []


ANSWERS = {
    "not there": (Script(b"", status=404), "answered 404", "download"),
    "out of order": (Script(b"", status=503), "answered 503", "download"),
    "compressed": (Script(b"x" * 100, headers={"Content-Encoding": "gzip"}), "compressed", "download"),
    "empty": (Script(b""), "the file is empty", "bundle-format"),
    "a page": (Script(b"<html>log in</html>"), "not an edgekit bundle", "bundle-format"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_that_is(case, put, root, quick):
    script, says, code = ANSWERS[case]
    script = replace(script, asked=[])
    with serving(script) as url, pytest.raises(EdgekitError, match=says) as caught:
        put(url, quick)
    assert caught.value.code == code
    assert caught.value.where == url
    assert len(script.asked) == (LIMITS.tries if case == "out of order" else 1), "what stays as it is, is asked once"
    assert [one["code"] for one in events(root)] == [code]


NOWHERE = {
    "http://[::1": "redirect to an invalid URL: Invalid IPv6 URL",
    "//[": "redirect to an invalid URL: Invalid IPv6 URL",
    "http://x:port/": r": invalid URL: Port could not be cast to integer value as 'port'",
    "http://x:0/": ": invalid URL: not an http or https URL",
    "http://[x]/": "redirect to an invalid URL: 'x' does not appear to be an IPv4 or IPv6 address"
    if sys.version_info >= (3, 11)
    else ": invalid URL: the brackets hold no IP address",
}


def test_redirects_are_followed_a_few_times(made, put, root, quick):
    script = Script(made("1").read_bytes())
    with serving(script) as url:
        script.moved = {"/a": "/b", "/b": url}
        assert put(url.replace("net.ekb", "a"), quick).state == "committed"
        script.moved = {"/c": "/c"}
        with pytest.raises(EdgekitError, match="more than 5 redirects"):
            put(url.replace("net.ekb", "c"), quick)
        script.moved = {"/d": "file:///etc/passwd"}
        with pytest.raises(EdgekitError, match="not an http or https URL"):
            put(url.replace("net.ekb", "d"), quick)
        for number, (nowhere, why) in enumerate(NOWHERE.items()):
            script.moved = {f"/e{number}": nowhere}
            with pytest.raises(EdgekitError, match=why) as caught:
                put(url.replace("net.ekb", f"e{number}"), quick)
            assert caught.value.code == "download"


def test_a_password_goes_to_its_host_and_into_no_file(made, put, root, quick):
    """S21"""
    script = Script(made("1").read_bytes(), cuts=[100, None])
    with serving(script) as url:
        put(url.replace("http://", "http://anna:geheim@") + "?token=secret", quick)
    assert script.asked[0]["Authorization"].startswith("Basic ")
    for folder, _, files in os.walk(root):
        for name in files:
            text = (Path(folder) / name).read_bytes()
            assert b"geheim" not in text
            assert b"token=secret" not in text


def test_a_password_does_not_follow_to_another_host(made, put, root, quick):
    script = Script(made("1").read_bytes())
    with serving(script) as url, serving(Script(b"", moved={"/net.ekb": url})) as first:
        put(first.replace("http://", "http://anna:geheim@"), quick)
    assert "Authorization" not in script.asked[0]


class TestPace:
    """A clock that the test moves."""

    def fetching(self, folder, chunks, **limits):
        now, data = [0.0], list(chunks)

        class Stream:
            start, total, validator = 0, None, '"x"'

            def read(self):
                seconds, chunk = data.pop(0) if data else (0.0, b"")
                now[0] += seconds
                return chunk

            def close(self):
                pass

        source = replace(source_of("http://x/net.ekb"), opens=lambda start, validator: Stream())
        how = FetchOptions(DownloadLimits(tries=1, **limits), clock=lambda: now[0])
        return lambda judge: fetch(source, folder / "x.part", judge, how)

    def test_one_byte_a_second_is_too_slow(self, made, tmp_path):
        data = made("1").read_bytes()
        slow = self.fetching(tmp_path, [(1.0, data[at : at + 1]) for at in range(200)])
        with pytest.raises(EdgekitError, match="30 bytes came in 30 s") as caught:
            slow(lambda header: len(data))
        assert caught.value.code == "download-slow"
        assert (tmp_path / "x.part").stat().st_size == 30, "what arrived is kept"

    def test_so_is_what_takes_too_long_in_all(self, made, tmp_path):
        data = made("1").read_bytes()
        chunks = [(20.0, data[at : at + 500]) for at in range(0, 10_000, 500)]
        slow = self.fetching(tmp_path, chunks, total_s=100.0, least_rate=1.0)
        with pytest.raises(EdgekitError, match="longer than 100 s") as caught:
            slow(lambda header: len(data))
        assert caught.value.code == "download-slow"

    def test_slow_but_steady_arrives(self, made, tmp_path):
        data = made("1").read_bytes()
        chunks = [(1.0, data[at : at + 2000]) for at in range(0, len(data), 2000)]
        sha256 = self.fetching(tmp_path, chunks)(lambda header: len(data))
        assert sha256 == hashlib.sha256(data).hexdigest()


def test_a_server_that_says_nothing_is_given_up(put, root, quick):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        limits = DownloadLimits(silence_s=0.2, head_s=0.2, tries=1)
        with pytest.raises(EdgekitError) as caught:
            put(f"http://127.0.0.1:{port}/net.ekb", replace(quick, fetching=FetchOptions(limits)))
    assert caught.value.code == "download"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_drips_is_given_up(scheme, put, root, quick):
    """Each byte comes in time, and the head of the answer, or the beginning of TLS, never ends. S21"""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as slow:

        def drip():
            connection, _ = slow.accept()
            with connection:
                connection.sendall(b"\x16\x03\x03\x40\x00" if scheme == "https" else b"HTTP/1.1 200 OK\r\nX: ")
                while not over.wait(0.01):
                    try:
                        connection.sendall(b"y")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        url, began = f"{scheme}://127.0.0.1:{slow.getsockname()[1]}/net.ekb", time.monotonic()
        try:
            with pytest.raises(EdgekitError, match=r"no response within 0\.2 s") as caught:
                put(url, replace(quick, fetching=FetchOptions(DownloadLimits(silence_s=5.0, head_s=0.2, tries=1))))
        finally:
            over.set()
            thread.join()
    assert caught.value.code == "download"
    assert time.monotonic() - began < 4


def test_an_address_with_letters_of_other_languages_is_asked_for_as_browsers_do(made, put, root, quick):
    script = Script(made("1").read_bytes(), moved={"/netz%C3%A9.ekb": "/net.ekb"})
    with serving(script) as url:
        assert put(url.replace("net.ekb", "netz\xe9.ekb"), quick).state == "committed"


def test_nobody_there_is_told_with_the_place(put, root, quick):
    told = "cannot be fetched from 127.0.0.1:{}: nothing listens there"
    with closed_port() as port, pytest.raises(EdgekitError, match=told.format(port)) as caught:
        put(f"http://127.0.0.1:{port}/net.ekb", quick)
    assert caught.value.do == "Try again later", "nothing arrived that could be kept"


NO_SOURCE = {
    "another scheme": "ftp://x/net.ekb",
    "another machine's file": "file://server/net.ekb",
    "no host": "http:///net.ekb",
    "a blank": "http://x/my net.ekb",
    "port 0": "http://x:0/net.ekb",
    "no port at all": "http://x:camera/net.ekb",
}


@pytest.mark.parametrize("case", NO_SOURCE)
def test_no_url_of_a_bundle(case, put, root, quick):
    with pytest.raises(EdgekitError) as caught:
        put(NO_SOURCE[case], quick)
    assert caught.value.code == "download"


def test_a_file_url_is_a_path(made, put, root, quick):
    assert put(made("1").as_uri(), quick).state == "committed"


@pytest.mark.parametrize(
    ("url", "told"),
    [("https://a:b@x:1/p?q#f", "https://x:1/p"), ("http://[::1]:8/p", "http://[::1]:8/p"), ("https://x", "https://x")],
)
def test_a_source_is_told_without_what_may_be_secret(url, told):
    assert display_url(url) == told
