"""Will it load on that board, and answer there as it did here: known before owning one.

    checked = check(Request(Path("net.ekb"), load("raspberry-pi-4")))
    checked.ok, [(finding.code, finding.what) for finding in checked.findings]

Rules: first what can be told from the files alone, in under a second and without an engine; then the golden examples
are replayed on that very version of the runtime, beside this environment or under emulation. Every finding has a code
of the catalogue, and `explain` knows each of them.
"""

from __future__ import annotations

from edgekit.checking.catalogue import Entry, Finding, Level, entries, entry, explain, matching
from edgekit.checking.checked import Checked, Request, check
from edgekit.checking.replay import Replayed

__all__ = [
    "Checked",
    "Entry",
    "Finding",
    "Level",
    "Replayed",
    "Request",
    "check",
    "entries",
    "entry",
    "explain",
    "matching",
]
