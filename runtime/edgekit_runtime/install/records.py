"""What is written down in an install root beside the journal: whom it trusts, what board it is for, what each generation is.

generation = parsed(Generation, file, text, "Install the bundle again")
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit_runtime.bundle.codec import read_json, to_json
from edgekit_runtime.errors import InstallError

__all__ = ["Generation", "Slot", "parsed"]


@dataclass(frozen=True)
class Slot:
    """trust: the keys (copies in the root) or the root.json (its path) that bundles must be signed by; empty: what this machine trusts.

    profile: what this board is; None: what is found of it at each install.
    """

    format: int = 1
    trust: tuple[str, ...] = ()
    profile: str | None = None


@dataclass(frozen=True)
class Generation:
    """What was installed as generation `number`. header, object, bundle, seq: as in `journal.Attempt`.

    unsigned: taken because of --allow-unsigned. told: who signed it, or why nobody vouched for it, in words; reports show
    `vouched`. at: RFC 3339, when it was staged.
    """

    number: int
    object: str
    header: str
    bundle: str
    name: str
    version: str
    recipe: str
    profile: str
    size: int
    source: str
    at: str
    told: str
    seq: int | None = None
    signed_by: tuple[str, ...] = ()
    unsigned: bool = False
    format: int = 1

    @property
    def vouched(self) -> str:
        """For every report, in the words of the day it was installed: whom this machine trusts now is asked at each opening."""
        if self.unsigned:
            return f"UNSIGNED: taken because of --allow-unsigned; what was found then: {self.told}"
        return f"{self.told}, trusted when it was installed"

    def facts(self) -> dict[str, Any]:
        """For events."""
        return {"generation": self.number, "bundle": self.bundle, "what": self.vouched}

    def as_json(self) -> dict[str, Any]:
        return {**to_json(self), "vouched": self.vouched}


def parsed(kind: Any, file: Path, text: str | None, do: str) -> Any:
    """One of them, out of the text of its file; None is a file that is missing. Raises InstallError (install-root) with `do`."""
    try:
        if text is None:
            raise ValueError("it is missing")
        return read_json(kind, text, file.name, format=1)
    except ValueError as error:
        raise InstallError(f"cannot be understood: {error}", where=str(file), do=do, code="install-root") from error
