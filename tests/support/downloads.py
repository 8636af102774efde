"""A server on this machine that does what servers and networks do, by a script; and a certificate for it."""

from __future__ import annotations

import datetime
import ssl
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def make_certificate(folder: Path) -> Path:
    """Of `localhost`, signed by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
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
    file = folder / "localhost.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file


@dataclass
class Script:
    """What the server does. data: the file. cut: bytes of an answer after which it hangs up, one a request, None for
    none.
    """

    data: bytes
    etag: str | None = '"one"'
    ranges: bool = True
    cuts: list[int | None] = field(default_factory=list)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    wrong_range: bool = False
    endless: bool = False
    length: bool = True
    asked: list[dict[str, str]] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)


@contextmanager
def serving(script: Script, certificate: Path | None = None):
    """A server that follows the script, and the address of a file there: over TLS as `localhost` with a certificate."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments):
            pass

        def do_GET(self):
            script.asked.append(dict(self.headers))
            self.close_connection = True
            if self.path in script.moved:
                self.send_response(302)
                self.send_header("Location", script.moved[self.path])
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            start, status = 0, script.status
            wanted = self.headers.get("Range")
            if wanted and script.ranges and self.headers.get("If-Range") == script.etag:
                start, status = int(wanted.removeprefix("bytes=").rstrip("-")), 206
            body = script.data[start:]
            self.send_response(status)
            if status == 206:
                first = start + 1 if script.wrong_range else start
                self.send_header("Content-Range", f"bytes {first}-{len(script.data) - 1}/{len(script.data)}")
            if script.length and not script.endless:
                self.send_header("Content-Length", str(len(body)))
            if script.etag:
                self.send_header("ETag", script.etag)
            for name, value in script.headers.items():
                self.send_header(name, value)
            self.end_headers()
            cut = script.cuts.pop(0) if script.cuts else None
            try:
                body = body if cut is None else body[:cut]
                for at in range(0, len(body), 1 << 10):  # a TLS record each, so that half a file arrives as half a file
                    self.wfile.write(body[at : at + (1 << 10)])
                while script.endless:
                    self.wfile.write(bytes(1 << 16))
                    time.sleep(0.001)  # so that it fills no disk
            except OSError:
                pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    scheme, host = "http", "127.0.0.1"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme, host = "https", "localhost"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"{scheme}://{host}:{server.server_port}/net.ekb"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
