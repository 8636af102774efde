"""What a fleet server refuses or cannot do."""

from __future__ import annotations

from edgekit_runtime.system.errors import EdgekitError


class FleetError(EdgekitError):
    """The fleet server cannot start: a port in use, a store or broker that makes no sense."""

    code = "fleet"


class StoreError(FleetError):
    """The store cannot be opened, read or written."""

    code = "fleet-store"
