"""Inputs that the next build should see, encrypted for the builder's key.

    keeper = SampleKeeper("builder.pub.pem", 4.0, 5, about)
    keeper.offer(lambda: {"image": pixels}, outputs, "low-margin")      # from any thread; most are left out
    for part in keeper.take(0, body): spool.append(part)                # in the reporter's thread

    unseal(private, sealed)                     # what `seal` was given, with the builder's key alone

Rules:
- nothing is kept without the key of a person who asked for it, and nothing is ever in clear outside this process;
- a day's number and the bytes that wait are bounded, also over restarts; at most MOST_WAITING wait in memory;
- an input that comes again on the same day is not kept again;
- a sample is an .npz with the inputs, their answer, and why it was chosen; no file name, and no label of the owner;
- sealing is X25519 with a key of its own for each sample, HKDF-SHA256, and AES-256-GCM (as RFC 9180 does it); the board
  cannot open what it sealed;
- parts are events of the spool's sequence, so they have the windows' receipts.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.bundle.cipher import KEY_BYTES, decrypt, encrypt
from edgekit_runtime.system.errors import TelemetryError
from edgekit_runtime.system.strict_json import compact_json, load_json
from edgekit_runtime.telemetry.window import About

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

SAMPLE = "sample"
MAGIC, _BOUND = b"eks1", b"edgekit sample v1\n"
PART_BYTES, MOST_PARTS, MOST_WAITING = 6000, 1000, 4
WHY = ("low-margin", "shadow", "host", "drift")
_SALT_BYTES = 32

_Arrays = Mapping[str, NDArray[Any]]
_Offered = tuple[Callable[[], _Arrays], _Arrays, str, int]


class SampleKeeper:
    """Thread-safe.

    key: the builder's public key, PEM. most_mb: that may wait on the board. most_a_day: samples.
    drifting: the reporter says so.
    Raises TelemetryError for a key that is none.
    """

    def __init__(self, key: str | os.PathLike[str], most_mb: float, most_a_day: int, about: About) -> None:
        self._key, self._about = read_public(Path(key)), about
        self._most_bytes, self._most_a_day = int(most_mb * 1e6), most_a_day
        self._lock, self._waiting = threading.Lock(), deque[_Offered]()
        self._day, self._kept, self._seen, self.drifting = "", 0, set[bytes](), False

    def resume(self, note: str | None) -> None:
        """note: what `note` gave before a restart."""
        kept = load_json(note) if note else {}
        if isinstance(kept, dict) and type(kept.get("n")) is int and isinstance(kept.get("day"), str):
            self._day, self._kept = kept["day"], kept["n"]

    @property
    def note(self) -> str:
        return json.dumps({"day": self._day, "n": self._kept})

    @property
    def open(self) -> bool:
        """Whether one more may be kept now."""
        day = time.strftime("%Y-%m-%d", time.gmtime())
        with self._lock:
            if day != self._day:
                self._day, self._kept, self._seen = day, 0, set()
            return self._kept < self._most_a_day and len(self._waiting) < MOST_WAITING

    def offer(self, inputs: Callable[[], _Arrays], outputs: _Arrays, why: str) -> None:
        """Keep one, if there is room. inputs: gives the decoded ones, in the reporter's thread."""
        assert why in WHY
        if self.open:
            with self._lock:
                self._kept += 1
                self._waiting.append((inputs, outputs, why, int(time.time() * 1e3)))

    def take(self, waiting_bytes: int, body: Callable[[dict[str, object]], bytes]) -> Iterator[bytes]:
        """Bodies for the spool.

        waiting_bytes: of samples on the disk. body: makes an event of fields.
        """
        while True:
            with self._lock:
                if not self._waiting:
                    return
                inputs, outputs, why, at_ms = self._waiting.popleft()
            arrays = inputs()
            digest = hashlib.sha256(b"".join(value.tobytes() for value in arrays.values())).digest()
            with self._lock:
                if digest in self._seen:
                    self._kept -= 1
                    continue
                self._seen.add(digest)
            sealed = seal(self._key, self._file(arrays, outputs, why, at_ms))
            waiting_bytes += 4 * len(sealed) // 3
            parts = math.ceil(len(sealed) / PART_BYTES)
            if waiting_bytes > self._most_bytes or parts > MOST_PARTS:
                continue
            name = hashlib.sha256(sealed).hexdigest()[:16]
            for part in range(parts):
                data = base64.b64encode(sealed[part * PART_BYTES : (part + 1) * PART_BYTES]).decode()
                yield body({"id": name, "part": part, "parts": parts, "data": data})

    def _file(self, inputs: _Arrays, outputs: _Arrays, why: str, at_ms: int) -> bytes:
        said = {"why": why, "model": self._about.model, "version": self._about.version, "sha": self._about.sha[:12],
                "at_ms": at_ms, "outputs": list(outputs)}  # fmt: skip
        arrays = {f"in_{name}": value for name, value in inputs.items()}
        arrays |= {f"out_{place}": value for place, value in enumerate(outputs.values())}
        file = io.BytesIO()
        np.savez_compressed(file, about=np.frombuffer(compact_json(said), np.uint8), **arrays)  # type: ignore[arg-type]
        return file.getvalue()


def seal(key: X25519PublicKey, data: bytes) -> bytes:
    """Encrypted for the owner of the key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    own = X25519PrivateKey.generate()
    public = own.public_key().public_bytes_raw()
    salt, sealed = encrypt(_shared(own.exchange(key), public, key.public_bytes_raw()), data, _BOUND)
    return MAGIC + public + salt + sealed


def unseal(key: X25519PrivateKey, sealed: bytes) -> bytes:
    """Raises TelemetryError if it was sealed for another key, or changed."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    public, rest = sealed[len(MAGIC) : len(MAGIC) + KEY_BYTES], sealed[len(MAGIC) + KEY_BYTES :]
    try:
        if not sealed.startswith(MAGIC) or len(rest) < _SALT_BYTES:
            raise ValueError("it is not a sample")
        shared = key.exchange(X25519PublicKey.from_public_bytes(public))
        own = _shared(shared, public, key.public_key().public_bytes_raw())
        return decrypt(own, rest[:_SALT_BYTES], rest[_SALT_BYTES:], _BOUND)
    except (InvalidTag, ValueError) as error:
        what = "a sample cannot be opened: it is for another key, or damaged"
        raise TelemetryError(what, do="Pass the private key of the boards' public one with --key") from error


def _shared(secret: bytes, ephemeral: bytes, recipient: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(hashes.SHA256(), KEY_BYTES, ephemeral + recipient, b"edgekit sample key v1").derive(secret)


def read_public(path: Path) -> X25519PublicKey:
    """Raises TelemetryError."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key: object = None
    with contextlib.suppress(OSError, ValueError):
        key = load_pem_public_key(path.read_bytes())
    if not isinstance(key, X25519PublicKey):
        do = "Make one on the workstation, and bring the .pub.pem: edgekit fleet samples new-key builder.key"
        raise TelemetryError("not a public key for samples", where=str(path), do=do)
    return key
