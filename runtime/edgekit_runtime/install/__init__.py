"""Install bundles on a board: fetch, verify, try out, switch, and roll back.

    install("https://models.example/net.ekb", "/var/lib/edgekit/camera", InstallOptions(profile="raspberry-pi-4"))
    with open_bundle("/var/lib/edgekit/camera") as model: ...

The durable steps of an install. A power cut between any two leaves `current` as it was or as it will be. "Durably":
write NAME.new, fsync, rename, fsync the folder.

 1. the folders of a new root and those above it, each flushed; then slot.json, durably: it makes the folder a root
 2. journal.json: fetching, durably
 3. incoming/KEY.json: the server's validator and the bytes flushed so far, durably
 4. incoming/KEY.part grows; the journal once its head was accepted; fsync every ten seconds, each followed by 3, and at
    the end with its folder
 5. journal.json: fetched, durably
 6. KEY.part -> objects/SHA256.ekb: chmod, rename, fsync both folders; trust/NAME and slot.json, durably
 7. journal.json: verified, with the number of the new generation, durably
 8. generations/N.new/{generation.json, bundle.ekb}, durably; rename to N, fsync the folder
 9. journal.json: staged; then selftest, with the rollout_seq burned; each durably, before the child starts
10. journal.json: trial, durably, before that child starts
11. current.new, a link to generations/N: what needs room is done before the journal changes
12. journal.json: N is current, the generation before it previous, durably: from here on N is active
13. current.new -> current: rename, fsync the root. Readers switch here
14. what nothing refers to is removed: unlink, fsync the folder; repeated after a cut

With `trial="app"`, 11 to 13 follow 10: the journal has N on trial, and `current` leads to it. Each start of the
application is a file in generations/N/starts, durable before the bundle is opened. The verdict is 12 again, or the
journal without the trial and then `current` back to the previous generation.

After a cut the journal is right and `current` at most one step behind: every command first follows the journal
(`stage_and_collect`). A name found after a kill may not be flushed: its user flushes the folder first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit_runtime.system.lazy import lazily

if TYPE_CHECKING:
    from edgekit_runtime.install.fetch import FetchOptions
    from edgekit_runtime.install.http import DownloadLimits
    from edgekit_runtime.install.installing import InstallOptions, InstallResult, install
    from edgekit_runtime.install.layout import Generation, Root, is_root
    from edgekit_runtime.install.prove import Proof, TrialOptions
    from edgekit_runtime.install.rules import BoardIdentity
    from edgekit_runtime.install.stage_and_collect import CollectionResult, collect
    from edgekit_runtime.install.status_and_rollback import Status, activate, rollback, status

__all__ = [
    "BoardIdentity",
    "CollectionResult",
    "DownloadLimits",
    "FetchOptions",
    "Generation",
    "InstallOptions",
    "InstallResult",
    "Proof",
    "Root",
    "Status",
    "TrialOptions",
    "activate",
    "collect",
    "install",
    "is_root",
    "rollback",
    "status",
]

__getattr__ = lazily(
    __name__,
    {
        "edgekit_runtime.install.installing": ("InstallOptions", "InstallResult", "install"),
        "edgekit_runtime.install.stage_and_collect": ("CollectionResult", "collect"),
        "edgekit_runtime.install.fetch": ("FetchOptions",),
        "edgekit_runtime.install.http": ("DownloadLimits",),
        "edgekit_runtime.install.layout": ("Generation", "Root", "is_root"),
        "edgekit_runtime.install.status_and_rollback": ("Status", "activate", "rollback", "status"),
        "edgekit_runtime.install.prove": ("Proof", "TrialOptions"),
        "edgekit_runtime.install.rules": ("BoardIdentity",),
    },
)
