"""`healthy.py PORT/PATH`: exit 0 if the server of this container answers there with 200, over HTTP or HTTPS.

Its certificate is not checked: the question never leaves the container.
"""

import sys
import urllib.request


def problem(where: str) -> object:
    """Why it is not healthy, None if it is."""
    import ssl

    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=ssl._create_unverified_context())
    found: OSError | None = None
    for scheme in ("http", "https"):
        try:
            with urllib.request.build_opener(*handlers).open(f"{scheme}://127.0.0.1:{where}", timeout=5) as answer:
                return None if answer.status == 200 else answer.status
        except OSError as error:  # of HTTP, if neither answers
            found = found or error
    return found


if why := problem(sys.argv[1]):
    sys.exit(f"not healthy: {why}")
