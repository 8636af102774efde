"""An encrypted bundle: what it tells without the key, what opens it, and what nobody gets past."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import rooted
import tiny
from refusing import has_code

from edgekit.packaging.writer import BundleDraft, Encryption, SigningKey, canonical_json, write_bundle
from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.cipher import bound_to, encrypt
from edgekit_runtime.bundle.header import MAGIC, align_up
from edgekit_runtime.bundle.manifest import Manifest
from edgekit_runtime.bundle.reader import Bundle, read_bundle
from edgekit_runtime.bundle.secrets import Secret
from edgekit_runtime.system.errors import BundleError, IntegrityError, SecretError, SelfTestError, SignatureError
from edgekit_runtime.system.strict_json import from_json

KEY, OTHER = Secret([bytes(range(100, 132))]), Secret([bytes(range(160, 192))])
MODEL = tiny.model_bytes("tflite-int8")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.bundle(tmp_path_factory.mktemp("encrypted"), secret=KEY)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return read_bundle(tiny.bundle(tmp_path_factory.mktemp("plain")))


def all_blobs(bundle: Bundle) -> set[bytes]:
    return {bundle.blob(entry.sha256) for entry in bundle.manifest.blobs}


def test_with_the_key_it_is_the_bundle_that_it_would_be_without_encryption(path: Path, plain: Bundle):
    opened = read_bundle(path, secret=KEY)
    assert not opened.locked
    assert opened.blob(opened.artifact().blob) == MODEL
    assert all_blobs(opened) == all_blobs(plain)
    for one, other in zip(opened.manifest.golden, plain.manifest.golden, strict=True):
        assert (opened.golden_items(one)["image"] == plain.golden_items(other)["image"]).all()


def test_nothing_of_what_is_encrypted_can_be_found_in_the_file(path: Path, plain: Bundle):
    """S22"""
    data = path.read_bytes()
    for blob in all_blobs(plain):
        for start in range(0, len(blob) - 8, 8):
            piece = blob[start : start + 8]
            assert piece not in data or len(set(piece)) == 1
        assert hashlib.sha256(blob).hexdigest().encode() not in data
    (key,) = KEY.to_pipe()
    assert key.encode() not in data
    assert bytes.fromhex(key) not in data


def test_without_the_key_everything_is_checked_and_nothing_opened(path: Path, plain: Bundle):
    opened = read_bundle(path)
    assert opened.locked
    assert opened.manifest.encrypted_with == KEY.id
    assert opened.manifest.requires == ("encrypted-blobs",)
    assert opened.manifest.contract == plain.manifest.contract
    with pytest.raises(SecretError, match=KEY.id[:12], check=has_code("secret-missing")):
        opened.blob(opened.artifact().blob)
    with pytest.raises(SecretError, check=has_code("secret-missing")):
        opened.golden_items(opened.manifest.golden[0])


def test_a_changed_byte_is_found_without_the_key(path: Path, tmp_path: Path):
    """S22"""
    data = bytearray(path.read_bytes())
    for position in (len(data) - 5, len(data) // 2, len(data) - 200):
        changed = bytearray(data)
        changed[position] ^= 1
        (tmp_path / "x.ekb").write_bytes(changed)
        with pytest.raises(IntegrityError):
            read_bundle(tmp_path / "x.ekb")


def test_another_key_is_refused_by_its_id(path: Path):
    with pytest.raises(SecretError, match=f"{KEY.id[:12]}.*{OTHER.id[:12]}", check=has_code("secret-wrong")):
        read_bundle(path, secret=OTHER)


def test_the_same_key_and_content_give_the_same_bytes(path: Path, tmp_path: Path):
    assert tiny.bundle(tmp_path, secret=KEY).read_bytes() == path.read_bytes()
    assert tiny.bundle(tmp_path, secret=OTHER).read_bytes() != path.read_bytes()


def test_a_key_that_is_not_needed_is_not_asked_for(tmp_path: Path):
    path = tiny.bundle(tmp_path)
    opened = read_bundle(path, secret=lambda: pytest.fail("nobody needs it"))
    assert opened.secret is None
    assert read_bundle(path, secret="cmd:no-such-program").secret is None


def test_an_application_opens_it_and_gets_the_same_answers(path: Path):
    with open_bundle(path, secret=KEY) as model:
        assert model.predict(tiny.RED).top(1)[0].label == "red"


def test_an_application_without_a_key_is_told_at_once(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("EDGEKIT_SECRET", raising=False)
    with pytest.raises(SecretError, check=has_code("secret-missing")):
        open_bundle(path)
    place = tmp_path / "edgekit" / "secret"
    place.parent.mkdir()
    place.write_text(KEY.to_pipe()[0])
    place.chmod(0o600)
    with open_bundle(path) as model:
        assert model.predict(tiny.BLUE).top(1)[0].label == "blue"


def test_another_bundle_of_another_key_takes_its_place_where_both_keys_are_there(path: Path, tmp_path: Path):
    following = tiny.bundle(tmp_path, secret=OTHER)
    both = Secret([bytes.fromhex(OTHER.to_pipe()[0]), bytes.fromhex(KEY.to_pipe()[0])])
    with open_bundle(path, secret=both) as model:
        model.swap(following)
        assert model.predict(tiny.RED).top(1)[0].label == "red"
    with open_bundle(path, secret=KEY) as model, pytest.raises(SecretError, check=has_code("secret-wrong")):
        model.swap(following)


@pytest.mark.parametrize("nonsense", [5, ["file:x"], object()])
def test_what_is_no_secret_at_all_is_the_callers_bug(path: Path, nonsense):
    with pytest.raises(ValueError, match="secret must be"):
        open_bundle(path, secret=nonsense)


def forged(path: Path, to: Path, change: Callable[[dict, list[bytes]], None]) -> Path:
    """The bundle with another manifest and blobs, and every digest right: what somebody without the key can make."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<I", data, 8)
    manifest = json.loads(data[12 : 12 + length])
    start = align_up(12 + length + 4 + 2 + 32)
    blobs = [data[start + b["offset"] :][: b["size"]] for b in manifest["blobs"]]
    change(manifest, blobs)
    body = canonical_json(manifest)
    head = MAGIC + struct.pack("<I", len(body)) + body + struct.pack("<I", 2) + b"[]"
    head += hashlib.sha256(head).digest()
    out = to / "forged.ekb"
    out.write_bytes(b"".join(part + bytes(align_up(len(part)) - len(part)) for part in (head, *blobs)))
    return out


def with_blob(manifest: dict, blobs: list[bytes], number: int, data: bytes) -> None:
    """Another blob in that place, under its own name."""
    old, new = manifest["blobs"][number]["sha256"], hashlib.sha256(data).hexdigest()
    text = json.dumps(manifest).replace(old, new)
    manifest.clear()
    manifest.update(json.loads(text))
    blobs[number] = data


def test_the_forger_of_these_tests_makes_bundles_that_open(path: Path, tmp_path: Path):
    same = forged(path, tmp_path, lambda manifest, blobs: None)
    assert read_bundle(same, secret=KEY).blob(read_bundle(same).artifact().blob) == MODEL


def flipped(manifest: dict, blobs: list[bytes]) -> None:
    with_blob(manifest, blobs, 0, bytes([blobs[0][0] ^ 1]) + blobs[0][1:])


def salted(manifest: dict, blobs: list[bytes]) -> None:
    salt = manifest["blobs"][0]["cipher"]["salt"]
    manifest["blobs"][0]["cipher"]["salt"] = ("0" if salt[0] != "0" else "1") + salt[1:]


def of_another_model(manifest: dict, blobs: list[bytes]) -> None:
    manifest["model_id"] = "1" * 64


def of_another_kind(manifest: dict, blobs: list[bytes]) -> None:
    """A model file that was encrypted as part of a golden example."""
    salt, sealed = encrypt(KEY.key(), MODEL, bound_to(manifest["model_id"], "golden"))
    manifest["blobs"][0]["cipher"]["salt"] = salt.hex()
    with_blob(manifest, blobs, 0, sealed)


def exchanged(manifest: dict, blobs: list[bytes]) -> None:
    """The golden answers of two examples change places with their salts left behind."""
    one, other = manifest["blobs"][2], manifest["blobs"][3]
    one["cipher"]["salt"], other["cipher"]["salt"] = other["cipher"]["salt"], one["cipher"]["salt"]


@pytest.mark.parametrize("change", [flipped, salted, of_another_model, of_another_kind, exchanged])
def test_what_was_not_encrypted_for_its_place_does_not_open(change, path: Path, tmp_path: Path):
    """S22"""
    made_up = forged(path, tmp_path, change)
    assert read_bundle(made_up).locked  # every digest is right
    with pytest.raises(IntegrityError, match="does not open with its key"):
        read_bundle(made_up, secret=KEY)


def test_which_of_one_models_blobs_stands_where_is_the_signatures_to_say(tmp_path: Path):
    """S22: two golden answers change places with their salts. Nothing that is encrypted differs, so that the key opens
    both; what was signed does not open, and what was not does not give its golden answers."""
    path, pem = tiny.bundle(tmp_path, secret=KEY, key=SigningKey(rooted.private("alice"))), tmp_path / "alice.pub.pem"
    pem.write_bytes(rooted.public_pem("alice"))
    one, other = (
        next(iter(golden.answers[0].outputs.values())) for golden in read_bundle(path, trust=pem).manifest.golden[:2]
    )
    data = path.read_bytes()
    (length,) = struct.unpack_from("<I", data, 8)
    before, golden, after = data[: 12 + length].partition(b'"golden":')
    after = after.replace(one.encode(), b"?").replace(other.encode(), one.encode()).replace(b"?", other.encode())
    head = before + golden + after + data[12 + length : _digest_at(data)]
    path.write_bytes(head + hashlib.sha256(head).digest() + data[len(head) + 32 :])
    assert not read_bundle(path, secret=KEY).locked
    with pytest.raises(SignatureError):
        read_bundle(path, trust=pem)
    with pytest.raises(SelfTestError):
        open_bundle(path, secret=KEY)


def _digest_at(data: bytes) -> int:
    (length,) = struct.unpack_from("<I", data, 8)
    return 16 + length + int.from_bytes(data[12 + length : 16 + length], "little")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda m, b: m.pop("requires"), "does not require 'encrypted-blobs'"),
        (lambda m, b: m["blobs"][0]["cipher"].update(name="AES-128-CBC"), "one of AES-256-GCM"),
        (lambda m, b: m["blobs"][0]["cipher"].update(salt="00"), "impossible cipher"),
        (lambda m, b: m["blobs"][0]["cipher"].update(salt="A" * 64), "impossible cipher"),
        (lambda m, b: m["blobs"][0]["cipher"].update(key="../../etc"), "impossible cipher"),
        (lambda m, b: m["blobs"][0]["cipher"].pop("salt"), "'salt' is missing"),
        (lambda m, b: m["blobs"][1]["cipher"].update(key="0" * 32), "more than one key"),
        (lambda m, b: m["blobs"][0].pop("cipher"), "differs from its declared length"),
        (lambda m, b: with_blob(m, b, 1, b"short") or m["blobs"][1].update(size=5), "impossible cipher"),
    ],
)
def test_a_malformed_cipher_is_refused_before_any_key_is_asked_for(change, what: str, path: Path, tmp_path: Path):
    with pytest.raises(BundleError, match=what):
        read_bundle(forged(path, tmp_path, change), secret=lambda: pytest.fail("nobody needs it"))


def test_a_part_may_be_encrypted_and_the_rest_is_read_without_the_key(path: Path, tmp_path: Path):
    """Other writers may leave what is public readable: a reader asks for the key where it needs it."""
    plain_image = tiny.RED.tobytes()

    def change(manifest: dict, blobs: list[bytes]) -> None:
        number = next(
            n for n, b in enumerate(manifest["blobs"]) if b["sha256"] == manifest["golden"][0]["inputs"]["image"]
        )
        with_blob(manifest, blobs, number, plain_image)
        del manifest["blobs"][number]["cipher"]
        manifest["blobs"][number]["size"] = len(plain_image)
        offset = 0
        for blob in manifest["blobs"]:
            blob["offset"], offset = offset, align_up(offset + blob["size"])

    mixed = forged(path, tmp_path, change)
    locked = read_bundle(mixed)
    assert (locked.golden_items(locked.manifest.golden[0])["image"] == tiny.RED).all()
    with pytest.raises(SecretError, check=has_code("secret-missing")):
        locked.blob(locked.artifact().blob)
    assert read_bundle(mixed, secret=KEY).blob(locked.artifact().blob) == MODEL


def test_neither_a_bundle_nor_its_content_is_shown_by_repr(path: Path):
    shown = repr(read_bundle(path, secret=KEY))
    assert KEY.to_pipe()[0] not in shown
    assert repr(MODEL)[10:40] not in shown


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_bundle_is_in_memory_twice_at_most_while_it_is_opened(tmp_path: Path):
    """As it lies in the file, and as it is used."""
    size = 64 << 20
    plain = read_bundle(tiny.bundle(tmp_path))
    draft = BundleDraft(Encryption(KEY, plain.manifest.model_id))
    names = {entry.sha256: draft.add(plain.blob(entry.sha256)) for entry in plain.manifest.blobs[1:]}
    big = draft.add(bytes(range(256)) * (size // 256), "model")
    text = json.dumps(plain.manifest.as_json())
    for old, new in (*names.items(), (plain.artifact().blob, big)):
        text = text.replace(old, new)
    value = json.loads(text)
    value["artifacts"][0]["bytes"] = size
    made = replace(from_json(Manifest, value, "made"), blobs=(), requires=("encrypted-blobs",))
    write_bundle(tmp_path / "big.ekb", draft, made)
    code = (
        "import sys; from edgekit_runtime.bundle.reader import read_bundle; from edgekit_runtime.bundle.secrets import "
        "Secret\nfrom cryptography.hazmat.primitives.ciphers import Cipher\ndef now(name): return int([l for l in "
        "open('/proc/self/status') if l.startswith(name)][0].split()[1]) << 10\nbefore = now('VmRSS')\nb = "
        f"read_bundle(sys.argv[1], secret=Secret([bytes.fromhex('{KEY.to_pipe()[0]}')]))\nprint(now('VmHWM') - before, "
        "now('VmRSS') - before, len(b.blob(b.artifact().blob)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "big.ekb"], capture_output=True, text=True, check=True, timeout=60
    )
    peak, after, read = map(int, done.stdout.split())
    assert read == size
    assert peak < 2.2 * size + (16 << 20)
    assert after < 1.2 * size + (16 << 20)
