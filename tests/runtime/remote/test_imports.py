"""A device without hosts pays nothing for them."""

from __future__ import annotations

import subprocess
import sys


def test_the_room_brings_no_network_code_until_the_client_is_asked_for():
    script = (
        "import sys, edgekit_runtime, edgekit_runtime.remote, edgekit_runtime.remote.hosts\n"
        "print([m for m in ('http.client', 'ssl', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
