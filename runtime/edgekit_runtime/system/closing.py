"""A base for what has `close`: the end of a `with` block calls it."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TypeVar

Closed_co = TypeVar("Closed_co", covariant=True)


class ClosedOnExit(AbstractContextManager[Closed_co, None]):
    @abstractmethod
    def close(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
