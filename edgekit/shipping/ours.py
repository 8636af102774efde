"""edgekit's own wheel, as it is installed here: what the board gets is what this machine runs.

Rules: from a source tree (an editable install) the wheel is built of it; from an ordinary install it is put together again
of the files that are installed, which needs no network and no tool. Either way the same input gives the same bytes.

    own_wheel(Path("usb/wheels"))        # usb/wheels/edgekit_deploy-0.1.0-py3-none-any.whl
"""

from __future__ import annotations

import base64
import errno
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from edgekit.shipping.errors import ShippingError
from edgekit.shipping.resolve import uv_binary

__all__ = ["DISTRIBUTION", "own_wheel"]

DISTRIBUTION = "edgekit-deploy"
_OF_THIS_INSTALL = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
_ROOM = 8 << 20  # for a wheel of one megabyte and what it is made of
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip can name


def own_wheel(folder: Path) -> Path:
    """Writes the wheel into `folder`, which is made. Raises ShippingError, and OSError where there is no room."""
    folder.mkdir(parents=True, exist_ok=True)
    tree = _source_tree()
    return _built(tree, folder) if tree else _put_together(folder)


def _source_tree() -> Path | None:
    """Where this edgekit is developed, None where it is installed for good."""
    told = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    value = json.loads(told) if told else {}
    if not value.get("dir_info", {}).get("editable"):
        return None
    return Path(url2pathname(urlsplit(value["url"]).path))


def _built(tree: Path, folder: Path) -> Path:
    with tempfile.TemporaryDirectory(prefix="edgekit-ship-", dir=folder) as made:
        wheel = _built_in(tree, Path(made))
        return wheel.replace(folder / wheel.name)


def _built_in(tree: Path, folder: Path) -> Path:
    here = importlib.util.find_spec("hatchling") is not None
    hatch = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    command = hatch if here else [str(uv_binary()), "build", "--quiet", "--wheel", "--out-dir", str(folder), str(tree)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=300, check=False)
    wheels = sorted(folder.glob("edgekit_deploy-*.whl"))
    if done.returncode != 0 or not wheels:
        if shutil.disk_usage(folder).free < _ROOM:  # of which the builder says nothing
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip() and not line.startswith("hint:")]
        why = " ".join(lines[-3:]) or "it said nothing"
        raise ShippingError(
            f"edgekit's own wheel cannot be built: {why}", where=str(tree), do="Run: pip install 'hatchling>=1.25'"
        )
    return wheels[-1]


def _put_together(folder: Path) -> Path:
    distribution = importlib.metadata.distribution(DISTRIBUTION)
    info = f"edgekit_deploy-{distribution.version}.dist-info"
    content = {}
    for file in distribution.files or ():
        name = file.as_posix()
        if (
            not name.startswith("..")
            and file.suffix != ".pyc"
            and name not in [f"{info}/{one}" for one in _OF_THIS_INSTALL]
        ):
            content[name] = Path(str(file.locate())).read_bytes()
    if not any(name.startswith("edgekit_runtime/") for name in content):
        raise ShippingError(
            "the installed edgekit does not list its files", do="Install edgekit-deploy again, from its wheel"
        )
    record = f"{info}/RECORD"
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in sorted(content.items())]
    content[record] = "".join(f"{line}\n" for line in [*lines, f"{record},,"]).encode()
    wheel = folder / f"edgekit_deploy-{distribution.version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(content, key=lambda name: (".dist-info/" in name, name)):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, content[name])
    return wheel


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
