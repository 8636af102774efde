"""`[project.urls]` of what is built: who builds it knows where this tree is published, and forks differ.

    EDGEKIT_URL=https://example.com/edgekit python -m build      # `make dist` takes it from git's remote `origin`

Without it the package names no address. Hatchling calls this for each wheel, source distribution and editable install.
"""

from __future__ import annotations

import os
import re

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = {
    "Homepage": "",
    "Documentation": "/tree/main/docs",
    "Issues": "/issues",
    "Changelog": "/blob/main/CHANGELOG.md",
}


def urls(address: str) -> dict[str, str]:
    """Of a repository, by its address as git writes it: https://host/owner/name(.git) or git@host:owner/name(.git)."""
    if not address:
        return {}
    found = re.fullmatch(r"(?:https://|(?:ssh://)?git@)(?:[^@/\s]+@)?([\w.-]+)[:/]([\w./~-]+?)(?:\.git)?/?", address)
    if found is None:
        raise ValueError(f"EDGEKIT_URL is {address!r}: give https://HOST/OWNER/NAME, or nothing")
    return {name: f"https://{found[1]}/{found[2]}{path}" for name, path in PAGES.items()}


class Urls(MetadataHookInterface):
    """Fills in the one dynamic field."""

    def update(self, metadata: dict[str, object]) -> None:
        metadata["urls"] = urls(os.environ.get("EDGEKIT_URL", ""))
