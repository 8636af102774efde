"""A reader of bundles written from docs/bundle-format.md alone. It imports nothing of edgekit, and shares no code with
it.

    opened = read(path, key=None, public=None)      # Refused, or what the file holds

It is here to find where the page says too little, or something else than what edgekit's reader does.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import struct
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import rfc8785

MAGIC = bytes((0x89, 0x45, 0x4B, 0x42, 0x0D, 0x0A, 0x1A, 0x0A))
RELEASE = (0, 1, 0)
FEATURES = {"encrypted-blobs"}
DTYPES = {
    "bool": 1, "int8": 1, "uint8": 1, "float16": 2, "int16": 2, "uint16": 2, "float32": 4, "int32": 4, "uint32": 4,
    "float64": 8, "int64": 8, "uint64": 8,
}  # fmt: skip
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
DIGEST = re.compile(r"[0-9a-f]{64}")
UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")


class Refused(Exception):  # noqa: N818 - what happened
    """newer: the bundle asks for a newer reader, and may well be sound."""

    def __init__(self, why: str, newer: bool = False) -> None:
        super().__init__(why)
        self.newer = newer


@dataclass(frozen=True)
class OpenedBundle:
    manifest: dict[str, Any]
    digest: str
    keyids: tuple[str, ...]
    signed: bool
    blobs: dict[str, bytes]


def must(holds: object, why: str) -> None:
    if not holds:
        raise Refused(why)


def read(path: Path, key: bytes | None = None, public: bytes | None = None) -> OpenedBundle:
    """key: of encrypted blobs, 32 bytes. public: 32 raw bytes of an Ed25519 key that must have signed."""
    data = path.read_bytes()
    must(len(data) <= 2 << 30, "too large")
    must(data[:8] == MAGIC, "no magic")
    manifest, at = section(data, 8, 1 << 20)
    block, at = section(data, at, 64 << 10)
    must(data[at : at + 32] == hashlib.sha256(data[:at]).digest(), "the head's digest")
    start = up(at + 32)
    must(len(data) >= start and not any(data[at + 32 : start]), "padding of the head")
    entries = signatures(block)
    signed = public is not None and any(verified(public, manifest, entry) for entry in entries)
    must(public is None or signed, "not signed by that key")
    value = canonical(manifest)
    newer(value)
    check(value)
    blobs = lying(data, start, value["blobs"])
    opened = {name: blob for name, blob in decrypted(value, blobs, key).items() if blob is not None}
    finite(value, opened)
    return OpenedBundle(value, hashlib.sha256(manifest).hexdigest(), tuple(e["keyid"] for e in entries), signed, opened)


def up(position: int) -> int:
    return (position + 63) // 64 * 64


def section(data: bytes, at: int, most: int) -> tuple[bytes, int]:
    must(len(data) >= at + 4, "ends before a length")
    (length,) = struct.unpack_from("<I", data, at)
    must(length <= most, "a length beyond its cap")
    must(len(data) >= at + 4 + length, "ends within a section")
    return data[at + 4 : at + 4 + length], at + 4 + length


def signatures(block: bytes) -> list[dict[str, str]]:
    try:
        entries = json.loads(block.decode())
        must(isinstance(entries, list) and len(entries) <= 64, "the signature block")
        for entry in entries:
            must(DIGEST.fullmatch(entry["keyid"]), "a keyid")
            must(len(base64.b64decode(entry["sig"], validate=True)) == 64, "a sig")
    except (ValueError, TypeError, KeyError) as error:
        raise Refused("the signature block") from error
    return entries


def verified(public: bytes, manifest: bytes, entry: dict[str, str]) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if entry["keyid"] != hashlib.sha256(public).hexdigest():
        return False
    kind = b"application/vnd.edgekit.manifest.v1+json"
    signed = b"DSSEv1 " + str(len(kind)).encode() + b" " + kind + b" " + str(len(manifest)).encode() + b" " + manifest
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(base64.b64decode(entry["sig"]), signed)
    except InvalidSignature:
        return False
    return True


def canonical(data: bytes) -> Any:
    """Canonical is what another implementation of RFC 8785 writes of it."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        must(len({name for name, _ in pairs}) == len(pairs), "a key twice")
        return dict(pairs)

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=once, parse_int=number)
        must(rfc8785.dumps(value) == data, "not canonical")
    except (ValueError, RecursionError) as error:
        raise Refused("not canonical JSON") from error
    look(value, 1)
    return value


def number(text: str) -> int | float:
    return int(text) if abs(int(text)) < 2**53 else float(text)


def look(value: Any, depth: int) -> None:
    if isinstance(value, str):
        must(not UNSEEN.search(value), "a character that is not seen")
    elif isinstance(value, dict):
        must(depth <= 24, "too deep")
        for name, item in value.items():
            look(name, depth)
            look(item, depth + 1)
    elif isinstance(value, list):
        must(depth <= 24, "too deep")
        for item in value:
            look(item, depth + 1)


def newer(manifest: Any) -> None:
    must(isinstance(manifest, dict) and type(manifest.get("format")) is int and manifest["format"] >= 1, "format")
    needed = manifest.get("min_runtime", "0.1.0")
    must(
        isinstance(needed, str) and re.fullmatch(r"(0|[1-9][0-9]{0,5})(\.(0|[1-9][0-9]{0,5})){2}", needed),
        "min_runtime",
    )
    features = words(manifest.get("requires", []), 1024)
    if manifest["format"] > 1 or tuple(map(int, needed.split("."))) > RELEASE or not set(features) <= FEATURES:
        raise Refused("a newer bundle", newer=True)


# -- fields: each takes what stands there, and raises Refused ---------------------------------------------------------


def text(value: Any, least: int = 0, most: int = 1000) -> str:
    must(isinstance(value, str) and least <= len(value) <= most, f"{value!r:.40} is no text")
    return str(value)


def word(value: Any) -> str:
    return text(value, 1, 500)


def words(value: Any, most: int) -> list[str]:
    must(isinstance(value, list) and len(value) <= most and len({word(one) for one in value}) == len(value), "words")
    return list(value)


def version(value: Any) -> None:
    must(
        isinstance(value, str) and re.fullmatch(r"[!-~]|[!-~][ -~]{0,98}[!-~]", value),
        f"{value!r:.40} is not a version",
    )


def name(value: Any) -> str:
    must(isinstance(value, str) and NAME.fullmatch(value), f"{value!r:.40} is no name")
    return str(value)


def digest(value: Any) -> str:
    must(isinstance(value, str) and DIGEST.fullmatch(value), "no digest")
    return str(value)


def whole(value: Any, least: int = 0, most: int = 2**53 - 1) -> int:
    must(type(value) is int and least <= value <= most, f"{value!r:.40} is no whole number from {least} to {most}")
    return int(value)


def real(value: Any, above: float | None = None) -> float:
    must(type(value) in (int, float) and (above is None or value > above), f"{value!r:.40} is no such number")
    return float(value)


def one_of(value: Any, *allowed: str) -> str:
    must(isinstance(value, str) and value in allowed, f"{value!r:.40} is none of {allowed}")
    return str(value)


def flag(value: Any) -> bool:
    must(isinstance(value, bool), "no boolean")
    return bool(value)


def thing(value: Any) -> dict[str, Any]:
    must(isinstance(value, dict), f"{value!r:.40} is no object")
    return dict(value)


def things(value: Any, least: int, most: int) -> list[Any]:
    must(isinstance(value, list) and least <= len(value) <= most, "no such list")
    return list(value)


def given(of: dict[str, Any], field: str, check_it: Any, *arguments: Any) -> None:
    if field in of:
        check_it(of[field], *arguments)


def moment(value: Any) -> datetime:
    must(isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", value, re.ASCII), "not a UTC date")
    try:
        return datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError as error:
        raise Refused("not a UTC date") from error


def tools(value: Any) -> None:
    must(len(thing(value)) <= 256, "too many tools")
    for distribution, version in value.items():
        word(distribution), word(version)


# -- the tables
# ---------------------------------------------------------------------------------------------------------


def check(m: dict[str, Any]) -> None:
    must(
        {"name", "version", "model_id", "contract", "contract_digest", "target", "artifacts", "golden", "blobs"}
        <= m.keys(),
        "fields",
    )
    name(m["name"]), version(m["version"]), digest(m["model_id"])
    target = thing(m["target"])
    name(target.get("profile")), name(target.get("arch")), whole(target.get("threads"), 1, 1024)
    given(target, "budget_ms", real, 0)
    given(m, "tools", tools)
    given(m, "licence", text, 1, 1000)
    given(m, "rollout_seq", whole)
    first, last = (moment(m[field]) if field in m else None for field in ("not_before", "expires"))
    must(first is None or last is None or first < last, "expires before it becomes valid")
    for board in words(m.get("compatible", []), 256):
        name(board)
    for field in ("p50_ms", "p99_ms", "peak_mb"):
        given(thing(m.get("promise", {})), field, real, 0)
    sizes = blobs(m)
    contract(m["contract"])
    must(hashlib.sha256(rfc8785.dumps(m["contract"])).hexdigest() == digest(m["contract_digest"]), "contract_digest")
    artifacts(m, sizes)
    for example in things(m["golden"], 1, 64):
        golden(m, thing(example), sizes)
    proven = {answer["recipe"] for example in m["golden"] for answer in example["answers"]}
    must(all(entry["recipe"] in proven for entry in m["artifacts"]), "an artifact that nothing proves")


def blobs(m: dict[str, Any]) -> dict[str, int]:
    """Digest -> size of what is used."""
    sizes: dict[str, int] = {}
    at, keys = 0, set()
    for blob in things(m["blobs"], 1, 4096):
        blob = thing(blob)
        must(whole(blob.get("offset")) == at and digest(blob.get("sha256")) not in sizes, "where a blob lies")
        at = up(at + whole(blob.get("size")))
        sizes[blob["sha256"]] = blob["size"]
        if "cipher" in blob:
            cipher = thing(blob["cipher"])
            one_of(cipher.get("name"), "AES-256-GCM")
            must(re.fullmatch(r"[0-9a-f]{32}", text(cipher.get("key"))) and digest(cipher.get("salt")), "a cipher")
            must(blob["size"] >= 16, "a cipher without its tag")
            keys.add(cipher["key"])
            sizes[blob["sha256"]] -= 16
    must(len(keys) <= 1 and (not keys or "encrypted-blobs" in m.get("requires", [])), "encrypted otherwise")
    return sizes


def contract(c: Any) -> None:
    c = thing(c)
    one_of(c.get("task"), "classification", "detection", "embedding", "raw")
    for field in ("inputs", "outputs"):
        specs = things(c.get(field), 1, 256)
        words([thing(spec).get("name") for spec in specs], 256)
        for spec in specs:
            one_of(spec.get("dtype"), *DTYPES)
            sides = [whole(side, 1) for side in things(spec.get("shape"), 0, 8)]
            must(math.prod(sides) <= 2**28, "too large a shape")
            if field == "inputs" and "image" in spec:
                image(thing(spec["image"]), spec["shape"])
    given(c, "labels", lambda labels: [text(one) for one in things(labels, 0, 100_000)])
    given(c, "scores", one_of, "probabilities", "logits")
    given(c, "hop", whole, 1)
    state = one_of(c.get("state", "none"), "none", "explicit", "internal")
    must((state == "explicit") == bool(c.get("carried")), "carried")
    shapes = {field: {spec["name"]: spec["shape"] for spec in c[field]} for field in ("inputs", "outputs")}
    for pair in things(c.get("carried", []), 0, 256):
        shape = shapes["inputs"].get(thing(pair).get("input"))
        must(shape is not None and shape == shapes["outputs"].get(pair.get("output")), "carried")
        if "initial" in pair:
            values = [real(one) for one in things(pair["initial"], 1, 2**28)]
            must(len(values) in (1, math.prod(shape)), "initial")
    for field, end in (("inputs", "input"), ("outputs", "output")):
        ends = {pair[end] for pair in c.get("carried", [])}
        must(len(ends) == len(c.get("carried", [])) and (state == "none" or len(ends) < len(c[field])), "carried")
    if "embedding" in c:
        word(thing(c["embedding"]).get("output")), flag(c["embedding"].get("normalize", False))
    if "detection" in c:
        detection(thing(c["detection"]), set(shapes["outputs"]))


def image(i: dict[str, Any], shape: list[int]) -> None:
    channels = 1 if one_of(i.get("color", "rgb"), "rgb", "bgr", "gray") == "gray" else 3
    must(shape == [whole(i.get("height"), 1), whole(i.get("width"), 1), channels], "a picture's shape")
    one_of(i.get("resize", "stretch"), "stretch", "center-crop", "letterbox")
    one_of(i.get("interpolation", "bilinear"), "nearest", "bilinear", "bicubic")
    must(0 < real(i.get("crop", 1)) <= 1, "crop")
    for field in ("mean", "std"):
        must(len([real(one) for one in things(i.get(field), 1, 3)]) == channels, field)
    must(all(i["std"]), "std")


def detection(d: dict[str, Any], outputs: set[str]) -> None:
    must(d.get("boxes") in outputs, "boxes")
    one_of(d.get("row"), "box", "box scores", "box objectness scores", "box score class")
    one_of(d.get("format"), "xyxy", "yxyx", "xywh", "cxcywh")
    must(len([real(side, 0) for side in things(d.get("span"), 2, 2)]) == 2, "span")
    for field in ("scores", "classes", "count"):
        given(d, field, one_of, *outputs)
    one_of(d.get("candidates", "first"), "first", "last")
    one_of(d.get("activation", "none"), "none", "sigmoid", "softmax")
    one_of(d.get("background", "none"), "none", "first", "last")
    for field in ("suppressed", "class_aware"):
        given(d, field, flag)
    for field in ("score_threshold", "iou_threshold"):
        must(0 <= real(d.get(field, 0)) <= 1, field)
    given(d, "max_boxes", whole, 1)


def artifacts(m: dict[str, Any], sizes: dict[str, int]) -> None:
    entries = [thing(entry) for entry in things(m["artifacts"], 1, 64)]
    roles = [one_of(entry.get("role"), "primary", "alternate", "batch", "degraded") for entry in entries]
    must(roles.count("primary") == 1, "not one primary")
    must(roles.count("degraded") <= 1, "several degraded")
    alone = [name(entry.get("recipe")) for entry, role in zip(entries, roles, strict=True) if role != "batch"]
    must(len({recipe.lower() for recipe in alone}) == len(alone), "a recipe twice")
    for entry in entries:
        name(entry.get("recipe")), one_of(entry.get("format"), "tflite", "onnx"), name(entry.get("precision"))
        must(sizes.get(digest(entry.get("blob"))) == whole(entry.get("bytes")), "an artifact's bytes")
        for field in ("inputs", "outputs"):
            tensors = [thing(spec) for spec in things(entry.get(field), 1, 256)]
            names = {spec["name"] for spec in m["contract"][field]}
            must({word(spec.get("name")) for spec in tensors} == names and len(tensors) == len(names), field)
            for spec in tensors:
                tensor(spec)
        given(entry, "ops", words, 1024)
        given(entry, "tools", tools)
        for engine, figure in thing(entry.get("memory_mb", {})).items():
            word(engine), real(figure, 0)
        for report in ("settings", "fidelity", "estimate"):
            given(entry, report, thing)


def tensor(spec: dict[str, Any]) -> None:
    word(spec.get("tensor")), one_of(spec.get("dtype"), *DTYPES)
    sides = [whole(side, -1) for side in things(spec.get("shape"), 1, 8)]
    must(0 not in sides and math.prod(map(abs, sides)) <= 2**28, "a tensor's shape")
    given(spec, "layout", one_of, "NHWC", "NCHW")
    if "quantization" in spec:
        real(thing(spec["quantization"]).get("scale"), 0)
        whole(spec["quantization"].get("zero_point"), -(2**31) + 1, 2**31 - 1)


def golden(m: dict[str, Any], example: dict[str, Any], sizes: dict[str, int]) -> None:
    c = m["contract"]
    carried = c.get("carried", [])
    inputs = {s["name"]: s for s in c["inputs"] if s["name"] not in [pair["input"] for pair in carried]}
    outputs = {s["name"] for s in c["outputs"]} - {pair["output"] for pair in carried}
    stateful = c.get("state", "none") != "none"
    must(("steps" in example) == stateful, "steps of a golden example")
    frames = whole(example["steps"], 1, 100_000) if stateful else 1
    items, dtypes = thing(example.get("inputs")), thing(example.get("dtypes"))
    must(items.keys() == dtypes.keys() == inputs.keys(), "inputs of a golden example")
    for field, blob in items.items():
        size = frames * math.prod(inputs[field]["shape"]) * DTYPES[one_of(dtypes[field], *DTYPES)]
        must(sizes.get(digest(blob)) == size, "the size of a golden input")
    entries = {entry["recipe"]: entry for entry in m["artifacts"] if entry["role"] != "batch"}
    answers = [thing(answer) for answer in things(example.get("answers"), 0, 64)]
    must(len({name(answer.get("recipe")) for answer in answers}) == len(answers), "answered twice")
    for answer in answers:
        must(answer["recipe"] in entries, "an answer of nobody")
        word(answer.get("engine")), word(answer.get("engine_version"))
        must(thing(answer.get("outputs")).keys() == outputs, "outputs of an answer")
        specs = {spec["name"]: spec for spec in entries[answer["recipe"]]["outputs"]}
        for field, blob in answer["outputs"].items():
            sides = specs[field]["shape"][1:]
            size = frames * math.prod(map(abs, sides)) * DTYPES[specs[field]["dtype"]]
            have = sizes.get(digest(blob), -1)
            must(have > 0 and have % size == 0 if -1 in sides else have == size, "the size of a golden answer")
        allowed = thing(answer.get("tolerance"))
        whole(allowed.get("steps"), 0, 200_000 if stateful else 1000)
        must(0.5 <= real(allowed.get("cosine")) <= 1, "a cosine")


def lying(data: bytes, start: int, entries: list[dict[str, Any]]) -> dict[str, bytes]:
    found, at = {}, start
    for entry in entries:
        blob = data[at : at + entry["size"]]
        must(hashlib.sha256(blob).hexdigest() == entry["sha256"], "a blob's digest")
        end, at = at + entry["size"], up(at + entry["size"])
        must(len(data) >= at and not any(data[end:at]), "padding of a blob")
        found[entry["sha256"]] = blob
    must(len(data) == at, "more behind the last blob")
    return found


def decrypted(m: dict[str, Any], found: dict[str, bytes], key: bytes | None) -> dict[str, bytes | None]:
    models = {entry["blob"] for entry in m["artifacts"]}
    return {
        entry["sha256"]: plain(
            m, entry, found[entry["sha256"]], key, "model" if entry["sha256"] in models else "golden"
        )
        for entry in m["blobs"]
    }


def plain(m: dict[str, Any], entry: dict[str, Any], blob: bytes, key: bytes | None, kind: str) -> bytes | None:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    if "cipher" not in entry:
        return blob
    if key is None:
        return None
    named = HKDF(hashes.SHA256(), 16, None, b"edgekit key id v1").derive(key).hex()
    must(named == entry["cipher"]["key"], "another key")
    both = HKDF(hashes.SHA256(), 44, bytes.fromhex(entry["cipher"]["salt"]), b"edgekit blob v1").derive(key)
    bound = f"edgekit blob v1\n{m['model_id']}\n{kind}\n".encode()
    try:
        return AESGCM(both[:32]).decrypt(both[32:], blob, bound)
    except InvalidTag as error:
        raise Refused("a blob that does not open") from error


def finite(m: dict[str, Any], found: dict[str, bytes]) -> None:
    import numpy as np

    entries = {entry["recipe"]: entry for entry in m["artifacts"] if entry["role"] != "batch"}
    for example in m["golden"]:
        for answer in example["answers"]:
            for spec in entries[answer["recipe"]]["outputs"]:
                blob = answer["outputs"].get(spec["name"])
                if spec["dtype"].startswith("float") and blob in found:
                    must(
                        np.isfinite(np.frombuffer(found[blob], spec["dtype"])).all(),
                        "a golden answer that is no number",
                    )
