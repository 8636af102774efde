"""The hostile bundles, each a file that `make_corpus.py` writes: what it is, and how it must be refused.

Rules: a case that is not about the signature is signed by "ours", whom root.json trusts: the writer himself is hostile.
Groups have the numbers of docs/security.md. `reader` says whether `read_bundle` refuses it; what the reader need not
know (dates, boards, model files) is refused by `install`, which refuses all the others with the same code.
"""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hostile import bad_models, forge


@dataclass(frozen=True)
class Case:
    """code: of the error. says: a part of its message. root: the root.json in the corpus that is asked. fetched: the
    code where a file's size was already held against its head while it was fetched."""

    group: int
    name: str
    make: Callable[[], bytes]
    code: str
    says: str
    reader: bool = True
    root: str = "root.json"
    fetched: str = ""

    @property
    def file(self) -> str:
        return f"{self.group:02}-{self.name}.ekb"


def signed(value: dict[str, Any] | bytes | None = None, content: list[bytes] | None = None, **changes: Any) -> bytes:
    """By "ours"."""
    body = forge.manifest(**changes) if value is None else value
    return forge.pack(body, forge.blobs() if content is None else content, sign=["ours"])


def newer() -> bytes:
    """A good one, which a board would take that has the first."""
    return signed(version="2", rollout_seq=6)


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    value = forge.manifest()
    change(value)
    return signed(forge.digested(value))


def carrying(model: bytes, kind: str = "tflite") -> bytes:
    """The good bundle with another model file in it."""
    value = forge.manifest(model)
    value["artifacts"][0]["format"] = kind
    value["rollout_seq"] = 6
    return signed(value, forge.blobs(model))


def _flipped(data: bytes, at: int) -> bytes:
    made = bytearray(data)
    made[at] ^= 1
    return bytes(made)


def _spans(data: bytes) -> tuple[int, int, int]:
    """Where the manifest ends, where the signature block ends, where the first blob begins."""
    (length,) = struct.unpack_from("<I", data, 8)
    (size,) = struct.unpack_from("<I", data, 12 + length)
    end = 16 + length + size
    return 12 + length, end, -(-(end + 32) // 64) * 64


def _resealed(data: bytes, change: Callable[[bytes, bytes], tuple[bytes, bytes]]) -> bytes:
    """Another manifest, another signature block, and the digest that fits them."""
    body_end, end, blobs_at = _spans(data)
    body, block = change(data[12:body_end], data[body_end + 4 : end])
    return (
        forge.seal(forge.MAGIC + struct.pack("<I", len(body)) + body + struct.pack("<I", len(block)) + block)
        + data[blobs_at:]
    )


def _other_signature(block: bytes) -> bytes:
    entry = json.loads(block)[0]
    raw = bytearray(base64.b64decode(entry["sig"]))
    raw[20] ^= 1
    return forge.canonical([entry | {"sig": base64.b64encode(raw).decode()}])


def _damaged() -> Iterator[Case]:
    good = newer()
    body_end, _, blobs_at = _spans(good)
    integrity = "bundle-integrity"
    yield Case(1, "bit-in-manifest", lambda: _flipped(good, 200), integrity, "header was changed")
    yield Case(1, "bit-in-signatures", lambda: _flipped(good, body_end + 30), integrity, "header was changed")
    for number, entry in enumerate(forge.entries(forge.blobs())):
        at = blobs_at + entry["offset"] + entry["size"] // 2
        yield Case(
            1, f"bit-in-blob-{number}", lambda at=at: _flipped(good, at), integrity, r"blob [0-9a-f]{12} was changed"
        )
    other = _resealed(good, lambda body, block: (body.replace(b'"name":"tiny"', b'"name":"tinz"'), block))
    yield Case(1, "manifest-changed-digest-fitting", lambda: other, "bad-signature", "the signature by .* is invalid")
    yield Case(
        1,
        "signature-changed-digest-fitting",
        lambda: _resealed(good, lambda body, block: (body, _other_signature(block))),
        "bad-signature",
        "the signature by .* is invalid",
    )


def _signers() -> Iterator[Case]:
    def by(*names: str) -> Callable[[], bytes]:
        return lambda: forge.pack(forge.manifest(), forge.blobs(), sign=names)

    def twice() -> bytes:
        body = forge.canonical(forge.manifest())
        return forge.pack(body, forge.blobs(), block=forge.canonical([forge.signature("ours", body)] * 2))

    def of_another_kind() -> bytes:
        body = forge.canonical(forge.manifest())
        return forge.pack(body, forge.blobs(), block=forge.canonical([forge.signature("ours", body, forge.ROOT_TYPE)]))

    yield Case(2, "unknown-key", by("mallory"), "unknown-key", "any key trusted here")
    yield Case(2, "expired-key", by("late"), "key-expired", "was trusted until 2026-11-02")
    yield Case(2, "revoked-key", by("stolen"), "revoked-key", "which was revoked: stolen")
    yield Case(2, "expired-root", by("ours"), "root-expired", "expired on 2026-11-02", root="root-expired.json")
    yield Case(2, "one-of-two", by("ours"), "too-few-signatures", "2 of 2", root="root-2of2.json")
    yield Case(2, "one-of-two-twice", twice, "too-few-signatures", "2 of 2", root="root-2of2.json")
    yield Case(2, "signed-as-a-root", of_another_kind, "bad-signature", "the signature by .* is invalid")


def _signature_sizes() -> Iterator[Case]:
    def block(data: bytes) -> Callable[[], bytes]:
        return lambda: forge.pack(forge.manifest(), forge.blobs(), block=data)

    ours = forge.sha256(forge.public_raw("ours"))
    yield Case(3, "no-signatures", block(b"[]"), "unsigned", "not signed")
    yield Case(3, "empty-block", block(b""), "bundle-format", "signature block is malformed")
    yield Case(
        3, "zero-length-signature", block(forge.canonical([{"keyid": ours, "sig": ""}])), "bundle-format", "malformed"
    )
    yield Case(3, "block-of-64KiB-and-1", block(b"[" + b" " * 65535 + b"]"), "bundle-format", "claims 65,537 bytes")


def _lengths() -> Iterator[Case]:
    good = signed()

    def claiming(length: int) -> Callable[[], bytes]:
        return lambda: good[:8] + struct.pack("<I", length) + good[12:]

    yield Case(4, "manifest-of-0", lambda: signed(b""), "bundle-format", "not JSON")
    yield Case(4, "manifest-of-4GiB-less-1", claiming(2**32 - 1), "bundle-format", "claims 4,294,967,295 bytes")
    yield Case(4, "manifest-past-the-end", claiming(len(good)), "bundle-integrity", "the file ends inside the manifest")


def _spellings() -> Iterator[Case]:
    body = forge.canonical(forge.manifest())
    refused = "bundle-format"
    yield Case(5, "key-twice", lambda: signed(b'{"format":1,' + body[1:]), refused, "duplicate key")
    yield Case(5, "NaN", lambda: signed(body.replace(b'"threads":1', b'"threads":NaN')), refused, "NaN")
    yield Case(5, "nested-100000-deep", lambda: signed(b"[" * 100_000 + b"]" * 100_000), refused, "nested too deeply")
    yield Case(5, "not-UTF-8", lambda: signed(body.replace(b"tiny", b"ti\xffy")), refused, "not UTF-8")
    yield Case(5, "byte-order-mark", lambda: signed(b"\xef\xbb\xbf" + body), refused, "UTF-8 BOM")
    yield Case(5, "UTF-16", lambda: signed(body.decode().encode("utf-16")), refused, "not UTF-8")
    yield Case(5, "half-a-surrogate-pair", lambda: signed(body.replace(b'"tiny"', b'"\\ud800"')), refused, "escaped")
    yield Case(
        5,
        "white-space",
        lambda: signed(json.dumps(forge.manifest(), sort_keys=True, indent=1).encode()),
        refused,
        "not JSON|not canonical",
    )


_NAMES = {
    "parent": "../x", "absolute": "/etc/x", "climbing": "a/../../x", "NUL": "x\0y", "turned-writing": "x\u202egpj",
    "empty": "",
    "composed": "caf\u00e9", "decomposed": "cafe\u0301", "escape-sequence": "\x1b[2J", "dots": "..",
    "101-letters": "x" * 101,
}  # fmt: skip


def _names() -> Iterator[Case]:
    for what, name in _NAMES.items():
        yield Case(
            6,
            f"name-{what}",
            lambda name=name: signed(name=name),
            "bundle-format",
            "not a name of a bundle|invisible|escaped",
        )
    yield Case(6, "recipe-climbing", lambda: changed(_recipe("../../x")), "bundle-format", "not a name of a recipe")
    yield Case(
        6,
        "profile-absolute",
        lambda: changed(lambda m: m["target"].update(profile="/etc")),
        "bundle-format",
        "not a name of a profile",
    )


def _recipe(name: str) -> Callable[[dict[str, Any]], None]:
    def change(value: dict[str, Any]) -> None:
        value["artifacts"][0]["recipe"] = name
        for golden in value["golden"]:
            golden["answers"][0]["recipe"] = name

    return change


def _twins() -> Iterator[Case]:
    def second(recipe: str, role: str = "alternate") -> Callable[[], bytes]:
        def change(value: dict[str, Any]) -> None:
            value["artifacts"].append(value["artifacts"][0] | {"role": role, "recipe": recipe})
            for golden in value["golden"]:
                golden["answers"].append(golden["answers"][0] | {"recipe": recipe})

        return lambda: changed(change)

    yield Case(7, "recipe-twice", second("tflite-int8"), "bundle-format", "the same recipe")
    yield Case(7, "recipe-case-twin", second("TFLite-INT8"), "bundle-format", "the same recipe")
    yield Case(7, "two-primaries", second("tflite-f32", "primary"), "bundle-format", "several artifacts have the role")
    yield Case(
        7,
        "input-twice",
        lambda: changed(lambda m: m["contract"]["inputs"].append(m["contract"]["inputs"][0])),
        "bundle-format",
        "occurs twice",
    )
    yield Case(
        7,
        "blob-twice",
        lambda: signed(blobs=forge.entries([*forge.blobs(), forge.RED]), content=[*forge.blobs(), forge.RED]),
        "bundle-format",
        "listed twice",
    )


def _sizes() -> Iterator[Case]:
    def sized(size: int) -> Callable[[], bytes]:
        return lambda: changed(lambda m: m["blobs"][0].update(size=size))

    good = newer()
    yield Case(8, "size-smaller", sized(2119), "bundle-format", "its declared length")
    yield Case(8, "size-larger", sized(2121), "bundle-format", "its declared length")
    yield Case(8, "size-2-to-the-63", sized(2**63), "bundle-format", "is not an int|not canonical")
    yield Case(8, "size-negative", sized(-1), "bundle-format", "is not at its place")
    yield Case(
        8,
        "sizes-beyond-any-bundle",
        lambda: changed(lambda m: m["blobs"][-1].update(size=1 << 40)),
        "bundle-format",
        "more than",
    )
    yield Case(8, "golden-picture-of-another-size", lambda: _golden_size(), "bundle-format", "differs in size")
    yield Case(
        8,
        "something-after-the-last-blob",
        lambda: good + bytes(64),
        "bundle-integrity",
        "does not end (after|where)",
        fetched="download-size|bundle-integrity",
    )
    yield Case(
        8,
        "shorter-than-its-blobs",
        lambda: good[:-64],
        "bundle-integrity",
        "ends inside|its signed head says",
        fetched="download-size|bundle-integrity",
    )


def _golden_size() -> bytes:
    content = forge.blobs()
    content[1] = content[1][:-1]
    text = forge.canonical(forge.manifest()).replace(
        forge.sha256(forge.RED).encode(), forge.sha256(content[1]).encode()
    )
    value = json.loads(text)
    value["blobs"] = forge.entries(content)
    return signed(value, content)


def zstd_bomb() -> bytes:
    """1 GiB of zeros in 32 kB (RFC 8878): a frame of run-length blocks of 128 KiB."""
    frame = b"\x28\xb5\x2f\xfd" + bytes((0b11100000,)) + struct.pack("<Q", 1 << 30)
    blocks = [
        struct.pack("<I", (1 << 17) << 3 | 1 << 1 | (1 if last else 0))[:3] + b"\0" for last in [False] * 8191 + [True]
    ]
    return frame + b"".join(blocks)


def _packed() -> Iterator[Case]:
    yield Case(9, "zstd-bomb", zstd_bomb, "bundle-format", "not an edgekit bundle")
    yield Case(9, "gzip", lambda: gzip.compress(signed(), mtime=0), "bundle-format", "not an edgekit bundle")
    yield Case(9, "zstd-bomb-for-a-model", lambda: carrying(zstd_bomb()), "model-file", "", reader=False)


def _sequence() -> Iterator[Case]:
    yield Case(
        11,
        "rollout-seq-2-to-the-53-and-1",
        lambda: signed(rollout_seq=2**53 + 1),
        "bundle-format",
        "is not an int|not canonical",
    )
    yield Case(11, "rollout-seq-negative", lambda: signed(rollout_seq=-1), "bundle-format", "negative")
    yield Case(11, "rollout-seq-older", lambda: signed(rollout_seq=4), "downgrade", "is older than 5", reader=False)
    yield Case(
        11,
        "rollout-seq-again",
        lambda: signed(version="2"),
        "rollout-seq-reused",
        "was accepted here before",
        reader=False,
    )
    yield Case(
        11,
        "rollout-seq-missing",
        lambda: changed(lambda m: m.pop("rollout_seq")),
        "downgrade",
        "no rollout_seq",
        reader=False,
    )


def _dates() -> Iterator[Case]:
    yield Case(
        12,
        "expired",
        lambda: signed(expires="2026-11-02T00:00:00Z", rollout_seq=6),
        "expired",
        "expired on 2026-11-02",
        reader=False,
    )
    yield Case(
        12,
        "not-yet-valid",
        lambda: signed(not_before="2059-01-01T00:00:00Z", rollout_seq=6),
        "not-yet-valid",
        "not to be used before 2059",
        reader=False,
    )
    yield Case(
        12,
        "expires-before-it-begins",
        lambda: signed(not_before="2030-01-01T00:00:00Z", expires="2029-01-01T00:00:00Z"),
        "bundle-format",
        "before it becomes valid",
    )
    yield Case(12, "no-such-day", lambda: signed(expires="2027-02-30T00:00:00Z"), "bundle-format", "not a UTC date")


def _boards() -> Iterator[Case]:
    yield Case(
        13,
        "for-another-board",
        lambda: signed(compatible=["raspberry-pi-4"], rollout_seq=6),
        "incompatible",
        "it is for raspberry-pi-4",
        reader=False,
    )
    yield Case(
        13,
        "for-a-newer-runtime",
        lambda: signed(min_runtime="99.0.0"),
        "bundle-newer",
        "needs edgekit 99.0.0 or newer",
    )
    yield Case(
        13,
        "requires-what-nobody-knows",
        lambda: signed(requires=["quantum"]),
        "bundle-newer",
        "reader lacks: quantum",
    )
    yield Case(13, "of-a-later-format", lambda: signed(format=2), "bundle-newer", "bundle format 2")


def _models() -> Iterator[Case]:
    for one in bad_models.MODELS:
        yield Case(
            one.group, one.name, lambda one=one: carrying(one.make(), one.format), "model-file", one.says, reader=False
        )


class Unpickled:
    """What would run if anybody unpickled it."""

    def __reduce__(self) -> tuple[object, ...]:
        return (exec, ("raise SystemExit('a pickle was loaded')",))


def _pickles() -> Iterator[Case]:
    payload = pickle.dumps(Unpickled(), protocol=4)
    npy = b"\x93NUMPY\x01\x00\x46\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(80) + payload
    torch = b"PK\x03\x04" + bytes(26) + b"archive/data.pkl" + payload
    for name, data in (("pickle", payload), ("npy-of-objects", npy), ("pt", torch)):
        yield Case(20, f"{name}-for-a-model", lambda data=data: carrying(data), "model-file", "", reader=False)
    yield Case(20, "pickle-for-a-golden-picture", lambda: _golden_blob(payload), "bundle-format", "differs in size")


def _golden_blob(data: bytes) -> bytes:
    content = forge.blobs()
    content[1] = data
    value = json.loads(
        forge.canonical(forge.manifest()).replace(forge.sha256(forge.RED).encode(), forge.sha256(data).encode())
    )
    value["blobs"] = forge.entries(content)
    return signed(value, content)


def _proofs() -> Iterator[Case]:
    def tolerance(**changes: float) -> Callable[[], bytes]:
        return lambda: changed(lambda m: [g["answers"][0]["tolerance"].update(changes) for g in m["golden"]])

    yield Case(21, "tolerance-of-1e9-steps", tolerance(steps=10**9), "bundle-format", "proves nothing")
    yield Case(21, "tolerance-of-cosine-minus-1", tolerance(cosine=-1), "bundle-format", "proves nothing")
    yield Case(21, "no-golden-example", lambda: signed(golden=[]), "bundle-format", "golden")
    yield Case(21, "golden-answer-of-NaN", _float_answers, "bundle-format", "NaN")
    yield Case(21, "golden-answer-of-another-shape", _long_answers, "bundle-format", "differs in size")
    yield Case(22, "golden-answer-of-another-model", _false_answers, "selftest", "differs by", reader=False)


def _answering(answers: dict[bytes, bytes], dtype: str = "int8") -> bytes:
    """The good bundle with other golden answers."""
    content = forge.blobs()
    for picture, answer in answers.items():
        content[content.index(picture) + 1] = answer
    value = forge.manifest()
    for golden, picture in zip(value["golden"], (forge.RED, forge.BLUE), strict=True):
        golden["answers"][0]["outputs"]["probs"] = forge.sha256(answers[picture])
    output = value["artifacts"][0]["outputs"][0]
    if dtype != "int8":
        output["dtype"] = dtype
        del output["quantization"]
    value["rollout_seq"] = 6
    value["blobs"] = forge.entries(content)
    return signed(value, content)


def _float_answers() -> bytes:
    first, second = (struct.pack("<4f", *row) for row in ((float("nan"), 0.1, 0.1, 0.1), (0.1, 0.1, float("inf"), 0.1)))
    return _answering({forge.RED: first, forge.BLUE: second}, "float32")


def _long_answers() -> bytes:
    return _answering({picture: answer + bytes((1,)) for picture, answer in forge.ANSWERS.items()})


def _false_answers() -> bytes:
    return _answering({forge.RED: forge.ANSWERS[forge.BLUE], forge.BLUE: forge.ANSWERS[forge.RED]})


_ALL = (
    _damaged, _signers, _signature_sizes, _lengths, _spellings, _names, _twins, _sizes, _packed, _sequence, _dates,
    _boards, _models,
    _pickles, _proofs,
)  # fmt: skip

CASES: tuple[Case, ...] = tuple(case for group in _ALL for case in group())

GOOD: dict[str, Callable[[], bytes]] = {
    "signed.ekb": signed,
    "newer.ekb": newer,
    "signed-by-two.ekb": lambda: forge.pack(forge.manifest(), forge.blobs(), sign=["ours", "second"]),
    "unsigned.ekb": lambda: forge.pack(forge.manifest(), forge.blobs()),
    "called-CON.ekb": lambda: signed(name="CON", rollout_seq=6),
}

_SIGNERS = ("ours", "second", "late")
ROOTS: dict[str, Callable[[], bytes]] = {
    "root.json": lambda: forge.root_json(_SIGNERS, revoked=["stolen"], late=["late"]),
    "root-2of2.json": lambda: forge.root_json(_SIGNERS[:2], 2),
    "root-expired.json": lambda: forge.root_json(_SIGNERS[:1], expires="2026-11-02T00:00:00Z"),
}
