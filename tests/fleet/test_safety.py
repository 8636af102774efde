"""What strangers do to the pages: half a request, another host's name, text that hides, a wrong password."""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
import time
import urllib.parse

import pytest
from fleet.boards import arrival, birth

from edgekit.cli.options import read_source
from edgekit.fleet.ingest import Pace
from edgekit.fleet.pages.access import Access, Asking, TooManyError
from edgekit.fleet.pages.charts import model_charts
from edgekit.fleet.pages.guard import Names
from edgekit.fleet.pages.show import shown
from edgekit.fleet.serve import FleetServer, Settings
from edgekit.fleet.store.fleet_errors import FleetError
from edgekit.fleet.store.records import Rollup
from edgekit_runtime.system.errors import SecretError

PASSWORD = "a long enough password"


@pytest.fixture
def serving(tmp_path):
    """`serving(access=..., ...)` starts a server that has no broker; all of them end with the test."""
    running = []

    def start(**more):
        number = len(running)
        given = {"store": f"sqlite:///{tmp_path}/{number}.db", "listen": "127.0.0.1:0", "pace": Pace(chores_s=60)}
        server = FleetServer(Settings("mqtt://127.0.0.1:1", **{**given, **more}))
        server.start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.close()


def where(server):
    parts = urllib.parse.urlsplit(server.url)
    return parts.hostname, parts.port


def ask(server, path="/", method="GET", body=None, **headers):
    """(status, headers, text), without following a redirect."""
    connection = http.client.HTTPConnection(*where(server), timeout=30)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
    finally:
        connection.close()


def post(server, path, *, cookie="", origin=None, **form):
    host, port = where(server)
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": cookie}
    headers["Origin"] = f"http://{host}:{port}" if origin is None else origin
    return ask(server, path, "POST", urllib.parse.urlencode(form), **headers)


# Connections.


def test_many_half_open_heads_stop_no_page(serving):
    """S29"""
    server = serving()
    held = []
    try:
        for number in range(1100):
            half = socket.create_connection(where(server), timeout=10)
            half.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
            held.append(half)
            if number % 100 == 0:
                assert ask(server)[0] == 200
        assert ask(server)[0] == 200
        server.store.commit([arrival(1)], [])  # its descriptors are its own
    finally:
        for half in held:
            half.close()


HALVES = {"nothing": b"", "half a head": b"GET / HTTP/1.1\r\n",
          "half a body": b"POST /sign-out HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n12"}  # fmt: skip


@pytest.mark.parametrize("start", HALVES.values(), ids=HALVES)
def test_a_request_that_does_not_end_is_closed(serving, start):
    """S29"""
    server = serving(request_s=0.3)
    with socket.create_connection(where(server), timeout=10) as half:
        half.sendall(start)
        while half.recv(4096):
            pass


def test_a_second_half_request_on_a_kept_connection_is_closed(serving):
    server = serving(request_s=0.3)
    with socket.create_connection(where(server), timeout=10) as kept:
        kept.sendall(b"GET /static/mark.svg HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        while not kept.recv(4096).endswith(b"</svg>\n"):
            pass
        kept.sendall(b"GET /heal")
        while kept.recv(4096):
            pass


def test_a_head_above_its_bound_is_refused(serving):
    with socket.create_connection(where(serving()), timeout=10) as long:
        long.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X-Long: " + b"a" * 40_000)
        assert b"400" in long.recv(4096)


def test_streams_fill_a_peers_share_and_no_more(serving):
    """A stream is an answer under way: it is not closed for a newcomer, who finds no place."""
    server = serving(most_a_peer=3)
    streams = [socket.create_connection(where(server), timeout=10) for _ in range(3)]
    for stream in streams:
        stream.sendall(b"GET /stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200" in stream.recv(4096)
    with socket.create_connection(where(server), timeout=10) as more, pytest.raises(OSError):
        more.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert more.recv(4096) == b""
        raise ConnectionError
    streams.pop().close()
    until = time.monotonic() + 10
    while True:
        try:
            assert ask(server)[0] == 200
            break
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)
    for stream in streams:
        stream.close()


# Names.

HOSTS = [("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("FLEET.example", 200), ("fleet.example.", 200),
         ("evil.example", 421), ("127.0.0.1.evil.example", 421), ("192.0.2.7", 421), ("a@localhost", 400), ("", 400),
         ("localhost:x", 400), ("localhost/x", 400)]  # fmt: skip


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    folder = tmp_path_factory.mktemp("named")
    settings = Settings("mqtt://127.0.0.1:1", store=f"sqlite:///{folder}/x.db", listen="127.0.0.1:0",
                        names=("fleet.example",))  # fmt: skip
    with FleetServer(settings) as server:
        yield server


@pytest.mark.parametrize(("host", "status"), HOSTS)
def test_only_the_servers_own_names_are_answered(named, host, status):
    """S27"""
    assert ask(named, Host=host)[0] == status


def test_where_every_address_is_listened_on_each_is_a_name_and_no_other_is():
    names = Names.of("0.0.0.0", ["fleet.example"])
    assert names.has("192.0.2.7:8787")
    assert names.has("[2001:db8::1]:8787")
    assert not names.has("evil.example")
    assert not Names.of("192.0.2.1").has("192.0.2.7")


# Text that hides.

HIDDEN = {"direction": "a\u202eb", "zero width": "a\u200bb", "joiner": "a\u200db", "mark": "a\u200fb",
          "soft": "a\u00adb", "tag": "a\U000e0041b", "filler": "a\u3164b", "isolate": "\u2067a",
          "feff": "a\ufeffb"}  # fmt: skip


@pytest.mark.parametrize("text", HIDDEN.values(), ids=HIDDEN)
def test_what_cannot_be_seen_is_escaped(text):
    assert shown(text).isascii()
    one = Rollup(0, 900_000, "digits", text, "pi", 1, 900_000, 9, 0, 0, 0, 0, 0)
    assert model_charts([one], 900_000)["Share of reporting boards by version"].__html__().isascii()


@pytest.mark.parametrize("text", ["می\u200cخواهم", "👩\u200d🔧", "größe", "数字"])
def test_what_can_be_seen_stays(text):
    assert shown(text) == text


def test_no_page_has_a_boards_text_with_what_cannot_be_seen(serving):
    """S28"""
    server = serving()
    now = int(time.time() * 1000)
    server.store.commit(
        [], [birth("gate-1", received=now, model="dig\u202etis", ver="1\u200b", hw="x\u2066y", profile="p\u00ad")]
    )
    server.store.commit([arrival(1, "gate-1", received=now, at=now, model="dig\u202etis", version="1\u200b")], [])
    for path in ("/", "/device/gate-1", "/device/gate-1/series", "/?q=%E2%80%AE"):
        text = ask(server, path)[2]
        assert not re.search("[\u202e\u200b\u2066\u00ad]", text), path
    assert "dig\\u202etis" in ask(server)[2]


# Signing in.


def test_a_password_opens_the_pages_and_nothing_else_does(serving):
    """S27"""
    server = serving(access=Access.by_password(PASSWORD, time.monotonic))
    assert ask(server)[0] == 401
    assert ask(server, "/stream")[0] == 401
    assert json.loads(ask(server, "/healthz", Host="localhost")[2]).keys() == {"ok"}
    status, headers, _ = ask(server, "/device/x-1?a=b", Accept="text/html")
    assert (status, headers["location"]) == (303, "/sign-in?next=%2Fdevice%2Fx-1%3Fa%3Db")
    page = ask(server, "/sign-in?next=%2Fdevice%2Fx-1")[2]
    token = re.search('name="csrf" value="([0-9a-f]+)"', page)[1]
    status, _, page = post(server, "/sign-in", csrf=token, password="wrong password", next="/")
    assert (status, "Wrong password" in page) == (403, True)
    status, headers, _ = post(server, "/sign-in", csrf=token, password=PASSWORD, next="//evil.example")
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    cookie = cookie.split(";")[0]
    status, _, page = ask(server, Cookie=cookie)
    assert (status, "Sign out" in page) == (200, True)
    mine = re.search('name="csrf" value="([0-9a-f]+)"', page)[1]
    assert mine != token
    assert post(server, "/sign-out", cookie=cookie, csrf=mine)[0] == 303
    assert ask(server, Cookie=cookie)[0] == 401


def test_basic_authorization_is_for_scripts(serving):
    server = serving(access=Access.by_password(PASSWORD, time.monotonic))
    right, wrong = (base64.b64encode(f"any:{word}".encode()).decode() for word in (PASSWORD, "wrong"))
    assert ask(server, Authorization=f"Basic {right}")[0] == 200
    assert [ask(server, Authorization=f"Basic {wrong}")[0] for _ in range(6)] == [401] * 5 + [429]
    assert ask(server, Authorization=f"Basic {right}")[0] == 429


def test_wrong_passwords_are_counted_and_a_right_one_among_many_is_refused_too():
    """S27"""
    now = [0.0]
    access = Access.by_password(PASSWORD, lambda: now[0])
    assert [access.sign_in("192.0.2.1", "wrong") for _ in range(5)] == [None] * 5
    with pytest.raises(TooManyError) as caught:
        access.sign_in("192.0.2.1", PASSWORD)
    assert caught.value.wait_s == pytest.approx(12.0)
    assert access.sign_in("192.0.2.2", PASSWORD) is not None
    now[0] += 12.0
    assert access.sign_in("192.0.2.1", PASSWORD) is not None


def test_behind_a_proxy_each_client_is_counted_by_the_address_that_it_forwards():
    access = Access.by_password(PASSWORD, lambda: 0.0, ["127.0.0.1", "10.0.0.9"])
    seen = [
        ("127.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("127.0.0.1", ["203.0.113.1, 192.0.2.7", "10.0.0.9"], "192.0.2.7"),  # the proxy adds at the end
        ("127.0.0.1", ["192.0.2.7, unknown"], "127.0.0.1"),
        ("127.0.0.1", [], "127.0.0.1"),
        ("198.51.100.4", ["192.0.2.7"], "198.51.100.4"),  # not a proxy of ours: its header is worth nothing
    ]
    assert [access.address_of(peer, forwarded) for peer, forwarded, _ in seen] == [address for *_, address in seen]
    assert Access.by_proxy("X-User", ["127.0.0.1"]).address_of("127.0.0.1", ["192.0.2.7"]) == "127.0.0.1"


def test_five_wrong_passwords_behind_a_proxy_lock_out_nobody_else(serving):
    """Neither another client of the proxy, nor a script with an account of its own."""
    server = serving(access=Access.by_password(PASSWORD, time.monotonic, ["127.0.0.1"]))

    def status(password, user="any", forwarded="192.0.2.7"):
        basic = base64.b64encode(f"{user}:{password}".encode()).decode()
        return ask(server, Authorization=f"Basic {basic}", X_Forwarded_For=forwarded)[0]

    assert status(PASSWORD, "prometheus") == 200
    assert [status("wrong") for _ in range(6)] == [401] * 5 + [429]
    assert status(PASSWORD) == 429
    assert status(PASSWORD, "prometheus") == 200
    assert status(PASSWORD, forwarded="192.0.2.8") == 200
    assert status(PASSWORD, forwarded="192.0.2.8, 192.0.2.7") == 429, "who writes another address before is the same"


def test_names_of_accounts_are_no_further_guesses_and_who_was_right_is_not_locked_out():
    """An address may be wrong 20 times in all, everybody 60; a script that signed in before goes on."""
    now = [0.0]
    access = Access.by_password(PASSWORD, lambda: now[0])

    def guess(peer, account, password="wrong"):
        try:
            basic = base64.b64encode(f"{account}:{password}".encode()).decode()
            return access.viewer(Asking(peer, basic=basic)) is not None
        except TooManyError:
            return "later"

    assert guess("192.0.2.1", "prometheus", PASSWORD)
    assert [guess("192.0.2.1", f"a{n}") for n in range(21)] == [False] * 20 + ["later"]
    for peer in range(2, 6):
        for n in range(10):
            guess(f"192.0.2.{peer}", f"a{n}")
    assert guess("192.0.2.9", "a", PASSWORD) == "later", "all together have guessed too often"
    assert guess("192.0.2.1", "prometheus", PASSWORD) is True
    now[0] += 12.0
    assert guess("192.0.2.9", "a", PASSWORD) is True


def test_a_network_of_ipv6_is_one_that_guesses():
    access = Access.by_password(PASSWORD, lambda: 0.0)
    for number in range(5):
        access.sign_in(f"2001:db8::{number}", "wrong")
    with pytest.raises(TooManyError):
        access.sign_in("2001:db8::9", "wrong")


def test_a_session_ends():
    now = [0.0]
    access = Access.by_password(PASSWORD, lambda: now[0])
    token = access.sign_in("p", PASSWORD)
    assert access.viewer(Asking("p", cookie=token)).name == "operator"
    now[0] += 12 * 3600 + 1
    assert access.viewer(Asking("p", cookie=token)) is None
    assert access.viewer(Asking("p", cookie="")) is None


def test_a_proxys_header_counts_from_the_proxy_alone(serving):
    """S27"""
    server = serving(access=Access.by_proxy("X-Forwarded-User", ["127.0.0.1"]))
    assert ask(server)[0] == 403
    assert ask(server, X_Forwarded_User="ada")[0] == 200
    other = serving(access=Access.by_proxy("X-Forwarded-User", ["192.0.2.1"]))
    assert ask(other, X_Forwarded_User="ada", X_Forwarded_For="192.0.2.1")[0] == 403


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_beyond_loopback_the_pages_need_a_sign_in(serving, listen):
    """S27"""
    with pytest.raises(FleetError, match="require a sign-in") as caught:
        serving(listen=listen)
    assert "--password" in caught.value.do
    server = serving(listen=listen, access=Access.by_password(PASSWORD, time.monotonic))
    assert server.exposed


# Requests that change something.


def test_a_page_elsewhere_cannot_post(serving):
    """S27"""
    server = serving(access=Access.by_password(PASSWORD, time.monotonic))
    token = re.search('name="csrf" value="([0-9a-f]+)"', ask(server, "/sign-in")[2])[1]
    for origin in ("http://evil.example", "null", "http://localhost:1"):
        status, _, said = post(server, "/sign-in", origin=origin, csrf=token, password=PASSWORD)
        assert status == 403
        assert "edgekit fleet" in said, "what a script does instead"
    assert ask(server, "/sign-in", "POST", "")[0] == 403
    status, _, page = post(server, "/sign-in", csrf="0" * 64, password=PASSWORD)
    assert (status, "expired" in page) == (403, True)


def test_every_form_needs_the_viewers_token(serving):
    """S27"""
    from starlette.routing import Route

    from edgekit.fleet.pages.app import Facts, make_app

    server = serving()
    app = make_app(server.store, Facts(dict, dict, ""))
    posts = [route.path for route in app.routes if isinstance(route, Route) and "POST" in (route.methods or ())]
    assert "/sign-out" in posts
    for path in posts:
        assert post(server, re.sub("{.*?}", "porch-1", path), csrf="0" * 64)[0] in (403, 404), path
    assert post(server, "/sign-out", csrf="x" * 20_000)[0] == 413


# Passwords.


def test_a_password_is_read_from_a_file_or_a_variable(tmp_path, monkeypatch):
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    file.chmod(0o600)
    assert read_source(f"file:{file}", "--password") == PASSWORD
    monkeypatch.setenv("FLEET_PASSWORD", PASSWORD)
    assert read_source("env:FLEET_PASSWORD", "--password") == PASSWORD
    file.chmod(0o644)
    with pytest.raises(SecretError, match="chmod 600"):
        read_source(f"file:{file}", "--password")
    with pytest.raises(SecretError, match="env:NAME or file:PATH"):
        read_source("hunter2 hunter2", "--password")
    with pytest.raises(FleetError, match="5 characters"):
        Access.by_password("short", time.monotonic)


def test_what_cannot_be_read_is_named_by_what_it_holds(in_process, tmp_path, monkeypatch):
    monkeypatch.delenv("NOWHERE", raising=False)
    serve = ("fleet", "serve", "--broker")
    assert "error: file:nope: the broker's URL cannot be read: No such file" in in_process(*serve, "file:nope").err
    assert "Set NOWHERE to the broker's URL, or pass file:PATH" in in_process(*serve, "env:NOWHERE").err
    with pytest.raises(SecretError, match="the password cannot be read"):
        read_source(f"file:{tmp_path}/nope", "--password")


COMMANDS = {
    "serve": ("fleet", "serve"), "ingest": ("fleet", "ingest", "--store", "sqlite:///x.db", "--share", "x"),
    "simulate": ("fleet", "simulate"), "agent": ("agent", "--root", "root", "--device", "porch-1"),
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_brokers_url_with_its_password_comes_from_a_file_or_a_variable(in_process, tmp_path, monkeypatch, command):
    """Every user of a machine sees what stands on a command line. The URL read is wrong, so that it is named."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "broker-url"
    file.write_text("https://ingest:not-to-be-shown@fleet.example\n")
    file.chmod(0o600)
    monkeypatch.setenv("FLEET_BROKER", file.read_text())
    for source in (f"file:{file}", "env:FLEET_BROKER"):
        ran = in_process(*command, "--broker", source)
        assert ran.code == 1
        assert "fleet.example" in ran.err
        assert "not a broker URL" in ran.err
        assert "not-to-be-shown" not in ran.err
    file.chmod(0o644)
    assert "chmod 600" in in_process(*command, "--broker", f"file:{file}").err


def test_a_proxy_is_named_for_a_password_too(in_process, monkeypatch):
    monkeypatch.setenv("FLEET_PASSWORD", PASSWORD)
    serve = ("fleet", "serve", "--embedded-broker", "--proxy", "127.0.0.1")
    assert "--proxy needs it, or --password" in in_process(*serve).err
    ran = in_process(*serve[:-1], "proxy.example", "--password", "env:FLEET_PASSWORD")
    assert "not an IP address" in ran.err
