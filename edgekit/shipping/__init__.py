"""From a bundle to a board.
What it installs there, as files with hashes, and the way to put them there.

plan         the engine, its version, names, and the service
resolve      a board's machine, Python and glibc; exact versions for it, by uv
wheelhouse   the wheels themselves, and Debian's packages for what has none
package      a folder that installs all of it on a board; deb: the same as a Debian package
answers      what a board may say, which is a stranger's data
push         the same over ssh, with a self-test and a timing there; a second time only what changed
"""

from __future__ import annotations

from edgekit.shipping.answers import answered_by
from edgekit.shipping.deb import pack_deb
from edgekit.shipping.errors import (
    BoardRefusedError,
    DebError,
    NoWheelError,
    ShippingError,
    SshError,
    WheelDownloadError,
)
from edgekit.shipping.package import PackageRequest, PackageResult, pack
from edgekit.shipping.push import PushRequest, PushResult, bench_on, push
from edgekit.shipping.resolve import WheelTarget
from edgekit.shipping.ssh import Address, RemoteBoard, SshConnection, probe
from edgekit.shipping.wheelhouse import WheelFile, Wheelhouse, collect

__all__ = [
    "Address",
    "BoardRefusedError",
    "DebError",
    "NoWheelError",
    "PackageRequest",
    "PackageResult",
    "PushRequest",
    "PushResult",
    "RemoteBoard",
    "ShippingError",
    "SshConnection",
    "SshError",
    "WheelDownloadError",
    "WheelFile",
    "WheelTarget",
    "Wheelhouse",
    "answered_by",
    "bench_on",
    "collect",
    "pack",
    "pack_deb",
    "probe",
    "push",
]
