"""The demo's commands, the very ones that a person types."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgekit.demo.assets import ASKED, MODEL

__all__ = ["Step", "steps"]


@dataclass(frozen=True)
class Step:
    """why: a sentence printed above the command. arguments: what follows `edgekit`."""

    why: str
    arguments: tuple[str, ...]


def steps(folder: Path) -> tuple[Step, ...]:
    """Build for two boards, look inside, ask about two photos, time it."""
    model, bundles = folder / MODEL, folder / "bundles"
    bundle = str(bundles / f"{model.stem}-raspberry-pi-4.ekb")
    return (
        Step(
            "Convert, calibrate, compare with the original, choose for each board, pack:",
            (
                "build", str(model), "--profile", "raspberry-pi-4", "--profile", "raspberry-pi-5",
                "--calibration", str(folder / "photos"), "--evaluation", str(folder / "labelled"),
                "--max-drop", "5%", "--budget-ms", "100", "-o", str(bundles),
            ),
        ),
        Step("Look inside the bundle:", ("inspect", bundle)),
        Step("Ask it, as an application on the board would:", ("run", bundle, *(str(folder / name) for name in ASKED))),
        Step("Time it on this machine:", ("bench", bundle)),
    )  # fmt: skip
