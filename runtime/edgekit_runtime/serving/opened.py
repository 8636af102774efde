"""An opened bundle before its first request."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from edgekit_runtime.bundle.reader import Bundle
from edgekit_runtime.cache.identity import namespace
from edgekit_runtime.cache.stored_answers import KeptForm
from edgekit_runtime.engines.registry import Engine, EngineSetup, load_with
from edgekit_runtime.engines.variants import with_spare
from edgekit_runtime.loading.readiness import PreparedEngine
from edgekit_runtime.system.records import record, replace

if TYPE_CHECKING:
    from edgekit_runtime.remote.hosts import Hosts


@record(frozen=True)
class ShadowTask:
    """A bundle to answer some requests in silence.

    share: of the device's answers.
    module: run as its process.
    open: reads and checks it.
    """

    sha256: str
    share: float
    module: str
    open: Callable[[], Bundle]


class HeldGeneration(Protocol):
    """The generation of an install root that a model answers with; `install` makes it."""

    state: str

    @property
    def number(self) -> int: ...
    def describe(self) -> dict[str, Any]: ...
    def accompany(self, model: Any) -> None: ...
    def shadow(self) -> ShadowTask | None: ...
    def close(self) -> None: ...


@record(frozen=True)
class OpenedBundle:
    """A verified bundle and its engine, which was chosen, tested and warmed up.

    held: of a bundle that was opened from an install root.
    degraded: the degraded artifact, if it is open, too.
    """

    bundle: Bundle
    prepared: PreparedEngine
    hosts: Hosts | None = None
    held: HeldGeneration | None = None
    degraded: PreparedEngine | None = None

    @property
    def namespace(self) -> bytes:
        """The part of a cache key that does not depend on the input."""
        return namespace(self.bundle.digest, self.prepared.entry.blob)

    def kept_form(self, secret: bytes | None = None) -> KeptForm:
        """How this model's answers are kept outside this process.

        secret: what seals them; None for the key of an encrypted bundle.
        """
        if secret is None and self.bundle.secret is not None:
            secret = self.bundle.secret.key()
        return KeptForm(self.namespace, self.bundle.manifest.contract.outputs, secret)

    @property
    def engine(self) -> str:
        """Name and version of the engine that answers."""
        return _engine_label(self.prepared)

    @property
    def degraded_engine(self) -> str | None:
        """The same of the degraded artifact; None if it is not open."""
        return None if self.degraded is None else _engine_label(self.degraded)

    @property
    def why_alternate(self) -> str:
        """Why an alternate artifact runs, so that answers may differ between machines; else empty."""
        primary, runs = self.bundle.artifact().recipe, self.prepared.entry.recipe
        if runs == primary:
            return ""
        return (
            f"{runs} on {self.engine} answers, not the primary {primary}: {self.prepared.verdict.why}; another machine "
            "may run another artifact"
        )

    def another(self) -> Engine:
        """One more engine, opened as the tested one, for a session that keeps its state inside."""
        entry, info = self.prepared.entry, self.prepared.engine.info
        keep = self.bundle.secret is None
        setup = EngineSetup(threads=info.threads, kernels=info.kernels, delegate=info.delegate, keep=keep)
        load = partial(load_with, info.name, entry.format, self.bundle.blob(entry.blob))
        return with_spare(load(setup), lambda: load(replace(setup, kernels="default")))

    def close(self) -> None:
        """Free what was opened and is not used."""
        if self.hosts is not None:
            self.hosts.close()
        self.prepared.close()
        if self.degraded is not None:
            self.degraded.close()
        if self.held is not None:
            self.held.close()


def _engine_label(prepared: PreparedEngine) -> str:
    info = prepared.engine.info
    return f"{info.name} {info.version}"
