"""What lies at the place of a key: a file's bytes, a variable's, or what a command prints; and the keys in it.

    data = from_file(Path("camera.secret"), "file:camera.secret")
    keys = keys_in(data, "file:camera.secret")

Rules:
- 64 hex digits, base64, or the 32 bytes as they are; several keys one a line, newest first; lines with # are remarks;
- a file that everybody on the machine may read holds no secret, and is refused;
- a command gets no input, answers in time, and never goes through a shell;
- a variable that held a key is kept from every child process of ours;
- no message repeats what was found in place of a key.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path

from edgekit_runtime.bundle.cipher import KEY_BYTES
from edgekit_runtime.bundle.secret_key import MAKE_ONE, check_key
from edgekit_runtime.errors import SecretError
from edgekit_runtime.strict_modes import first_unsafe

__all__ = ["from_command", "from_file", "from_variable", "keys_in", "words"]

_MOST_BYTES = 16 << 10


def keys_in(data: bytes, where: str) -> list[bytes]:
    """The keys in it, newest first. Raises SecretError (secret-format), which never repeats what it read."""
    if len(data) == KEY_BYTES and not all(byte < 128 for byte in data):
        return [data]
    if data.lstrip().startswith(b"-----BEGIN"):
        raise SecretError(
            "this is a PEM key, for signatures; encryption has a key of its own",
            where=where,
            do=MAKE_ONE,
            code="secret-format",
        )
    try:
        lines = data.decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise SecretError(
            f"{len(data):,} bytes that are no text; a key as it is has exactly {KEY_BYTES}",
            where=where,
            do=MAKE_ONE,
            code="secret-format",
        ) from None
    found = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    keys = [_key(line, number, where) for number, line in found if line and not line.startswith("#")]
    if not keys:
        raise SecretError("there is no key in it", where=where, do=MAKE_ONE, code="secret-format")
    return keys


def _key(text: str, number: int, where: str) -> bytes:
    import base64

    line = f"line {number}: " if number > 1 else ""
    if re.fullmatch(r"(?:[0-9a-fA-F]{2})+", text):
        key = bytes.fromhex(text)
    elif re.fullmatch(r"[A-Za-z0-9+/_-]+={0,2}", text) and len(text.rstrip("=")) % 4 != 1:
        bare = text.rstrip("=").replace("-", "+").replace("_", "/")
        key = base64.b64decode(bare + "=" * (-len(bare) % 4))
    else:
        raise SecretError(f"{line}neither hex digits nor base64", where=where, do=MAKE_ONE, code="secret-format")
    check_key(key, where, line)
    return key


def from_file(path: Path, where: str) -> bytes:
    """A regular file that not everybody may read, and no other user may replace (`strict_modes`). The descriptor that was judged is the one that is read."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise SecretError(
                    "not a regular file", where=where, do="Pass the path of the key's file", code="secret-unreadable"
                )
            if sys.platform != "win32" and found.st_mode & stat.S_IROTH:
                raise SecretError(
                    f"everybody on this machine may read it (mode {stat.S_IMODE(found.st_mode):04o})",
                    where=where,
                    do=f"Run: chmod 600 {path}",
                    code="secret-unreadable",
                )
            if unsafe := first_unsafe(path):
                raise SecretError(f"{unsafe.where}: {unsafe.what}", where=where, do=unsafe.do, code="secret-unreadable")
            with os.fdopen(os.dup(handle), "rb") as file:
                data = file.read(_MOST_BYTES + 1)
        finally:
            os.close(handle)
    except OSError as error:
        why = error.strerror or str(error)
        raise SecretError(
            f"the key cannot be read: {why}", where=where, do="Check the path", code="secret-unreadable"
        ) from error
    return _bounded(data, where)


def _bounded(data: bytes, where: str) -> bytes:
    if len(data) > _MOST_BYTES:
        raise SecretError(
            f"more than {_MOST_BYTES:,} bytes; that is no key", where=where, do=MAKE_ONE, code="secret-format"
        )
    return data


def from_variable(name: str) -> bytes:
    from edgekit_runtime.children import withhold

    value = os.environ.get(name)
    if not value:
        what = "the variable is empty" if value is not None else "there is no such variable"
        raise SecretError(
            what, where=f"env:{name}", do=f"Set {name} to the key, or pass file:PATH", code="secret-unreadable"
        )
    withhold(name)
    return value.encode("utf-8", "surrogateescape")


def from_command(command: str, where: str, limit_s: float) -> bytes:
    """What it prints. limit_s: how long it may take. Its standard error is ours: what it has to say reaches whoever reads that."""
    import subprocess
    import threading
    from time import monotonic

    end = monotonic() + limit_s
    said: list[bytes] = []
    try:
        child = subprocess.Popen(words(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    except OSError as error:
        raise SecretError(
            f"the command cannot be run: {error.strerror or error}",
            where=where,
            do="Check its name and path",
            code="secret-unreadable",
        ) from error
    stream = child.stdout
    assert stream is not None
    reading = threading.Thread(target=lambda: said.append(stream.read(_MOST_BYTES + 1)), daemon=True)
    reading.start()
    try:
        reading.join(limit_s)
        late = not said
        if said and len(said[0]) <= _MOST_BYTES:
            child.wait(max(0.0, end - monotonic()))
    except subprocess.TimeoutExpired:
        late = True
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    if late:
        do = f"Run it by itself: it must print the key within {limit_s:.0f} s, and asks nothing on its standard input"
        raise SecretError(
            f"the command did not end within {limit_s:.3g} s, and was ended",
            where=where,
            do=do,
            code="secret-unreadable",
        )
    stream.close()
    data = _bounded(said[0], where)
    if child.returncode != 0:
        raise SecretError(
            f"the command failed (exit code {child.returncode})",
            where=where,
            do="Run it by itself to see why",
            code="secret-unreadable",
        )
    return data


def words(command: str) -> list[str]:
    import shlex

    try:
        return shlex.split(command)
    except ValueError:
        return []
