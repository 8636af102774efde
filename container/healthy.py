"""`healthy.py PORT/PATH`: exit 0 if the server of this container answers there with 200, over HTTP or HTTPS.

Its certificate is not checked: the question never leaves the container. A server that asks for a client's certificate
(`host serve --client-ca`) is healthy if it says so: the question has none to show.
"""

import socket
import ssl  # noqa: TID253 - a program of its own
import sys
import urllib.error
import urllib.request

_WAIT_S = 5.0


def problem(where: str) -> object:
    """Why it is not healthy, None if it is."""
    trusting = ssl._create_unverified_context()
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting)
    found: OSError | None = None
    for scheme in ("http", "https"):
        try:
            with urllib.request.build_opener(*handlers).open(
                f"{scheme}://127.0.0.1:{where}", timeout=_WAIT_S
            ) as answer:
                return None if answer.status == 200 else answer.status
        except urllib.error.HTTPError as error:
            return error
        except OSError as error:  # of HTTP, if neither answers
            found = found or error
    return None if wants_certificate(int(where.partition("/")[0]), trusting) else found


def wants_certificate(port: int, trusting: ssl.SSLContext) -> bool:
    """Nothing is sent, so that what the server says of the missing certificate is read before it hangs up."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=_WAIT_S) as plain,
            trusting.wrap_socket(plain) as wrapped,
        ):
            wrapped.recv(1)
    except ssl.SSLError as error:
        return error.reason in ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE")
    except OSError:
        pass
    return False


if why := problem(sys.argv[1]):
    sys.exit(f"not healthy: {why}")
