"""Where the key of encrypted bundles comes from.

    secret = load_secret("file:/etc/edgekit/secret")         # or env:NAME, or cmd:"COMMAND ARGUMENTS"
    bundle = read_bundle("camera.ekb", secret=secret)

Rules:
- 64 hex digits, base64, or the 32 bytes as they are; several keys one a line, newest first; lines with # are remarks;
- a file that everybody on the machine may read holds no secret, and is refused;
- a command gets no input, answers within COMMAND_LIMIT_S, and never goes through a shell;
- a variable that held a key is kept from every child process of ours;
- a key where its place was asked for is refused, and no message repeats what was found in place of a key.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgekit_runtime.bundle.cipher import KEY_BYTES
from edgekit_runtime.bundle.secret_key import (
    MAKE_ONE,
    Secret,
    SecretError,
    SecretFormatError,
    SecretMissingError,
    SecretUnreadableError,
    SecretWrongError,
    check_key,
)

__all__ = [
    "COMMAND_LIMIT_S",
    "VARIABLE",
    "Given",
    "Secret",
    "SecretError",
    "SecretFormatError",
    "SecretMissingError",
    "SecretUnreadableError",
    "SecretWrongError",
    "Source",
    "check_given",
    "find_secret",
    "load_secret",
    "missing",
    "opened_with",
    "parse_source",
]

VARIABLE = "EDGEKIT_SECRET"
"""Names a source (`file:PATH`, `env:NAME`, `cmd:COMMAND`) for who names none; never the key itself."""
COMMAND_LIMIT_S = 30.0
"""A person may have to touch a token or type a PIN."""
_MOST_BYTES = 16 << 10

Given = Secret | str | os.PathLike[str] | bytes | Callable[[], Secret | None] | None
"""What a caller may pass as `secret`: a source, a path, the 32 bytes, or something to call when a bundle needs it."""


@dataclass(frozen=True)
class Source:
    """kind: where to look. name: the path, the variable, or the command."""

    kind: Literal["file", "env", "cmd"]
    name: str

    def __str__(self) -> str:
        """For messages: of a command only its program, because people put tokens into arguments."""
        return f"cmd:{_words(self.name)[0]}" if self.kind == "cmd" else f"{self.kind}:{self.name}"


def parse_source(text: str) -> Source:
    """`file:PATH`, `env:NAME`, `cmd:COMMAND`; what begins with none of them is the path of a file.

    Raises SecretFormatError, without repeating the text, where it is a key itself: the whole machine would see it.
    """
    if _looks_like_key(text):
        raise SecretFormatError(
            "this is a key itself, where its place is asked for; whoever lists processes or reads the shell's history has it",
            do="Make a new key, put it into a file of mode 0600, and pass file:PATH",
        )
    kind, colon, name = text.partition(":")
    if not colon or kind not in ("file", "env", "cmd"):
        kind, name = "file", text
    if not name.strip() or "\0" in name:
        raise SecretFormatError(f"{text!r:.60} names no place", do="Pass file:PATH, env:NAME or cmd:'COMMAND'")
    if kind == "env" and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise SecretFormatError(f"{name!r:.60} is no variable's name", do="Pass env:NAME")
    if kind == "cmd" and not _words(name):
        raise SecretFormatError(
            "the command cannot be read: a quotation mark is not closed", do="Quote it: cmd:'COMMAND'"
        )
    return Source(kind, name)  # type: ignore[arg-type]


def load_secret(source: str | Source, *, limit_s: float = COMMAND_LIMIT_S) -> Secret:
    """Fetch it. limit_s: how long a command may take.

    Raises SecretFormatError (no source, no key in it), SecretUnreadableError (nothing there, or not to be had).
    """
    source = parse_source(source) if isinstance(source, str) else source
    if source.kind == "file":
        data = _file(_expanded(source.name), str(source))
    elif source.kind == "env":
        data = _variable(source.name)
    else:
        data = _command(source, limit_s)
    return Secret(_keys_in(data, str(source)), str(source))


def find_secret(environ: Mapping[str, str] | None = None, *, system: Path = Path("/etc/edgekit")) -> Secret | None:
    """Of who was given none: what EDGEKIT_SECRET names, else the file `edgekit/secret` in the user's configuration folder,
    else /etc/edgekit/secret; None where there is none. Raises SecretError where there is one that cannot be used.
    """
    from edgekit_runtime.trust import config_dir

    variables = os.environ if environ is None else environ
    if named := variables.get(VARIABLE):
        return load_secret(named)
    own = config_dir(variables)
    for folder in filter(None, (own, system)):
        if os.path.lexists(folder / "secret"):
            return load_secret(Source("file", str(folder / "secret")))
    return None


def opened_with(given: Given, wanted: str, where: str) -> Secret | None:
    """The key with the id `wanted`, as a Secret of its own; None where the caller gave nothing at all.

    where: the bundle, for messages. Raises SecretError's kinds.
    """
    if given is None:
        return None
    check_given(given)
    if callable(given):
        given = given()
        if given is None:
            raise missing(wanted, where)
    if isinstance(given, os.PathLike):
        given = load_secret(Source("file", os.fspath(given)))
    elif isinstance(given, bytes):
        given = Secret([given])
    elif isinstance(given, str):
        given = load_secret(given)
    try:
        return given.only(wanted)
    except SecretWrongError as error:
        raise SecretWrongError(error.what, where=where, do=error.do) from None


def check_given(given: object) -> None:
    """Before anything is fetched. Raises ValueError for what is no such thing, SecretFormatError for a text that is no source."""
    if isinstance(given, str):
        parse_source(given)
    elif given is not None and not isinstance(given, (bytes, os.PathLike, Secret)) and not callable(given):
        raise ValueError(
            f"secret must be a source such as 'file:PATH', a path or 32 bytes, not a {type(given).__name__}"
        )


def missing(wanted: str, where: str) -> SecretMissingError:
    """What to raise where there is no key at all. wanted: the key's id."""
    return SecretMissingError(
        f"the bundle is encrypted (key {wanted:.12}), and there is no key for it here",
        where=where,
        do=f"Say where it is: --secret file:PATH, open_bundle(..., secret='file:PATH'), or {VARIABLE}=file:PATH",
    )


def _keys_in(data: bytes, where: str) -> list[bytes]:
    """Raises SecretFormatError, which never repeats what it read."""
    if len(data) == KEY_BYTES and not all(byte < 128 for byte in data):
        return [data]
    if data.lstrip().startswith(b"-----BEGIN"):
        raise SecretFormatError(
            "this is a PEM key, for signatures; encryption has a key of its own", where=where, do=MAKE_ONE
        )
    try:
        lines = data.decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise SecretFormatError(
            f"{len(data):,} bytes that are no text; a key as it is has exactly {KEY_BYTES}", where=where, do=MAKE_ONE
        ) from None
    found = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    keys = [_key(line, number, where) for number, line in found if line and not line.startswith("#")]
    if not keys:
        raise SecretFormatError("there is no key in it", where=where, do=MAKE_ONE)
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
        raise SecretFormatError(f"{line}neither hex digits nor base64", where=where, do=MAKE_ONE)
    check_key(key, where, line)
    return key


def _looks_like_key(text: str) -> bool:
    """64 hex digits, or base64 of 32 bytes with its mix of letters and digits, that is no file's name."""
    name = re.sub(r"^(?:file|env|cmd):", "", text.strip())
    base64 = re.fullmatch(r"[A-Za-z0-9+/_-]{43}=?", name) and all(
        re.search(kind, name) for kind in ("[a-z]", "[A-Z]", "[0-9]")
    )
    return bool(base64 or re.fullmatch(r"[0-9a-fA-F]{64}", name)) and not os.path.lexists(name)


def _expanded(name: str) -> Path:
    """With the home folder of `~/`, which a shell leaves alone behind `file:`."""
    try:
        return Path(name).expanduser()
    except RuntimeError:  # no such user: whoever opens it says so
        return Path(name)


def _file(path: Path, where: str) -> bytes:
    """A regular file that not everybody may read. The descriptor that was judged is the one that is read."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise SecretUnreadableError("not a regular file", where=where, do="Pass the path of the key's file")
            if sys.platform != "win32" and found.st_mode & stat.S_IROTH:
                raise SecretUnreadableError(
                    f"everybody on this machine may read it (mode {stat.S_IMODE(found.st_mode):04o})",
                    where=where,
                    do=f"Run: chmod 600 {path}",
                )
            with os.fdopen(os.dup(handle), "rb") as file:
                data = file.read(_MOST_BYTES + 1)
        finally:
            os.close(handle)
    except OSError as error:
        why = error.strerror or str(error)
        raise SecretUnreadableError(f"the key cannot be read: {why}", where=where, do="Check the path") from error
    return _bounded(data, where)


def _bounded(data: bytes, where: str) -> bytes:
    if len(data) > _MOST_BYTES:
        raise SecretFormatError(f"more than {_MOST_BYTES:,} bytes; that is no key", where=where, do=MAKE_ONE)
    return data


def _variable(name: str) -> bytes:
    from edgekit_runtime.children import withhold

    value = os.environ.get(name)
    if not value:
        what = "the variable is empty" if value is not None else "there is no such variable"
        raise SecretUnreadableError(what, where=f"env:{name}", do=f"Set {name} to the key, or pass file:PATH")
    withhold(name)
    return value.encode("utf-8", "surrogateescape")


def _words(command: str) -> list[str]:
    import shlex

    try:
        return shlex.split(command)
    except ValueError:
        return []


def _command(source: Source, limit_s: float) -> bytes:
    """What it prints. Its standard error is ours: what it has to say reaches whoever reads that."""
    import subprocess
    import threading
    from time import monotonic

    where, end = str(source), monotonic() + limit_s
    said: list[bytes] = []
    try:
        child = subprocess.Popen(_words(source.name), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    except OSError as error:
        raise SecretUnreadableError(
            f"the command cannot be run: {error.strerror or error}", where=where, do="Check its name and path"
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
        raise SecretUnreadableError(
            f"the command did not end within {limit_s:.3g} s, and was ended", where=where, do=do
        )
    stream.close()
    data = _bounded(said[0], where)
    if child.returncode != 0:
        raise SecretUnreadableError(
            f"the command failed (exit code {child.returncode})", where=where, do="Run it by itself to see why"
        )
    return data
