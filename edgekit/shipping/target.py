"""What a wheel must fit: a board's machine, CPython and glibc, told to a resolver and to a matcher of wheel tags.

Rules: nothing here asks the machine that it runs on; a wheel's tag is compared with the board's glibc, newest first, as
pip does there; dependencies' markers are evaluated with the board's values.

    target = Target.of(load("raspberry-pi-4"))
    target.uv_platform, target.debian_arch           # "aarch64-manylinux_2_36", "arm64"
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgekit.shipping.errors import NoWheelError

if TYPE_CHECKING:
    from packaging.tags import Tag

    from edgekit_profiles import Profile

__all__ = ["Target"]

DEBIAN_ARCH = {"aarch64": "arm64", "armv7l": "armhf", "x86_64": "amd64"}
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}  # by glibc's minor version: PEP 600
_FIRST_GLIBC = {"x86_64": 5}  # PEP 600: of the other machines manylinux begins with 2.17
_UV_GLIBC = (17, 28, *range(31, 41))  # the platforms that uv knows, by glibc's minor version


@dataclass(frozen=True)
class Target:
    """profile: its name, for messages. arch: as `uname -m` prints it. python: "3.11". glibc: "2.36"."""

    profile: str
    arch: str
    python: str
    glibc: str

    @classmethod
    def of(cls, profile: Profile) -> Target:
        """Raises NoWheelError for a system without Python or glibc, such as a phone's."""
        if not (profile.os.python and profile.os.glibc):
            raise NoWheelError(
                f"{profile.os.name} has no glibc, which every wheel for Linux needs",
                where=profile.name,
                do="Ship the artifact inside an app of that system instead",
            )
        return cls(profile.name, profile.arch, ".".join(profile.os.python.split(".")[:2]), profile.os.glibc)

    @property
    def version(self) -> tuple[int, int]:
        major, minor = self.python.split(".")
        return int(major), int(minor)

    @property
    def debian_arch(self) -> str:
        """What Debian calls the machine; its own name where Debian has no such port."""
        return DEBIAN_ARCH.get(self.arch, self.arch)

    @property
    def uv_platform(self) -> str | None:
        """The name of this platform in uv, None where it has none: the newest glibc that is not newer than the board's."""
        if self.arch not in ("aarch64", "x86_64"):
            return None
        fitting = [minor for minor in _UV_GLIBC if minor <= self._glibc_minor]
        return f"{self.arch}-manylinux_2_{fitting[-1]}" if fitting else None

    def tags(self) -> list[Tag]:
        """The tags of wheels that install there, best first."""
        from packaging.tags import compatible_tags, cpython_tags

        platforms, interpreter = list(self._platforms()), f"cp{''.join(map(str, self.version))}"
        native = cpython_tags(self.version, abis=[interpreter], platforms=platforms)
        return [*native, *compatible_tags(self.version, interpreter, platforms)]

    def markers(self) -> dict[str, str]:
        """The environment that dependencies' markers are evaluated in."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.arch,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }

    def __str__(self) -> str:
        return f"{self.arch}, CPython {self.python}, glibc {self.glibc}"

    @property
    def _glibc_minor(self) -> int:
        return int(self.glibc.split(".")[1])

    def _platforms(self) -> Iterable[str]:
        for minor in range(self._glibc_minor, _FIRST_GLIBC.get(self.arch, 17) - 1, -1):
            yield f"manylinux_2_{minor}_{self.arch}"
            if minor in _LEGACY:
                yield f"{_LEGACY[minor]}_{self.arch}"
        yield f"linux_{self.arch}"
