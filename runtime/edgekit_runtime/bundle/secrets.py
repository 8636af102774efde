"""The key of encrypted bundles.
What it is, where it comes from, and what may be done with it.

    secret = load_secret("file:/etc/edgekit/secret")         # or env:NAME, or cmd:"COMMAND ARGUMENTS"
    bundle = read_bundle("camera.ekb", secret=secret)
    secret.id                       # 32 hex digits, which reveal nothing of the key
    secret.only(wanted).to_pipe()    # for the pipe to a child process of ours

Rules:
- a key is 32 random bytes: 64 hex digits, base64, or the bytes as they are. A secret may hold several, one a line,
  newest first, so that bundles of the last key still open while a fleet goes over to the next; lines with # are
  remarks;
- a key is never printed, pickled, or an argument or a variable of a process of ours: a child gets the one that its
  bundle needs, over a pipe, and writes no memory image to a disk from then on. A variable that held a key is withheld
  from children;
- a key that is not needed is not fetched;
- a file that every user may read holds no secret, and is refused;
- a command gets no input, answers within COMMAND_LIMIT_S, and never goes through a shell;
- a key where its place was asked for is refused, and no message repeats what was found in place of a key.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edgekit_runtime.bundle.cipher import KEY_BYTES, key_id
from edgekit_runtime.bundle.trust_finding import config_dir
from edgekit_runtime.system.children import leave_no_core
from edgekit_runtime.system.errors import SecretError
from edgekit_runtime.system.files import first_unsafe

if TYPE_CHECKING:
    from typing import NoReturn

MOST_KEYS = 16
_LEAST_DIFFERENT = 8
"""Different bytes in a key: 32 random ones have fewer less often than once in 10^28 keys."""
MAKE_ONE = "Make one: edgekit keys secret NAME, or openssl rand -hex 32"
_MOST_BYTES = 16 << 10
VARIABLE = "EDGEKIT_SECRET"
"""Names a source (`file:PATH`, `env:NAME`, `cmd:COMMAND`) for who names none; never the key itself."""
COMMAND_LIMIT_S = 30.0
"""A person may have to touch a token or type a PIN."""


class Secret:
    """One key or several, and where they came from.
    Neither `repr` nor any error reveals a key; its id names it."""

    __slots__ = ("_keys", "where")

    def __init__(self, keys: Sequence[bytes], where: str = "the caller") -> None:
        """keys: 32 bytes each; the first is the one to encrypt with.
        Raises SecretError (secret-format)."""
        if not 1 <= len(keys) <= MOST_KEYS:
            raise SecretError(
                f"{len(keys)} keys; 1 to {MOST_KEYS} are taken", where=where, do=MAKE_ONE, code="secret-format"
            )
        for key in keys:
            check_key(key, where)
        self.where = where
        self._keys = {key_id(key): key for key in keys}

    @property
    def id(self) -> str:
        """Of the first key, the one to encrypt with: 32 hex digits."""
        return next(iter(self._keys))

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._keys)

    def key(self, wanted: str | None = None) -> bytes:
        """The 32 bytes of the key with that id, or of the first. Raises SecretError (secret-wrong)."""
        wanted = wanted or self.id
        if wanted not in self._keys:
            has = ", ".join(f"{one:.12}" for one in self._keys)
            raise SecretError(
                f"the bundle is encrypted with the key {wanted:.12}, and {self.where} has {has}",
                where=self.where,
                do="Give the key that it was built with, or build it again with this one",
                code="secret-wrong",
            )
        return self._keys[wanted]

    def only(self, wanted: str) -> Secret:
        """With that one key alone: what a child process gets. Raises SecretError (secret-wrong)."""
        return Secret([self.key(wanted)], self.where)

    def to_pipe(self) -> list[str]:
        """For the pipe to a child process of ours, and for nothing else."""
        return [key.hex() for key in self._keys.values()]

    @classmethod
    def from_pipe(cls, handed: Sequence[str] | None) -> Secret | None:
        """The other end of the pipe. From here on this process leaves no memory image on a disk."""
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
        raise SecretError(
            f"{line}{8 * len(key)} bits; a key has {8 * KEY_BYTES}", where=where, do=MAKE_ONE, code="secret-format"
        )
    if len(set(key)) < _LEAST_DIFFERENT or all(32 <= byte < 127 for byte in key):
        raise SecretError(
            f"{line}these 32 bytes are not random: words can be guessed", where=where, do=MAKE_ONE, code="secret-format"
        )


@dataclass(frozen=True)
class SecretSource:
    """kind: where to look. name: the path, the variable, or the command."""

    kind: Literal["file", "env", "cmd"]
    name: str

    def __str__(self) -> str:
        """For messages: of a command only its program, because people put tokens into arguments."""
        return f"cmd:{words(self.name)[0]}" if self.kind == "cmd" else f"{self.kind}:{self.name}"


def parse_source(text: str) -> SecretSource:
    """`file:PATH`, `env:NAME`, `cmd:COMMAND`.
    What begins with none of them is the path of a file.

    Raises SecretError (secret-format), without repeating the text, where it is a key itself: the whole machine would
    see it.
    """
    if _looks_like_key(text):
        raise SecretError(
            "this is a key itself, where its place is asked for; anybody who lists processes or reads the shell's "
            "history has it",
            do="Make a new key, put it into a file of mode 0600, and pass file:PATH",
            code="secret-format",
        )
    kind, colon, name = text.partition(":")
    if not colon or kind not in ("file", "env", "cmd"):
        kind, name = "file", text
    if not name.strip() or "\0" in name:
        raise SecretError(
            f"{text!r:.60} names no place", do="Pass file:PATH, env:NAME or cmd:'COMMAND'", code="secret-format"
        )
    if kind == "env" and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise SecretError(f"{name!r:.60} is no variable's name", do="Pass env:NAME", code="secret-format")
    if kind == "cmd" and not words(name):
        raise SecretError(
            "the command cannot be read: a quotation mark is not closed",
            do="Quote it: cmd:'COMMAND'",
            code="secret-format",
        )
    return SecretSource(kind, name)  # type: ignore[arg-type]


def load_secret(source: str | SecretSource, *, limit_s: float = COMMAND_LIMIT_S) -> Secret:
    """Fetch it. limit_s: how long a command may take.

    Raises SecretError (secret-format) (no source, no key in it), SecretError (secret-unreadable) (nothing there, or not
    to be had).
    """
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
    """Find the secret of this machine: EDGEKIT_SECRET, else the user's, else /etc/edgekit's.
    The files are `edgekit/secret` in the user's configuration folder and /etc/edgekit/secret; None where there is none.
    Raises SecretError where there is one that cannot be used."""
    variables = os.environ if environ is None else environ
    if named := variables.get(VARIABLE):
        return load_secret(named)
    own = config_dir(variables)
    for folder in filter(None, (own, system)):
        if os.path.lexists(folder / "secret"):
            return load_secret(SecretSource("file", str(folder / "secret")))
    return None


def opened_with(given: SecretArgument, wanted: str, where: str) -> Secret | None:
    """The key with the id `wanted`, as a Secret of its own.
    None where the caller gave nothing at all.

    where: the bundle, for messages. Raises SecretError's kinds.
    """
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
    """Before anything is fetched.
    Raises ValueError for what is no such thing, SecretError (secret-format) for a text that is no source.
    """
    if isinstance(given, str):
        parse_source(given)
    elif given is not None and not isinstance(given, (bytes, os.PathLike, Secret)) and not callable(given):
        raise ValueError(
            f"secret must be a source such as 'file:PATH', a path or 32 bytes, not a {type(given).__name__}"
        )


def missing(wanted: str, where: str) -> SecretError:
    """What to raise where there is no key at all. wanted: the key's id."""
    return SecretError(
        f"the bundle is encrypted (key {wanted:.12}), and there is no key for it here",
        where=where,
        do=f"Say where it is: secret='file:PATH', or {VARIABLE}=file:PATH",
        do_cli=f"Say where it is: --secret file:PATH, or {VARIABLE}=file:PATH",
        code="secret-missing",
    )


def keys_in(data: bytes, where: str) -> list[bytes]:
    """The keys in it, newest first.
    Raises SecretError (secret-format), which never repeats what it read."""
    import base64

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
    keys = []
    for number, text in found:
        if not text or text.startswith("#"):
            continue
        line = f"line {number}: " if number > 1 else ""
        if re.fullmatch(r"(?:[0-9a-fA-F]{2})+", text):
            key = bytes.fromhex(text)
        elif re.fullmatch(r"[A-Za-z0-9+/_-]+={0,2}", text) and len(text.rstrip("=")) % 4 != 1:
            bare = text.rstrip("=").replace("-", "+").replace("_", "/")
            key = base64.b64decode(bare + "=" * (-len(bare) % 4))
        else:
            raise SecretError(f"{line}neither hex digits nor base64", where=where, do=MAKE_ONE, code="secret-format")
        check_key(key, where, line)
        keys.append(key)
    if not keys:
        raise SecretError("there is no key in it", where=where, do=MAKE_ONE, code="secret-format")
    return keys


def from_file(path: Path, where: str) -> bytes:
    """A regular file that other users can neither read nor replace (`strict_modes`).

    The descriptor that was judged is the one that is read.
    """
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
                    f"every user of this machine may read it (mode {stat.S_IMODE(found.st_mode):04o})",
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
    from edgekit_runtime.system.children import withhold

    value = os.environ.get(name)
    if not value:
        what = "the variable is empty" if value is not None else "there is no such variable"
        raise SecretError(
            what, where=f"env:{name}", do=f"Set {name} to the key, or pass file:PATH", code="secret-unreadable"
        )
    withhold(name)
    return value.encode("utf-8", "surrogateescape")


def from_command(command: str, where: str, limit_s: float) -> bytes:
    """What it prints. limit_s: how long it may take.
    Its standard error is ours: what it has to say reaches the one who reads that.
    """
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


SecretArgument = Secret | str | os.PathLike[str] | bytes | Callable[[], Secret | None] | None
"""What a caller may pass as `secret`: a source, a path, the 32 bytes, or something to call when a bundle needs it."""


def _looks_like_key(text: str) -> bool:
    """Whether a text that names no file has the form of a key.
    That is 64 hex digits, or base64 of 32 bytes with letters and digits."""
    name = re.sub(r"^(?:file|env|cmd):", "", text.strip())
    base64 = re.fullmatch(r"[A-Za-z0-9+/_-]{43}=?", name) and all(
        re.search(kind, name) for kind in ("[a-z]", "[A-Z]", "[0-9]")
    )
    return bool(base64 or re.fullmatch(r"[0-9a-fA-F]{64}", name)) and not os.path.lexists(name)
