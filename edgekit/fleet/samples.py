"""Samples that boards sent, opened with the builder's key, for `build --calibration`.

    pull(store, private_key, Path("field"))         # field/net/samples.npz and samples.json

Rules:
- the store has them as they came, encrypted; only who has the private key reads them, here;
- what is opened is a stranger's data: a bounded .npz without pickles, with names that are checked. The rest is counted;
- a folder a model; a sample that is there already is not written again.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgekit.fleet.store.fleet_errors import FleetError
from edgekit_runtime.contract.array_file import read_arrays
from edgekit_runtime.system.errors import InputError, TelemetryError
from edgekit_runtime.system.files import write_durably
from edgekit_runtime.system.strict_json import json_text, load_json
from edgekit_runtime.telemetry.samples import WHY, unseal

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from edgekit.fleet.store.sql import SqlStore

MOST_BYTES = 64 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_IN, _OUT = "in_", "out_"


@dataclass
class PullResult:
    """folders: model -> samples in its folder. new: written now. left_out: why -> samples."""

    folders: dict[str, int] = field(default_factory=dict)
    new: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


@dataclass
class _Folder:
    """samples: for samples.json, in the order of the arrays' rows."""

    path: Path
    samples: list[dict[str, Any]] = field(default_factory=list)
    rows: dict[str, list[NDArray[Any]]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> _Folder:
        """Raises FleetError for one that is damaged."""
        made = cls(path)
        try:
            if (path / "samples.json").is_file():
                made.samples = list(load_json((path / "samples.json").read_bytes())["samples"])
                made.rows = {name: list(rows) for name, rows in read_arrays(path / "samples.npz", 8 << 30).items()}
        except (InputError, ValueError, KeyError, TypeError, OSError) as error:
            do = "Pull into another folder"
            raise FleetError("the samples in it cannot be read", where=str(path), do=do) from error
        return made

    def add(self, said: dict[str, Any], inputs: dict[str, NDArray[Any]]) -> bool:
        """False if its inputs have another form than those that are there."""
        forms = {name: (rows[0].shape, rows[0].dtype) for name, rows in self.rows.items()}
        if forms and forms != {name: (value.shape, value.dtype) for name, value in inputs.items()}:
            return False
        for name, value in inputs.items():
            self.rows.setdefault(name, []).append(value)
        self.samples.append(said)
        return True

    def write(self) -> None:
        file = io.BytesIO()
        np.savez_compressed(file, **{name: np.stack(rows) for name, rows in self.rows.items()})  # type: ignore[arg-type]
        self.path.mkdir(parents=True, exist_ok=True)
        write_durably(self.path / "samples.npz", file.getvalue(), 0o600)
        write_durably(self.path / "samples.json", json_text({"samples": self.samples}).encode(), 0o600)


def pull(store: SqlStore, key: X25519PrivateKey, folder: Path, device: str | None = None) -> PullResult:
    """Raises FleetError, StoreError; FleetError for a key that opens none."""
    done, folders = PullResult(), dict[str, _Folder]()
    tried = 0
    for board, sample, sealed in store.samples(device):
        tried += 1
        try:
            said, inputs = _read(unseal(key, sealed))
        except TelemetryError:
            done.left_out["for another key, or damaged"] += 1
            continue
        except (InputError, ValueError, KeyError, TypeError):
            done.left_out["malformed"] += 1
            continue
        model = said["model"]
        if model not in folders:
            folders[model] = _Folder.open(folder / model)
        mine = folders[model]
        if any(one["id"] == sample for one in mine.samples):
            continue
        if mine.add({"device": board, "id": sample, **said}, inputs):
            done.new += 1
        else:
            done.left_out["inputs of another form"] += 1
    if tried and tried == done.left_out["for another key, or damaged"]:
        do = "Pass the private key of the boards' public one"
        raise FleetError("this key opens none of them", where="--key", do=do)
    for model, mine in folders.items():
        done.folders[model] = len(mine.samples)
        mine.write()
    return done


def _read(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What is said of it, and its inputs by name.

    Raises InputError, ValueError, KeyError, TypeError.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "sample.npz"
        path.write_bytes(data)
        arrays = read_arrays(path, MOST_BYTES)
    about = load_json(arrays.pop("about").tobytes())
    said = {name: about[name] for name in ("model", "version", "sha", "why")}
    texts = all(isinstance(one, str) and len(one) <= 64 for one in said.values())
    if not texts or not _NAME.match(said["model"]) or said["why"] not in WHY or type(about["at_ms"]) is not int:
        raise ValueError("it says nothing that is known")
    inputs = {name.removeprefix(_IN): value for name, value in arrays.items() if name.startswith(_IN)}
    if not inputs or not all(name.isprintable() for name in inputs):
        raise ValueError("it has no inputs")
    first = arrays.get(f"{_OUT}0")
    best = int(np.argmax(first)) if first is not None and first.ndim == 1 and first.size else None
    return said | {"at_ms": about["at_ms"], "best": best}, inputs


def new_key(path: Path) -> Path:
    """Write a private key, 0600, and its public half beside it.

    Returns the latter's path. Raises FleetError.
    """
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    if path.exists():
        raise FleetError("a key is there already", where=str(path), do="Name another file")
    key, public = X25519PrivateKey.generate(), path.with_name(f"{path.stem}.pub.pem")
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    write_durably(path, private, 0o600)
    write_durably(public, key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo))
    return public


def read_key(path: Path) -> X25519PrivateKey:
    """Raises FleetError."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key: object = None
    with contextlib.suppress(OSError, ValueError, TypeError):
        key = load_pem_private_key(path.read_bytes(), None)
    if not isinstance(key, X25519PrivateKey):
        do = "Check the path; `edgekit fleet samples new-key` makes one"
        raise FleetError("not a private key for samples", where=str(path), do=do)
    return key
