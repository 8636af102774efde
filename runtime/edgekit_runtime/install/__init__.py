"""Installing bundles on a board: whole, checked, tried out, one switch, and a way back.

    install("https://models.example/net.ekb", "/var/lib/edgekit/camera", InstallOptions(profile="raspberry-pi-4"))
    with open_bundle("/var/lib/edgekit/camera") as model: ...

The durable steps of an install, in their order. Each is complete before the next begins, and a power cut between any
two leaves `current` where it was, or where it goes:

 1. the folders of a new root, then slot.json, which makes it one       (write .new, fsync, rename, fsync folder:
 "durably")
    those that it lies in were flushed before, in the folder of each
 2. journal.json: fetching                                              durably
 3. incoming/KEY.json: what the server calls this file                  durably
 4. incoming/KEY.part grows; journal.json once its head was accepted    durably; the part is fsynced every ten seconds,
 and
    when it is whole, then its folder; 3 again says how much of it was
 5. journal.json: fetched                                               durably
 6. KEY.part -> objects/SHA256.ekb                                      chmod, rename, fsync both folders
    trust/NAME, where --trust named a key, and slot.json          durably, both
 7. journal.json: verified, with the number of the new generation       durably
 8. generations/N.new/generation.json and bundle.ekb, then -> N         durably; link, fsync folder, rename, fsync
 folder
 9. journal.json: staged; then selftest, with the rollout_seq burned    durably, each before the child is started
10. journal.json: trial, before that child is started                   durably
11. current.new, a link to generations/N                                what needs room is done before the journal says
so
12. journal.json: N is current, and the one before it previous          durably: from here on N answers, whatever
happens
13. current.new -> current                                              rename, fsync root: the switch for who reads
14. what nothing names any more goes                                    unlink, fsync folder; found again after a cut

With `trial="app"` 11 to 13 come after 10: the journal says that N is on trial, and `current` leads to it; each start of
the application is a file in generations/N/starts, made durably before the bundle is opened. The verdict is 12 again, or
the
way back: the journal without the trial, then `current` to the generation before.

After a cut the journal is right and `current` may be one step behind it: `status`, `open_bundle`, `install` and every
other command put it where the journal says first (`settling`).

After a kill a name may be there that no folder was flushed for: its user flushes the folder first.
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
    from edgekit_runtime.install.settling import CollectionResult, collect
    from edgekit_runtime.install.standing import Status, activate, rollback, status

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
        "edgekit_runtime.install.settling": ("CollectionResult", "collect"),
        "edgekit_runtime.install.fetch": ("FetchOptions",),
        "edgekit_runtime.install.http": ("DownloadLimits",),
        "edgekit_runtime.install.layout": ("Generation", "Root", "is_root"),
        "edgekit_runtime.install.standing": ("Status", "activate", "rollback", "status"),
        "edgekit_runtime.install.prove": ("Proof", "TrialOptions"),
        "edgekit_runtime.install.rules": ("BoardIdentity",),
    },
)
