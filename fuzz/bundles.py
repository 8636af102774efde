"""The bundle's reader, as a whole, signed, and its two parsers alone.

Structure: an input is a whole .ekb (or a manifest). It is taken apart, the manifest's tree, the signature block or a
blob is changed, and lengths and SHA-256 are made to fit again, so that the search gets past the digests; a quarter
keeps them wrong.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from hostile import forge

from edgekit_runtime.bundle.checks import parse_manifest
from edgekit_runtime.bundle.header import read_header
from edgekit_runtime.bundle.manifest import Manifest
from edgekit_runtime.bundle.reader import Bundle, read_bundle
from edgekit_runtime.system.errors import BundleError, SignatureError
from edgekit_runtime.system.strict_json import canonical_bytes, to_json
from fuzz.octets import altered, scratch
from fuzz.target import Target
from fuzz.trees import changed, spelt


@cache
def _place() -> Path:
    return Path(tempfile.mkdtemp(prefix="edgekit-fuzz-", dir=scratch()))


def _written(data: bytes) -> Path:
    path = _place() / f"{os.getpid()}.ekb"
    path.write_bytes(data)
    return path


def _use(found: Bundle) -> None:
    """What every owner of a bundle does with it: none of it may fail in another way than reading does."""
    made = found.manifest
    for golden in made.golden:
        found.golden_items(golden)
    for entry in made.artifacts:
        assert found.artifact(entry.recipe).blob == entry.blob or len(made.artifacts) > 1
        assert len(found.blob(entry.blob)) == entry.bytes
    _writable(made)


def _writable(made: Manifest) -> None:
    """What was read can be written, and is the same when it is read again."""
    again = parse_manifest(canonical_bytes(made.as_json()), "again")
    assert again == made
    assert to_json(again) == made.as_json()


def _read_bundle(data: bytes) -> None:
    _use(read_bundle(_written(data)))


def _read_signed(data: bytes) -> None:
    """Nothing is trusted but what the key's owner signed."""
    found = read_bundle(_written(data), trust=_trusted())
    assert found.trusted
    assert found.digest in _known(), "a manifest that nobody signed was trusted"


def _read_header(data: bytes) -> None:
    found = read_header(data, "x")
    assert data.startswith(forge.MAGIC)
    assert found.blobs_at % 64 == 0
    assert found.blobs_at <= len(data)
    assert len(found.manifest_bytes) < found.blobs_at


def _read_manifest(data: bytes) -> None:
    _writable(parse_manifest(data, "x"))


@cache
def _trusted() -> Path:
    path = _place() / "trusted.pub.pem"
    path.write_bytes(forge.public_pem("ours"))
    return path


@cache
def _manifests() -> tuple[bytes, ...]:
    """The plain one, one with all that is optional, one of a stateful model."""
    plain = json.loads(forge.canonical(forge.manifest()))
    full = forge.manifest(
        expires="2099-01-31T00:00:00Z", not_before="2020-01-31T00:00:00Z", compatible=["x86-64", "host-cpu"],
        licence="MIT",
        promise={"p50_ms": 3.5, "p99_ms": 9.0, "peak_mb": 40.0}, requires=[],
    )  # fmt: skip
    full["artifacts"][0] |= {
        "ops": ["CONV_2D"],
        "settings": {"per_channel": True},
        "fidelity": {"drop": 0.1},
        "estimate": {},
    }
    full["target"]["budget_ms"] = 50.0
    return tuple(map(forge.canonical, (plain, full, _stateful())))


def _stateful() -> dict[str, Any]:
    """Two states of unlike forms go round; the golden example is a sequence of three frames."""
    value = forge.manifest()
    inside = {"name": "memory", "shape": [2], "dtype": "float32"}
    out = {"name": "memory_out", "shape": [2], "dtype": "float32"}
    value["contract"] |= {
        "task": "raw", "state": "explicit", "hop": 4,
        "inputs": [{"name": "x", "shape": [4], "dtype": "float32"}, inside],
        "outputs": [{"name": "y", "shape": [1], "dtype": "float32"}, out],
        "carried": [{"input": "memory", "output": "memory_out", "initial": [0.5]}],
    }  # fmt: skip
    for name in ("labels", "scores"):
        del value["contract"][name]
    tensors = {name: {"name": name, "tensor": name, "dtype": "float32"} for name in ("x", "y", "memory", "memory_out")}
    shapes = {"x": [1, 4], "y": [1, 1], "memory": [1, 2], "memory_out": [1, 2]}
    value["artifacts"][0] |= {
        "inputs": [tensors[name] | {"shape": shapes[name]} for name in ("x", "memory")],
        "outputs": [tensors[name] | {"shape": shapes[name]} for name in ("y", "memory_out")],
    }
    frames, answers = bytes(3 * 4 * 4), bytes(3 * 4)
    answer = value["golden"][0]["answers"][0] | {"outputs": {"y": forge.sha256(answers)}}
    value["golden"] = [
        {"inputs": {"x": forge.sha256(frames)}, "dtypes": {"x": "float32"}, "answers": [answer], "steps": 3}
    ]
    value["blobs"] = forge.entries(_STATEFUL_BLOBS)
    return value | {"contract_digest": forge.sha256(canonical_bytes(value["contract"]))}


_STATEFUL_BLOBS = [forge.model(), bytes(48), bytes(12)]


@cache
def _bundles() -> tuple[bytes, ...]:
    plain, full, stateful = _manifests()
    return (
        forge.pack(plain, forge.blobs()),
        forge.pack(full, forge.blobs(), sign=["ours"]),
        forge.pack(stateful, _STATEFUL_BLOBS, sign=["theirs", "ours"]),
    )


@cache
def _known() -> frozenset[str]:
    return frozenset(forge.sha256(body) for body in _manifests())


def _apart(data: bytes) -> tuple[bytes, bytes, bytes] | None:
    """(manifest, block, the rest from the first blob on) as far as the lengths can be believed."""
    if not data.startswith(forge.MAGIC) or len(data) < 16:
        return None
    (length,) = struct.unpack_from("<I", data, 8)
    if 12 + length + 4 > len(data):
        return None
    (size,) = struct.unpack_from("<I", data, 12 + length)
    end = 16 + length + size
    if end + 32 > len(data):
        return None
    return data[12 : 12 + length], data[16 + length : end], data[-(-(end + 32) // 64) * 64 :]


def _together(body: bytes, block: bytes, rest: bytes, random: Random) -> bytes:
    lengths = [len(body), len(block)]
    if random.random() < 0.05:
        lengths[random.randrange(2)] = random.choice((0, 1, 2**31, 2**32 - 1, len(body) + 1, 1 << 20, (1 << 20) + 1))
    head = forge.MAGIC + struct.pack("<I", lengths[0]) + body + struct.pack("<I", lengths[1]) + block
    return forge.seal(head) + rest


def _mutate_bundle(data: bytes, random: Random) -> bytes:
    parts = _apart(data)
    if parts is None or random.random() < 0.25:
        return altered(data, random)
    body, block, rest = parts
    act = random.random()
    if act < 0.6:
        body = _mutate_manifest(body, random)
    elif act < 0.75:
        block = _mutate_block(block, random)
    elif act < 0.9:
        body, rest = _other_blob(body, rest, random)
    else:
        rest = altered(rest, random)
    return _together(body, block, rest, random)


def _other_blob(body: bytes, rest: bytes, random: Random) -> tuple[bytes, bytes]:
    """Another blob, of another size now and then, named by its own SHA-256 wherever the old one was named."""
    try:
        listed = json.loads(body)["blobs"]
        entry = random.choice(listed)
        start, size = int(entry["offset"]), int(entry["size"])
        made = altered(rest[start : start + size], random)
        content = [rest[e["offset"] : e["offset"] + e["size"]] if e is not entry else made for e in listed]
        text = body.replace(str(entry["sha256"]).encode(), forge.sha256(made).encode())
        value = json.loads(text)
        value["blobs"] = forge.entries(content)
        return _quickly(value), b"".join(blob + bytes(-len(blob) % 64) for blob in content)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, AttributeError, RecursionError):
        return body, altered(rest, random)


def _digested(value: dict[str, Any]) -> dict[str, Any]:
    value["contract_digest"] = forge.sha256(_quickly(value["contract"]))
    return value


def _quickly(value: object) -> bytes:
    """The canonical form of nearly every value, in a tenth of the time. Raises ValueError for NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _mutate_manifest(body: bytes, random: Random) -> bytes:
    """Mostly in the canonical form, with a digest that fits: what is not, is refused before anything is looked at."""
    try:
        value = changed(json.loads(body), random)
    except (ValueError, RecursionError):
        return altered(body, random)
    if random.random() < 0.12:
        return spelt(value, random)
    try:
        return _quickly(_digested(value) if random.random() < 0.95 else value)
    except (ValueError, RecursionError, KeyError, TypeError):
        return spelt(value, random)


def _mutate_block(block: bytes, random: Random) -> bytes:
    try:
        value = json.loads(block)
        if random.random() < 0.3 and isinstance(value, list):
            value.append(
                random.choice(
                    (
                        forge.signature("theirs", b"{}"),
                        {
                            "keyid": forge.sha256(forge.public_raw("ours")),
                            "sig": base64.b64encode(random.randbytes(64)).decode(),
                        },
                        {"keyid": "", "sig": ""},
                    )
                )
            )
        return spelt(changed(value, random), random)
    except (ValueError, RecursionError, MemoryError):
        return altered(block, random)


def _heads() -> Sequence[bytes]:
    return [data[: read_header(data, "x").blobs_at] for data in _bundles()]


def bundle() -> Target:
    return Target("bundle", _read_bundle, (BundleError,), _bundles, _mutate_bundle)


def signed() -> Target:
    return Target("signed", _read_signed, (BundleError, SignatureError), lambda: _bundles()[1:], _mutate_bundle)


def header() -> Target:
    return Target("header", _read_header, (BundleError,), _heads, _mutate_bundle)


def manifest() -> Target:
    return Target("manifest", _read_manifest, (BundleError,), _manifests, _mutate_manifest)
