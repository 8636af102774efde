"""Bundles of other kinds: with a state, encrypted; and a download over TLS."""

from __future__ import annotations

import datetime
import ssl
import threading
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import memory
import pytest
from installed import UNSIGNED, current

from edgekit_runtime import EdgekitError, open_bundle
from edgekit_runtime.install import Fetching, Limits


def test_a_model_that_keeps_a_state_is_tried_frame_by_frame(put, root, tmp_path):
    done = put(memory.bundle(tmp_path, next(kind for kind in memory.HERE if kind != "inside")))
    assert done.trial.seen.answers == 25
    with open_bundle(root) as model, model.session() as session:
        assert session.frames == 0


def test_an_encrypted_one_needs_its_key_to_be_installed_and_to_be_opened(put, root, tmp_path):
    import tiny

    from edgekit_runtime.bundle.secrets import Secret

    key = bytes(range(7, 39))
    path = tiny.bundle(tmp_path, "tflite-int8", secret=Secret([key]))
    with pytest.raises(EdgekitError) as caught:
        put(path)
    assert caught.value.code == "secret-missing"
    assert current(root) is None
    put(path, secret=key)
    assert path.read_bytes() in [entry.read_bytes() for entry in (root / "objects").iterdir()], "it stays encrypted"
    with pytest.raises(EdgekitError):
        open_bundle(root)
    with open_bundle(root, secret=key) as model:
        assert model.predict(tiny.RED).top(1)[0].label == "red"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Of `localhost`, signed by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "localhost.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file


@pytest.fixture
def secure(certificate, made):
    """An https server with the bundles, and its port."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(made("1").parent))

        def log_message(self, *arguments):
            pass

        def do_GET(self):
            if self.path == "/down":
                self.send_response(302)
                self.send_header("Location", "http://localhost/net.ekb")
                self.end_headers()
                return
            super().do_GET()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"https://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


ONCE = replace(UNSIGNED, fetching=Fetching(Limits(tries=1)))


def test_https_is_checked_against_the_systems_certificates(made, put, root, secure, certificate, monkeypatch):
    monkeypatch.setenv("no_proxy", "localhost")
    with pytest.raises(EdgekitError, match=r"its certificate is not accepted .* a clock that is wrong") as caught:
        put(f"{secure}/{made('1').name}", ONCE)
    assert caught.value.code == "download"
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert put(f"{secure}/{made('1').name}", ONCE).state == "committed"
    with pytest.raises(EdgekitError, match="leads on to one without encryption"):
        put(f"{secure}/down", ONCE)
    assert current(root) == "generations/1"
