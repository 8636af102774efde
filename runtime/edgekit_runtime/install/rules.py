"""Whether a bundle may be installed on this board, by what its manifest says: a pure function.

    admit(manifest, digest, Board(profiles=("raspberry-pi-4",)), journal.burned, moment, where)

Rules:
- what a bundle is for is named by profiles; a board that knows none of its own is compared by its architecture alone;
- a rollout_seq never goes back, and one number stands for one bundle; once one was accepted, a bundle without any is refused;
- dates are judged by a moment that says which clock it rests on, and every refusal repeats it.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgekit_runtime.errors import InstallError

if TYPE_CHECKING:
    from edgekit_runtime.bundle import Manifest
    from edgekit_runtime.install.journal import Burned
    from edgekit_runtime.trust.clock import Moment

__all__ = ["Board", "admit", "check_board", "check_dates", "check_sequence"]

_SAME = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64", "armv8l": "armv7l", "armv6l": "armv7l"}


@dataclass(frozen=True)
class Board:
    """profiles: the names that this board answers to, none where it is not known. machine: as the system calls itself."""

    profiles: tuple[str, ...] = ()
    machine: str = ""

    @property
    def arch(self) -> str:
        name = (self.machine or platform.machine()).lower()
        return _SAME.get(name, name)


def admit(manifest: Manifest, digest: str, board: Board, burned: Burned | None, moment: Moment, where: str) -> None:
    """Raises InstallError (incompatible, downgrade, rollout-seq-reused, expired, not-yet-valid)."""
    check_board(manifest, board, where)
    check_dates(manifest, moment, where)
    check_sequence(manifest.rollout_seq, digest, burned, where)


def check_board(manifest: Manifest, board: Board, where: str) -> None:
    """Raises InstallError (incompatible)."""
    wanted = manifest.compatible
    if board.profiles:
        if not set(wanted) & set(board.profiles):
            raise InstallError(
                f"it is for {', '.join(wanted)}, and this board is {', '.join(board.profiles)}",
                where=where,
                do="Install one that was built for this board (edgekit build --profile or --compatible); if this is another board, "
                "name it: edgekit install --profile",
                code="incompatible",
            )
        return
    arch = manifest.target.arch
    if _SAME.get(arch.lower(), arch.lower()) != board.arch:
        raise InstallError(
            f"it is for {arch}, and this machine is {board.arch}",
            where=where,
            do="Build it for a profile of this architecture",
            code="incompatible",
        )


def check_dates(manifest: Manifest, moment: Moment, where: str) -> None:
    """Raises InstallError (expired, not-yet-valid)."""
    from edgekit_runtime.trust.clock import parse_time

    if manifest.expires is not None and moment.at_s >= parse_time(manifest.expires):
        raise InstallError(
            f"the bundle expired on {manifest.expires} {moment.told}",
            where=where,
            do="Install a newer one; or set the clock, if that is what is wrong",
            code="expired",
        )
    if manifest.not_before is not None and moment.at_s < parse_time(manifest.not_before):
        raise InstallError(
            f"the bundle is not to be used before {manifest.not_before} {moment.told}",
            where=where,
            do="Install it then; or set the clock, if that is what is wrong",
            code="not-yet-valid",
        )


def check_sequence(seq: int | None, digest: str, burned: Burned | None, where: str) -> None:
    """Raises InstallError (downgrade, rollout-seq-reused)."""
    if burned is None:
        return
    if seq is None:
        raise InstallError(
            f"it has no rollout_seq, and {burned.seq} was accepted here before",
            where=where,
            do=_higher(burned),
            code="downgrade",
        )
    if seq < burned.seq:
        raise InstallError(
            f"its rollout_seq {seq} is older than {burned.seq}, which was accepted here before",
            where=where,
            do=f"{_higher(burned)}; `edgekit rollback` goes back to what is still here",
            code="downgrade",
        )
    if seq == burned.seq and digest != burned.bundle:
        raise InstallError(
            f"its rollout_seq {seq} was accepted here before, of another bundle ({burned.bundle[:12]})",
            where=where,
            do=_higher(burned),
            code="rollout-seq-reused",
        )


def _higher(burned: Burned) -> str:
    return f"Install one that was built with --rollout-seq {burned.seq + 1} or higher"
