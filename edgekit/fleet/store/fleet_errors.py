"""What a fleet server refuses or cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgekit_runtime.system.errors import EdgekitError


class FleetError(EdgekitError):
    """The fleet server cannot start: a port in use, a store or broker that makes no sense."""

    code = "fleet"


class StoreError(FleetError):
    """The store cannot be opened, read or written."""

    code = "fleet-store"


@contextmanager
def store_errors(where: str, faults: tuple[type[Exception], ...]) -> Iterator[None]:
    """Raise database faults as StoreError."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, (OSError, *faults)):
            raise
        raise StoreError(
            f"the store failed ({str(error).strip()})", where=where,
            do="Check the path, its permissions and the disk",
        ) from error  # fmt: skip
