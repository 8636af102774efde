"""From a bundle to a board: what it installs there, as files with hashes, and the way to put them there.

target       a board's machine, Python and glibc, told to a resolver and to a matcher of wheel tags
resolve      exact versions for that board, by uv
wheelhouse   the wheels themselves, and Debian's packages for what has none
package      a folder that installs all of it on a board; deb: the same as a Debian package
"""

from __future__ import annotations

from edgekit.shipping.deb import pack_deb
from edgekit.shipping.errors import BoardRefusedError, DebError, DownloadError, NoWheelError, ShippingError, SshError
from edgekit.shipping.package import PackageRequest, Packed, pack
from edgekit.shipping.target import Target
from edgekit.shipping.wheelhouse import WheelFile, Wheelhouse, collect

__all__ = [
    "BoardRefusedError",
    "DebError",
    "DownloadError",
    "NoWheelError",
    "PackageRequest",
    "Packed",
    "ShippingError",
    "SshError",
    "Target",
    "WheelFile",
    "Wheelhouse",
    "collect",
    "pack",
    "pack_deb",
]
