"""What a key of encrypted bundles is, and what may be done with it.

    secret = Secret([os.urandom(32)])
    secret.id                       # 32 hex digits, which tell nothing of the key
    secret.only(wanted).handed()    # for the pipe to a child process of ours

Rules:
- a key is 32 random bytes. A secret may hold several, newest first, so that bundles of the last key still open while a fleet
  goes over to the next;
- a key is never printed, never pickled, never an argument or a variable of a process of ours: a child gets the one that its
  bundle needs, over a pipe, and writes no memory image to a disk from then on;
- nothing is asked before a bundle needs it: a key that is not needed is not fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgekit_runtime.bundle.cipher import KEY_BYTES, key_id
from edgekit_runtime.children import leave_no_core
from edgekit_runtime.errors import SecretError

if TYPE_CHECKING:
    from typing import NoReturn

__all__ = [
    "MAKE_ONE",
    "Secret",
    "check_key",
]

MOST_KEYS = 16
_LEAST_DIFFERENT = 8
"""Different bytes in a key: 32 random ones have fewer less often than once in 10^28 keys."""
MAKE_ONE = "Make one: edgekit keys secret NAME, or openssl rand -hex 32"


class Secret:
    """One key or several, and where they came from. Neither `repr` nor any error tells a key; its id names it."""

    __slots__ = ("_keys", "where")

    def __init__(self, keys: Sequence[bytes], where: str = "the caller") -> None:
        """keys: 32 bytes each; the first is the one to encrypt with. Raises SecretError (secret-format)."""
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

    def handed(self) -> list[str]:
        """For the pipe to a child process of ours, and for nothing else."""
        return [key.hex() for key in self._keys.values()]

    @classmethod
    def received(cls, handed: Sequence[str] | None) -> Secret | None:
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
    """Raises SecretError (secret-format) for another length, and for what nobody drew at random."""
    if len(key) != KEY_BYTES:
        raise SecretError(
            f"{line}{8 * len(key)} bits; a key has {8 * KEY_BYTES}", where=where, do=MAKE_ONE, code="secret-format"
        )
    if len(set(key)) < _LEAST_DIFFERENT or all(32 <= byte < 127 for byte in key):
        raise SecretError(
            f"{line}these 32 bytes are not random: words can be guessed", where=where, do=MAKE_ONE, code="secret-format"
        )
