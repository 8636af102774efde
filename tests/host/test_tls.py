"""HTTPS with real certificates, and what is refused without."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
from contextlib import ExitStack, suppress
from ssl import SSLError

import numpy as np
import pytest
import tiny
from certificates import authority, certificate, lock
from refusing import has_code
from served import Serving

from edgekit.host.http1 import HttpLimits, Patience, ServeError
from edgekit.host.server import Protection
from edgekit_runtime.remote.client import HostClient
from edgekit_runtime.system.errors import HostError

LONG = 30.0
RED = {"image": tiny.RED[None]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("certificates")
    authority(made)
    for name in ("server", "renewed", "board"):
        certificate(made, name)
    lock(made, "board")
    return made


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny.bundle(tmp_path_factory.mktemp("bundle"))


def trusting(folder, own=None):
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    if own is not None:
        context.load_cert_chain(own)
    return context


def test_connections_that_never_speak_tls_count_and_are_ended(folder, path, monkeypatch):
    monkeypatch.setattr("edgekit.host.connection._REFUSED_AT_ONCE", 0)
    with Serving(path, protection=Protection(certificate=folder / "server.pem")) as host, ExitStack() as stack:
        host.call(lambda: setattr(host.server, "limits", HttpLimits(connections=4)))
        host.call(lambda: setattr(host.server, "patience", Patience(head=0.5)))
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", host.port), LONG)) for _ in range(12)]
        for sock in silent:
            with suppress(ConnectionError):
                assert sock.recv(1) == b""
        with HostClient(host.url, model="tiny", tls=trusting(folder)) as client:
            assert client.infer(RED, LONG)


@pytest.mark.parametrize("apart", [False, True], ids=["one file", "key apart"])
def test_a_device_that_knows_the_authority_is_answered_over_tls(folder, path, apart):
    given = {"certificate": folder / "server.crt", "key": folder / "server.key"}
    protection = Protection(**given) if apart else Protection(certificate=folder / "server.pem")
    with Serving(path, protection=protection) as host:
        with HostClient(host.url, model="tiny", tls=trusting(folder)) as client:
            for _ in range(3):
                assert client.infer(RED, LONG).outputs["probs"].argmax() == 0
        with HostClient(host.url, model="tiny") as stranger, pytest.raises(HostError, match="certificate"):
            stranger.infer(RED, LONG)
        with HostClient(host.url.replace("https", "http"), model="tiny") as clear, pytest.raises(HostError):
            clear.infer(RED, LONG)


def test_bodies_and_refusals_travel_whole_over_tls(folder, path):
    with (
        Serving(path, cache=False, protection=Protection(certificate=folder / "server.pem")) as host,
        HostClient(host.url, model="tiny", tls=trusting(folder)) as client,
    ):
        pictures = np.stack([tiny.RED, tiny.GREEN, tiny.BLUE, tiny.DARK] * 64)
        assert client.infer({"image": pictures}, LONG).outputs["probs"].argmax(1).tolist() == [0, 1, 2, 3] * 64
        with pytest.raises(HostError, match="413 the body is larger", check=has_code("host-refused")):
            client.infer({"image": np.zeros((1, 70 << 20), np.uint8)}, LONG)
        assert client.infer(RED, LONG)


def test_with_a_client_authority_only_its_boards_are_answered(folder, path):
    protection = Protection(certificate=folder / "server.pem", client_ca=folder / "ca.pem")
    with Serving(path, protection=protection) as host:
        with HostClient(host.url, model="tiny", tls=trusting(folder, folder / "board.pem")) as board:
            assert board.infer(RED, LONG).outputs["probs"].argmax() == 0
        with HostClient(host.url, model="tiny", tls=trusting(folder)) as stranger, pytest.raises(HostError):
            stranger.infer(RED, LONG)


def test_a_renewed_certificate_is_used_for_the_next_connection(folder, path, tmp_path):
    used = tmp_path / "used.pem"
    shutil.copy(folder / "server.pem", used)
    with Serving(path, protection=Protection(certificate=used)) as host:
        assert _name(host.port, folder) == "server"
        shutil.copy(folder / "renewed.pem", used)
        host.call(lambda: [check() for check in host.server._every_second])
        assert _name(host.port, folder) == "renewed"
        used.write_text("cut off")
        host.call(lambda: [check() for check in host.server._every_second])
        assert _name(host.port, folder) == "renewed"


def _name(port, folder):
    with trusting(folder).wrap_socket(
        socket.create_connection(("127.0.0.1", port), LONG), server_hostname="127.0.0.1"
    ) as wrapped:
        return dict(pair[0] for pair in wrapped.getpeercert()["subject"])["commonName"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"certificate": "absent.pem"}, "No such file"),
        ({"certificate": "server.crt"}, "cannot be used for TLS"),
        ({"certificate": "server.crt", "key": "board.key"}, "cannot be used for TLS"),
        ({"certificate": "server.pem", "client_ca": "server.key"}, "cannot be used for TLS"),
        ({"certificate": "board.crt", "key": "locked.key"}, "its private key has a passphrase"),
    ],
)
def test_files_that_do_not_fit_are_one_clear_error(folder, given, why):
    protection = Protection(**{name: folder / file for name, file in given.items()})
    with pytest.raises(ServeError, match=why, check=has_code("serve-certificate")):
        protection.check()


@pytest.mark.skipif(os.name == "nt", reason="modes are POSIX")
def test_a_key_that_others_may_replace_is_refused(folder, tmp_path):
    loose = tmp_path / "loose.pem"
    shutil.copy(folder / "server.pem", loose)
    loose.chmod(0o666)
    with pytest.raises(ServeError, match="write", check=has_code("serve-certificate")):
        Protection(certificate=loose).check()


def test_old_versions_of_tls_are_refused(folder, path):
    old = trusting(folder)
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with Serving(path, protection=Protection(certificate=folder / "server.pem")) as host, pytest.raises(SSLError):
        old.wrap_socket(socket.create_connection(("127.0.0.1", host.port), LONG), server_hostname="127.0.0.1")


# The command.


def test_beyond_loopback_a_server_needs_tls_or_a_flag_that_says_what_it_means(edgekit, path):
    ran = edgekit("host", "serve", path, "--listen", "0.0.0.0:0", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (1, "serve-unencrypted")
    assert "--certificate" in ran.json["error"]["do"]
    assert "--unencrypted" in ran.json["error"]["do"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "name a BUNDLE"),
        (["x.ekb", "--models", "."], "--models needs --tokens"),
        (["x.ekb", "--key", "k.pem"], "need --certificate"),
        (["x.ekb", "--client-ca", "k.pem"], "need --certificate"),
        (["x.ekb", "--certificate", "k.pem", "--unencrypted"], "contradicts"),
    ],
)
def test_options_that_contradict_each_other_are_wrong_usage(edgekit, options, why):
    ran = edgekit("host", "serve", *options)
    assert ran.code == 2
    assert why in ran.err
