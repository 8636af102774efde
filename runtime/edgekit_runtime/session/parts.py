"""What sessions need of their model, and what a model without or with a state is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from edgekit_runtime.bundle import ArtifactEntry
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.engines import Engine
from edgekit_runtime.errors import SessionError
from edgekit_runtime.tensors import TensorSpec

__all__ = ["MOST_SESSIONS", "Ran", "SessionParts", "Tensors", "needs_session"]

MOST_SESSIONS = 16
"""Sessions that may be open at once where each has an engine of its own, unless the model says otherwise."""

Tensors = list[NDArray[Any]]


class Ran(Protocol):
    """One inference. result: the engine's outputs. queued_s, ran_s: seconds that it waited for the engine, and ran."""

    @property
    def result(self) -> Tensors: ...
    @property
    def queued_s(self) -> float: ...
    @property
    def ran_s(self) -> float: ...


@dataclass(frozen=True)
class SessionParts:
    """What sessions need of their model.

    ready: input tensors of the primary artifact, whose form callers may pass. engine: name and version.
    run: one inference on the model's own engine, in turn with whoever else asks; used where the state goes in and comes out.
    load: another engine of the same bytes, fresh; used where the state is inside. answered: told of every answer (total
    milliseconds, whether the budget was met, milliseconds by stage). failed: told of every frame without an answer.
    most: sessions with an engine of their own that may be open at once. budget_ms: of a frame for which its caller names none.
    """

    contract: Contract
    entry: ArtifactEntry
    ready: Sequence[TensorSpec]
    engine: str
    run: Callable[[Tensors], Ran]
    load: Callable[[], Engine]
    answered: Callable[[float, bool | None, Mapping[str, float]], None]
    failed: Callable[[BaseException], None]
    most: int = MOST_SESSIONS
    budget_ms: float | None = None


def needs_session(contract: Contract) -> SessionError:
    """What `predict` says of a model that keeps a state."""
    kept = "inside" if contract.state == "internal" else "that is carried from answer to answer"
    return SessionError(
        f"the model keeps a state {kept}, so one answer depends on those before it",
        do="Ask it in order: with model.session() as session: session.predict(frame)",
    )
