"""A bundle that was opened, and is not yet asked anything.

opened = Opened(bundle, prepared)
journey = Journey(opened, limits, meter)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgekit_runtime.bundle import Bundle
from edgekit_runtime.cache import namespace
from edgekit_runtime.engines import Engine, Setup, load_with
from edgekit_runtime.readiness import Prepared

if TYPE_CHECKING:
    from edgekit_runtime.install.watching import Held
    from edgekit_runtime.remote.hosts import Hosts

__all__ = ["Opened"]


@dataclass(frozen=True)
class Opened:
    """A bundle that was verified, and the engine that was chosen, proved and warmed up with it.

    held: of a bundle that was opened from an install root.
    """

    bundle: Bundle
    prepared: Prepared
    hosts: Hosts | None = None
    held: Held | None = None

    @property
    def namespace(self) -> bytes:
        """What decides an answer besides the input, for the keys of a cache."""
        return namespace(self.bundle.digest, self.prepared.entry.blob)

    @property
    def engine(self) -> str:
        """Name and version of the engine that answers."""
        info = self.prepared.engine.info
        return f"{info.name} {info.version}"

    @property
    def why_alternate(self) -> str:
        """Why answers may differ from those of other machines: an alternate artifact runs. Empty where the primary
        does.
        """
        primary, runs = self.bundle.artifact().recipe, self.prepared.entry.recipe
        if runs == primary:
            return ""
        return (
            f"{runs} on {self.engine} answers, not the primary {primary}: {self.prepared.verdict.why}; another machine "
            "may run another artifact"
        )

    def another(self) -> Engine:
        """One more engine that runs as the proved one does, for a session that keeps its state inside."""
        entry, info = self.prepared.entry, self.prepared.engine.info
        setup = Setup(threads=info.threads, kernels=info.kernels, delegate=info.delegate)
        return load_with(info.name, entry.format, self.bundle.blob(entry.blob), setup)

    def close(self) -> None:
        """Free what was opened and is not used."""
        if self.hosts is not None:
            self.hosts.close()
        self.prepared.close()
        if self.held is not None:
            self.held.close()
