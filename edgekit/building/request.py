"""What a person asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["BuildRequest"]


@dataclass(frozen=True)
class BuildRequest:
    """max_drop: points of the metric, 0.05 for 5 %, None for no limit. budget_ms: None for no limit.

    calibration, evaluation: a path or `module:function`. recipes: empty for all. contract: None to look beside the model.
    name: of the bundles, None for the model file's. sign: PEM of an Ed25519 private key.
    """

    model: Path
    profiles: tuple[str, ...]
    output: Path
    calibration: str | None = None
    evaluation: str | None = None
    max_drop: float | None = None
    budget_ms: float | None = None
    recipes: tuple[str, ...] = ()
    contract: Path | None = None
    name: str | None = None
    version: str = "1"
    sign: Path | None = None

    @property
    def bundle_name(self) -> str:
        return self.name or self.model.stem
