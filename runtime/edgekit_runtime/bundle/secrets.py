"""The key of encrypted bundles: its form, its source, and how it is kept.

    secret = load_secret("file:/etc/edgekit/secret")         # or env:NAME, or cmd:"COMMAND ARGUMENTS"
    bundle = read_bundle("camera.ekb", secret=secret)
    secret.id                       # 32 hex digits, which reveal nothing of the key
    secret.only(wanted).to_pipe()    # for the pipe to a child process

Rules:
- a key is 32 random bytes, raw, as 64 hex digits or as base64. A secret may hold several, one a line, newest first, so
  that a fleet can change keys; lines with # are comments;
- a key is never printed, pickled, or an argument or variable of a child: a child gets the one key it needs over a pipe,
  and writes no core dump from then on. A variable that held a key is withheld from children;
- a key that is not needed is not fetched;
- a file that every user may read is refused;
- a command gets no input, no shell, and COMMAND_LIMIT_S to answer;
- a key given where its source belongs is refused, and no message repeats it.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import stat
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Literal, NoReturn

from edgekit_runtime.bundle.cipher import KEY_BYTES, key_id
from edgekit_runtime.bundle.trust_finding import config_dir
from edgekit_runtime.system.children import leave_no_core, withhold
from edgekit_runtime.system.errors import SecretError
from edgekit_runtime.system.files import first_unsafe, open_regular

MOST_KEYS = 16
_LEAST_DIFFERENT = 8
"""Different bytes in a key: 32 random ones have fewer once in 10^28 keys."""
MAKE_ONE = "Make one: edgekit keys new NAME --secret, or openssl rand -hex 32"
_MOST_BYTES = 16 << 10
VARIABLE = "EDGEKIT_SECRET"
"""Names the default source (`file:PATH`, `env:NAME`, `cmd:COMMAND`), never the key itself."""
COMMAND_LIMIT_S = 30.0
"""A person may have to touch a token or type a PIN."""


class Secret:
    """One or more keys and their source.
    Neither `repr` nor any error reveals a key; its id names it."""

    __slots__ = ("_keys", "where")

    def __init__(self, keys: Sequence[bytes], where: str = "the caller") -> None:
        """keys: 32 bytes each; the first encrypts. Raises SecretError (secret-format)."""
        if not 1 <= len(keys) <= MOST_KEYS:
            raise _format_error(f"{len(keys)} keys; 1 to {MOST_KEYS} are taken", where)
        for key in keys:
            check_key(key, where)
        self.where = where
        self._keys = {key_id(key): key for key in keys}

    @property
    def id(self) -> str:
        """Id of the first key, the one that encrypts: 32 hex digits."""
        return next(iter(self._keys))

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._keys)

    def key(self, wanted: str | None = None) -> bytes:
        """The 32 bytes of the key with that id, or of the first. Raises SecretError (secret-wrong)."""
        wanted = wanted or self.id
        if wanted not in self._keys:
            has = ", ".join(f"{one:.12}" for one in self._keys)
            what = f"the bundle is encrypted with the key {wanted:.12}, and {self.where} has {has}"
            do = "Pass the key it was built with, or rebuild it with this one"
            raise SecretError(what, where=self.where, do=do, code="secret-wrong")
        return self._keys[wanted]

    def only(self, wanted: str) -> Secret:
        """A Secret of that key alone, for a child process. Raises SecretError (secret-wrong)."""
        return Secret([self.key(wanted)], self.where)

    def to_pipe(self) -> list[str]:
        """The keys in hex, only for the pipe to a child process."""
        return [key.hex() for key in self._keys.values()]

    @classmethod
    def from_pipe(cls, handed: Sequence[str] | None) -> Secret | None:
        """The other end of the pipe. From now on this process writes no core dump."""
        if not handed:
            return None
        leave_no_core()
        return cls([bytes.fromhex(one) for one in handed], "the parent process")

    def __repr__(self) -> str:
        return f"<Secret {', '.join(f'{one:.12}' for one in self._keys)} from {self.where}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled: it would be written somewhere")


def check_key(key: bytes, where: str, line: str = "") -> None:
    """Raises SecretError (secret-format) for another length, and for what is not random."""
    if len(key) != KEY_BYTES:
        raise _format_error(f"{line}{8 * len(key)} bits; a key has {8 * KEY_BYTES}", where)
    if len(set(key)) < _LEAST_DIFFERENT or all(32 <= byte < 127 for byte in key):
        raise _format_error(f"{line}these 32 bytes are not random: words can be guessed", where)


def _format_error(what: str, where: str = "", do: str = MAKE_ONE) -> SecretError:
    return SecretError(what, where=where, do=do, code="secret-format")


def _read_error(what: str, where: str, do: str) -> SecretError:
    return SecretError(what, where=where, do=do, code="secret-unreadable")


@dataclass(frozen=True)
class SecretSource:
    """kind: where to look. name: the path, the variable, or the command."""

    kind: Literal["file", "env", "cmd"]
    name: str

    def __str__(self) -> str:
        """For messages: of a command only its program, because arguments may hold tokens."""
        return f"cmd:{words(self.name)[0]}" if self.kind == "cmd" else f"{self.kind}:{self.name}"


def parse_source(text: str) -> SecretSource:
    """Parse `file:PATH`, `env:NAME` or `cmd:COMMAND`; without a prefix it is the path of a file.
    Raises SecretError (secret-format), without repeating the text, if it is a key itself: every user could see it."""
    if _looks_like_key(text):
        raise _format_error(
            "this is a key, not its source; anyone who can list processes or read the shell's history has seen it",
            do="Make a new key, put it into a file of mode 0600, and pass file:PATH",
        )
    kind, colon, name = text.partition(":")
    if not colon or kind not in ("file", "env", "cmd"):
        kind, name = "file", text
    if not name.strip() or "\0" in name:
        raise _format_error(f"{text!r:.60} names no source", do="Pass file:PATH, env:NAME or cmd:'COMMAND'")
    if kind == "env" and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise _format_error(f"{name!r:.60} is not a variable name", do="Pass env:NAME")
    if kind == "cmd" and not words(name):
        raise _format_error("the command cannot be read: a quotation mark is not closed", do="Quote it: cmd:'COMMAND'")
    return SecretSource(kind, name)  # type: ignore[arg-type]


def load_secret(source: str | SecretSource, *, limit_s: float = COMMAND_LIMIT_S) -> Secret:
    """Fetch the secret. limit_s: how long a command may take.
    Raises SecretError: secret-format (not a source, or not a key), secret-unreadable (missing or not readable)."""
    source = parse_source(source) if isinstance(source, str) else source
    if source.kind == "file":
        try:  # the home folder of `~/`, which a shell leaves alone behind `file:`
            path = Path(source.name).expanduser()
        except RuntimeError:  # no such user: opening it says so
            path = Path(source.name)
        data = from_file(path, str(source))
    elif source.kind == "env":
        data = from_variable(source.name)
    else:
        data = from_command(source.name, str(source), limit_s)
    return Secret(keys_in(data, str(source)), str(source))


def find_secret(environ: Mapping[str, str] | None = None, *, system: Path = Path("/etc/edgekit")) -> Secret | None:
    """Find this machine's secret, None without any.
    Raises SecretError for one that cannot be used.
    Looks at EDGEKIT_SECRET, then `edgekit/secret` in the user's configuration folder, then /etc/edgekit/secret."""
    variables = os.environ if environ is None else environ
    if named := variables.get(VARIABLE):
        return load_secret(named)
    own = config_dir(variables)
    for folder in filter(None, (own, system)):
        if os.path.lexists(folder / "secret"):
            return load_secret(SecretSource("file", str(folder / "secret")))
    return None


def opened_with(given: SecretArgument, wanted: str, where: str) -> Secret | None:
    """The key with the id `wanted`, as a Secret of its own; None if `given` is None.

    where: the bundle, for messages. Raises SecretError."""
    if given is None:
        return None
    check_argument(given)
    if callable(given):
        given = given()
        if given is None:
            raise missing(wanted, where)
    if isinstance(given, os.PathLike):
        given = load_secret(SecretSource("file", os.fspath(given)))
    elif isinstance(given, bytes):
        given = Secret([given])
    elif isinstance(given, str):
        given = load_secret(given)
    try:
        return given.only(wanted)
    except SecretError as error:
        if error.code != "secret-wrong":
            raise
        raise SecretError(error.what, where=where, do=error.do, code="secret-wrong") from None


def check_argument(given: object) -> None:
    """Check an argument before anything is fetched.
    Raises ValueError for another type, SecretError (secret-format) for a malformed source."""
    if isinstance(given, str):
        parse_source(given)
    elif given is not None and not isinstance(given, (bytes, os.PathLike, Secret)) and not callable(given):
        kind = type(given).__name__
        raise ValueError(f"secret must be a source such as 'file:PATH', a path or 32 bytes, not a {kind}")


def missing(wanted: str, where: str) -> SecretError:
    """The error if there is no key at all. wanted: the key's id."""
    return SecretError(
        f"the bundle is encrypted (key {wanted:.12}), and no key is configured here",
        where=where,
        do=f"Name its source: secret='file:PATH', or {VARIABLE}=file:PATH",
        do_cli=f"Name its source: --secret file:PATH, or {VARIABLE}=file:PATH",
        code="secret-missing",
    )


def keys_in(data: bytes, where: str) -> list[bytes]:
    """The keys in `data`, newest first.
    Raises SecretError (secret-format), which never repeats data."""
    if len(data) == KEY_BYTES and not all(byte < 128 for byte in data):
        return [data]
    if data.lstrip().startswith(b"-----BEGIN"):
        raise _format_error("this is a PEM key, for signatures; encryption uses another kind of key", where)
    try:
        lines = data.decode("ascii").splitlines()
    except UnicodeDecodeError:
        what = f"{len(data):,} bytes that are not text; a raw key has exactly {KEY_BYTES}"
        raise _format_error(what, where) from None
    keys = []
    for number, text in enumerate(map(str.strip, lines), 1):
        if not text or text.startswith("#"):
            continue
        line = f"line {number}: " if number > 1 else ""
        if re.fullmatch(r"(?:[0-9a-fA-F]{2})+", text):
            key = bytes.fromhex(text)
        elif re.fullmatch(r"[A-Za-z0-9+/_-]+={0,2}", text) and len(text.rstrip("=")) % 4 != 1:
            bare = text.rstrip("=").replace("-", "+").replace("_", "/")
            key = base64.b64decode(bare + "=" * (-len(bare) % 4))
        else:
            raise _format_error(f"{line}neither hex digits nor base64", where)
        check_key(key, where, line)
        keys.append(key)
    if not keys:
        raise _format_error("it contains no key", where)
    return keys


def from_file(path: Path, where: str, contents: str = "the key") -> bytes:
    """Read a regular file that other users can neither read nor replace (`first_unsafe`).
    The descriptor that was checked is the one that is read."""
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            if sys.platform != "win32" and mode & stat.S_IROTH:
                what = f"every user of this machine can read it (mode {stat.S_IMODE(mode):04o})"
                raise _read_error(what, where, do=f"Run: chmod 600 {path}")
            if unsafe := first_unsafe(path):
                raise _read_error(f"{unsafe.where}: {unsafe.what}", where, do=unsafe.do)
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        why = error.strerror or str(error)
        raise _read_error(f"{contents} cannot be read: {why}", where, do="Check the path") from error
    return _check_length(data, where)


def _check_length(data: bytes, where: str) -> bytes:
    if len(data) > _MOST_BYTES:
        raise _format_error(f"more than {_MOST_BYTES:,} bytes, too many for a key", where)
    return data


def from_variable(name: str, contents: str = "the key") -> bytes:
    value = os.environ.get(name)
    if not value:
        what = "the variable is empty" if value is not None else "the variable is not set"
        raise _read_error(what, f"env:{name}", do=f"Set {name} to {contents}, or pass file:PATH")
    withhold(name)
    return value.encode("utf-8", "surrogateescape")


def from_command(command: str, where: str, limit_s: float) -> bytes:
    """What the command prints. limit_s: how long it may take.
    Its standard error is this process's, so that its messages reach the user."""
    import subprocess

    end = monotonic() + limit_s
    said: list[bytes] = []
    try:
        child = subprocess.Popen(words(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    except OSError as error:
        what = f"the command cannot be run: {error.strerror or error}"
        raise _read_error(what, where, do="Check its name and path") from error
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
        do = f"Run it yourself: it must print the key within {limit_s:.0f} s, without reading standard input"
        raise _read_error(f"the command did not end within {limit_s:.3g} s, and was killed", where, do)
    stream.close()
    data = _check_length(said[0], where)
    if child.returncode != 0:
        what = f"the command failed (exit code {child.returncode})"
        raise _read_error(what, where, do="Run it yourself to see why")
    return data


def words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return []


SecretArgument = Secret | str | os.PathLike[str] | bytes | Callable[[], Secret | None] | None
"""A source, a path, the 32 bytes, or a function to call when a bundle needs the key."""


def _looks_like_key(text: str) -> bool:
    """Whether a text is 64 hex digits or base64 of 32 bytes, and names no file."""
    name = re.sub(r"^(?:file|env|cmd):", "", text.strip())
    mixed = all(re.search(kind, name) for kind in ("[a-z]", "[A-Z]", "[0-9]"))
    base64 = mixed and re.fullmatch(r"[A-Za-z0-9+/_-]{43}=?", name)
    return bool(base64 or re.fullmatch(r"[0-9a-fA-F]{64}", name)) and not os.path.lexists(name)
