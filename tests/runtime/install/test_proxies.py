"""Downloads through a real proxy on this machine: as bounded as without one, and as resumable; its password stays with
it.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import socket
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from downloads import Script, serving
from installed import UNSIGNED, names
from ports import closed_port

from edgekit_runtime import EdgekitError
from edgekit_runtime.install import DownloadLimits, FetchOptions

LIMITS = DownloadLimits(silence_s=2.0, head_s=2.0, tries=3)
QUICK = replace(UNSIGNED, fetching=FetchOptions(LIMITS, sleep=lambda seconds: None))


@dataclass
class Proxy:
    """password: NAME:PASSWORD that it asks for. cuts: bytes after which it hangs up, one a connection, None for none.
    says: in
    place of what it should. asked: the first line and the headers of every request that reached it."""

    password: str = ""
    cuts: list[int | None] = field(default_factory=list)
    says: bytes | None = None
    drips: bool = False
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    port: int = 0

    def __enter__(self) -> Proxy:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread's wait, which closing alone does not
        self._listener.close()

    def _listen(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket):
        with client, contextlib.suppress(OSError):
            data = b""
            while b"\r\n\r\n" not in data:
                data += client.recv(4096)
            first, *lines = data.decode().split("\r\n\r\n")[0].split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines)
            self.asked.append((first, headers))
            wanted = "Basic " + base64.b64encode(self.password.encode()).decode()
            if self.drips:
                while not self._over.wait(0.01):
                    client.sendall(b"y")
            if self.says is not None:
                client.sendall(self.says)
            elif self.password and headers.get("Proxy-Authorization") != wanted:
                client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            else:
                self._pass_on(client, first, headers)

    def _pass_on(self, client: socket.socket, first: str, headers: dict[str, str]):
        method, target, _ = first.split(" ")
        port, path = re.fullmatch(r"(?:http://)?[^:/]+:(\d+)(/.*)?", target).groups()
        with socket.create_connection(("127.0.0.1", int(port))) as server:
            if method == "CONNECT":
                client.sendall(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")
            else:
                lines = [f"GET {path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items() if k[:6] != "Proxy-")]
                server.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
            back = threading.Thread(target=_carry, args=(client, server, None), daemon=True)
            back.start()
            _carry(server, client, self.cuts.pop(0) if self.cuts else None)


def _carry(source: socket.socket, to: socket.socket, cut: int | None):
    """To the end of it, or so many bytes, and then hang up on both."""
    with contextlib.suppress(OSError):
        while chunk := source.recv(1 << 16 if cut is None else min(cut, 1 << 16)):
            to.sendall(chunk)
            cut = None if cut is None else cut - len(chunk)
            if cut == 0:
                break
    for one in (source, to):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@pytest.fixture(params=["http", "https"])
def scheme(request, monkeypatch, certificate):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    return request.param


@pytest.fixture
def through(scheme, monkeypatch, certificate):
    """Serves the script, and has the environment name the proxy; the URL of the bundle."""

    @contextlib.contextmanager
    def through(proxy: Proxy, script: Script, address: str = "http://127.0.0.1:{port}"):
        with proxy, serving(script, certificate if scheme == "https" else None) as url:
            monkeypatch.setenv(f"{scheme}_proxy", address.format(port=proxy.port))
            yield url

    return through


def holds(folder: Path, secret: bytes) -> list[str]:
    """Which files of a root hold it, as it is or as a header does."""
    forms = (secret, base64.b64encode(b"anna:" + secret))
    files = [Path(where) / name for where, _, found in os.walk(folder) for name in found]
    return [file.name for file in files if any(form in file.read_bytes() for form in forms)]


def test_a_bundle_comes_through_it(scheme, through, made, put):
    proxy, script = Proxy(), Script(made("1").read_bytes())
    with through(proxy, script) as url:
        assert put(url, QUICK).generation.source == url
    ((first, headers),) = proxy.asked
    place = url.split("/")[2]
    if scheme == "https":
        assert first == f"CONNECT {place} HTTP/1.1", "the proxy learns the host and no more"
        assert headers == {"Host": place}
    else:
        assert first == f"GET {url} HTTP/1.1"
    assert script.asked[0]["Host"] == place


def test_what_breaks_off_goes_on_where_it_was(through, made, put, root):
    data = made("1").read_bytes()
    proxy, script = Proxy(cuts=[len(data) // 2, None]), Script(data)
    with through(proxy, script) as url:
        assert put(url, QUICK).state == "committed"
    assert len(proxy.asked) == 2
    start = int(script.asked[1]["Range"].removeprefix("bytes=").rstrip("-"))
    assert 0 < start < len(data) // 2
    assert names(root / "incoming") == []


@pytest.mark.parametrize("no_proxy", ["{host}", "{host}:{port}", "*", "elsewhere.example, {host}"])
def test_no_proxy_leads_past_it(no_proxy, through, made, put, monkeypatch):
    proxy, script = Proxy(), Script(made("1").read_bytes())
    with through(proxy, script) as url:
        host, port = url.split("/")[2].split(":")
        monkeypatch.setenv("no_proxy", no_proxy.format(host=host, port=port))
        assert put(url, QUICK).state == "committed"
    assert proxy.asked == []


def test_its_password_goes_to_it_alone_and_into_no_file(through, made, put, root):
    """S21"""
    proxy, script = Proxy(password="anna:ge:heim@1"), Script(made("1").read_bytes(), cuts=[100, None])
    with through(proxy, script, "http://anna:ge%3Aheim%401@127.0.0.1:{port}") as url:
        assert put(url, QUICK).state == "committed"
    assert len(proxy.asked) == 2
    assert all("Proxy-Authorization" not in one for one in script.asked)
    assert all("Authorization" not in one for one in script.asked)
    assert holds(root, b"ge:heim@1") == holds(root, b"ge%3Aheim%401") == []


def test_a_proxy_that_wants_another_password_is_asked_once(scheme, through, made, put, root, capfd):
    """S21"""
    proxy = Proxy(password="anna:right")
    address = "http://anna:geheim@127.0.0.1:{port}"
    with through(proxy, Script(b""), address) as url, pytest.raises(EdgekitError, match="answered 407") as caught:
        put(url, QUICK)
    assert caught.value.what.startswith(f"the proxy 127.0.0.1:{proxy.port} ({scheme}_proxy) answered 407")
    assert caught.value.code == "download"
    assert caught.value.do == f"Set its user and password: {scheme}_proxy=http://USER:PASSWORD@HOST:PORT"
    assert len(proxy.asked) == 1
    assert holds(root, b"geheim") == []
    assert "geheim" not in "".join([str(caught.value), repr(caught.value.__cause__), *capfd.readouterr()])


ANSWERS = {
    "a refusal": (b"HTTP/1.1 403 Forbidden\r\n\r\n", "answered 403 Forbidden", (1,)),
    "out of order": (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "answered 503", (3,)),
    "nothing": (b"", "the proxy", (3,)),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "the proxy", (1, 3)),
    "a head without an end": (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20000, "the proxy", (1, 3)),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_of_its_own(case, through, put):
    says, told, times = ANSWERS[case]
    proxy = Proxy(says=says)
    with through(proxy, Script(b"")) as url, pytest.raises(EdgekitError, match=told) as caught:
        put(url, QUICK)
    assert caught.value.code == "download"
    assert caught.value.do
    assert str(caught.value).isprintable()
    assert len(proxy.asked) in times


@pytest.mark.parametrize("scheme", ["https"], indirect=True)
def test_a_tunnel_through_what_speaks_no_http_is_asked_for_once(scheme, through, put):
    proxy = Proxy(says=b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    with through(proxy, Script(b"")) as url, pytest.raises(EdgekitError, match="does not speak HTTP") as caught:
        put(url, QUICK)
    assert caught.value.do == f"Check {scheme}_proxy"
    assert len(proxy.asked) == 1


def test_one_that_drips_is_given_up(through, put, root):
    proxy = Proxy(drips=True)
    how = replace(QUICK, fetching=FetchOptions(DownloadLimits(silence_s=5.0, head_s=0.2, tries=1)))
    with through(proxy, Script(b"")) as url, pytest.raises(EdgekitError, match=r"no response within 0\.2 s"):
        put(url, how)


def test_one_that_is_not_there_is_named(through, made, put):
    with closed_port() as port:
        told = rf"through the proxy 127.0.0.1:{port} .*nothing listens there"
        with through(Proxy(), Script(b""), f"http://127.0.0.1:{port}") as url, pytest.raises(EdgekitError, match=told):
            put(url, QUICK)


ADDRESSES = {
    "another port than a number": "http://anna:geheim@127.0.0.1:camera",
    "no host": "http://anna:geheim@:3128",
    "a bracket": "http://anna:geheim@[::1",
    "SOCKS": "socks5://anna:geheim@127.0.0.1:{port}",
    "a proxy by TLS": "https://anna:geheim@127.0.0.1:{port}",
}


@pytest.mark.parametrize("case", ADDRESSES)
def test_no_address_of_a_proxy(case, scheme, through, put, root):
    """Nothing goes out, and the password is not told."""
    proxy = Proxy()
    with through(proxy, Script(b""), ADDRESSES[case]) as url, pytest.raises(EdgekitError) as caught:
        put(url, QUICK)
    assert (caught.value.code, caught.value.where) == ("download", f"{scheme}_proxy")
    assert f"{scheme}_proxy=http://HOST:PORT" in caught.value.do
    assert "geheim" not in str(caught.value)
    assert holds(root, b"geheim") == []
    assert proxy.asked == []


def test_an_address_without_a_scheme_is_one(through, made, put):
    proxy, script = Proxy(), Script(made("1").read_bytes())
    with through(proxy, script, "127.0.0.1:{port}") as url:
        assert put(url, QUICK).state == "committed"
    assert len(proxy.asked) == 1
