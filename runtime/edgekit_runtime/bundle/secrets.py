"""Where the key of encrypted bundles comes from.

    secret = load_secret("file:/etc/edgekit/secret")         # or env:NAME, or cmd:"COMMAND ARGUMENTS"
    bundle = read_bundle("camera.ekb", secret=secret)

Rules, beside those of `secret_places`: a key where its place was asked for is refused, and no message repeats it; what is not
needed is not fetched; a command answers within COMMAND_LIMIT_S.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgekit_runtime.bundle.secret_key import Secret
from edgekit_runtime.bundle.secret_places import from_command, from_file, from_variable, keys_in, words
from edgekit_runtime.errors import SecretError
from edgekit_runtime.trust import config_dir

__all__ = [
    "COMMAND_LIMIT_S",
    "VARIABLE",
    "Given",
    "Secret",
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

Given = Secret | str | os.PathLike[str] | bytes | Callable[[], Secret | None] | None
"""What a caller may pass as `secret`: a source, a path, the 32 bytes, or something to call when a bundle needs it."""


@dataclass(frozen=True)
class Source:
    """kind: where to look. name: the path, the variable, or the command."""

    kind: Literal["file", "env", "cmd"]
    name: str

    def __str__(self) -> str:
        """For messages: of a command only its program, because people put tokens into arguments."""
        return f"cmd:{words(self.name)[0]}" if self.kind == "cmd" else f"{self.kind}:{self.name}"


def parse_source(text: str) -> Source:
    """`file:PATH`, `env:NAME`, `cmd:COMMAND`; what begins with none of them is the path of a file.

    Raises SecretError (secret-format), without repeating the text, where it is a key itself: the whole machine would see it.
    """
    if _looks_like_key(text):
        raise SecretError(
            "this is a key itself, where its place is asked for; whoever lists processes or reads the shell's history has it",
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
    return Source(kind, name)  # type: ignore[arg-type]


def load_secret(source: str | Source, *, limit_s: float = COMMAND_LIMIT_S) -> Secret:
    """Fetch it. limit_s: how long a command may take.

    Raises SecretError (secret-format) (no source, no key in it), SecretError (secret-unreadable) (nothing there, or not to be had).
    """
    source = parse_source(source) if isinstance(source, str) else source
    if source.kind == "file":
        data = from_file(_expanded(source.name), str(source))
    elif source.kind == "env":
        data = from_variable(source.name)
    else:
        data = from_command(source.name, str(source), limit_s)
    return Secret(keys_in(data, str(source)), str(source))


def find_secret(environ: Mapping[str, str] | None = None, *, system: Path = Path("/etc/edgekit")) -> Secret | None:
    """Of who was given none: what EDGEKIT_SECRET names, else the file `edgekit/secret` in the user's configuration folder,
    else /etc/edgekit/secret; None where there is none. Raises SecretError where there is one that cannot be used.
    """
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
    except SecretError as error:
        if error.code != "secret-wrong":
            raise
        raise SecretError(error.what, where=where, do=error.do, code="secret-wrong") from None


def check_given(given: object) -> None:
    """Before anything is fetched. Raises ValueError for what is no such thing, SecretError (secret-format) for a text that is no source."""
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
