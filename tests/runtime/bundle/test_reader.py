"""A bundle is either exactly what was packed or refused, with a sentence that says why."""

from __future__ import annotations

import json
import struct

import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from edgekit.packaging.assemble import assemble
from edgekit.packaging.writer import write_bundle
from edgekit_runtime.bundle.header import MAGIC, MAX_MANIFEST_BYTES
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import available
from edgekit_runtime.system.errors import BundleError, IntegrityError

pytestmark = pytest.mark.skipif(
    "tflite-int8" not in [tiny.RECIPE_OF_ENGINE[name] for name in available()], reason="no TFLite engine is installed"
)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return tiny.bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged") / "damaged.ekb"


def test_holds_what_was_packed(packed):
    bundle = read_bundle(packed)
    assert bundle.manifest.contract == tiny.CONTRACT
    assert bundle.blob(bundle.artifact().blob) == tiny.model_bytes("tflite-int8")
    assert bundle.artifact("tflite-int8").role == "primary"
    assert (bundle.signed_by, bundle.trusted) == ((), False)


def test_the_same_inputs_give_the_same_bytes(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert tiny.bundle(tmp_path / "a").read_bytes() == tiny.bundle(tmp_path / "b").read_bytes()


def test_blobs_lie_at_multiples_of_64(packed):
    bundle, data = read_bundle(packed), packed.read_bytes()
    assert all(blob.offset % 64 == 0 for blob in bundle.manifest.blobs)
    assert data.find(tiny.model_bytes("tflite-int8")) % 64 == 0


@settings(max_examples=examples(300))
@given(st.data())
def test_no_flipped_bit_goes_unseen(packed, scratch, data):
    """S13"""
    good = bytearray(packed.read_bytes())
    position, bit = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(0, 7))
    good[position] ^= 1 << bit
    scratch.write_bytes(bytes(good))
    with pytest.raises(BundleError):
        read_bundle(scratch)


@settings(max_examples=examples(100))
@given(st.data())
def test_no_truncation_goes_unseen(packed, scratch, data):
    """S13"""
    good = packed.read_bytes()
    scratch.write_bytes(good[: data.draw(st.integers(0, len(good) - 1))])
    with pytest.raises(BundleError):
        read_bundle(scratch)


def test_a_damaged_blob_is_named_and_the_way_out_given(packed, tmp_path):
    good = bytearray(packed.read_bytes())
    good[good.find(b"TFL3") + 100] ^= 1
    (tmp_path / "x.ekb").write_bytes(bytes(good))
    with pytest.raises(IntegrityError, match=r"x\.ekb: blob [0-9a-f]{12} was changed.*copy or build it again"):
        read_bundle(tmp_path / "x.ekb")


def test_appended_bytes_are_refused(packed, tmp_path):
    (tmp_path / "x.ekb").write_bytes(packed.read_bytes() + bytes(64))
    with pytest.raises(IntegrityError, match="does not end after its last blob"):
        read_bundle(tmp_path / "x.ekb")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "the file is empty"),
        (b"hello world, this is a text", "not an edgekit bundle"),
        (MAGIC.replace(b"\r\n", b"\n") + bytes(100), "changed in transfer"),
        (MAGIC, "ends before the manifest"),
        (MAGIC + struct.pack("<I", 100) + b"{}", "ends inside the manifest"),
        (MAGIC + struct.pack("<I", MAX_MANIFEST_BYTES + 1) + b"{}", "more than the"),
    ],
    ids=["empty", "text", "line ends", "no manifest", "short manifest", "huge manifest"],
)
def test_files_that_are_no_bundle_say_why(tmp_path, data, why):
    (tmp_path / "x.ekb").write_bytes(data)
    with pytest.raises(BundleError, match=why):
        read_bundle(tmp_path / "x.ekb")


def test_a_bare_model_is_recognised(tmp_path):
    (tmp_path / "m.tflite").write_bytes(tiny.model_bytes("tflite-int8"))
    with pytest.raises(BundleError, match="bare TFLite model"):
        read_bundle(tmp_path / "m.tflite")


def test_a_missing_file_and_a_folder_are_clear_errors(tmp_path):
    with pytest.raises(BundleError, match="No such file"):
        read_bundle(tmp_path / "absent.ekb")
    with pytest.raises(BundleError, match="cannot be read"):
        read_bundle(tmp_path)


def edited(tmp_path, change):
    """A bundle whose manifest was changed by its own writer: the checks beyond the digest."""
    draft, manifest = assemble(tiny.content())
    value = json.loads(json.dumps(manifest.as_json()))

    class Changed:
        blobs = ()

        def as_json(self):
            value["blobs"] = [{"sha256": b.sha256, "offset": b.offset, "size": b.size} for b in draft.entries()]
            change(value)
            return value

    draft.encode = lambda _manifest, keys=(), encode=draft.encode: _encode(draft, Changed())
    write_bundle(tmp_path / "x.ekb", draft, manifest)
    return tmp_path / "x.ekb"


def _encode(draft, changed):
    import hashlib

    from edgekit.packaging.writer import canonical_json
    from edgekit_runtime.bundle.header import align_up

    body = canonical_json(changed.as_json())
    head = MAGIC + struct.pack("<I", len(body)) + body + struct.pack("<I", 2) + b"[]"
    head += hashlib.sha256(head).digest()
    parts = [head, *draft._blobs.values()]
    return b"".join(part + bytes(align_up(len(part)) - len(part)) for part in parts)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: m.update(format=2), "bundle format 2 is not 1"),
        (lambda m: m.pop("contract"), "'contract' is missing"),
        (lambda m: m["artifacts"][0].update(bytes="many"), r"artifacts\[0\]\.bytes: 'many' is not an int"),
        (lambda m: m["artifacts"][0].update(format="pickle"), "'pickle' is not one of tflite, onnx"),
        (lambda m: m["artifacts"][0].update(blob="f" * 64), "named but not listed"),
        (lambda m: m["artifacts"][0].update(role="batch"), "no artifact has the role 'primary'"),
        (lambda m: m["blobs"][0].update(offset=64), "is not at its place"),
        (lambda m: m["blobs"][-1].update(size=-1), r"is not at its place|ends inside"),
        (lambda m: m["artifacts"][0].update(bytes=7), "differs from its declared length"),
        (lambda m: m["artifacts"][0]["inputs"][0].update(name="other"), "has other inputs than the contract"),
        (lambda m: m["artifacts"][0]["inputs"][0].update(dtype="zz"), "'zz' is not a dtype"),
        (lambda m: m["artifacts"][0]["inputs"][0].update(shape=[]), "has no batch axis"),
        (lambda m: m["contract"]["inputs"][0].update(shape=[0, 8, 3]), "impossible shape"),
        (lambda m: m["contract"]["inputs"][0].update(name="other"), "has other inputs than the contract"),
        (lambda m: m.update(golden=[]), "no golden example proves tflite-int8"),
        (lambda m: m["golden"].clear(), "no golden example proves tflite-int8"),
        (lambda m: [g.update(answers=[]) for g in m["golden"]], "no golden example proves tflite-int8"),
        (lambda m: m["artifacts"][0].update(recipe="tflite-f32"), "an answer of 'tflite-int8', which does not exist"),
        (lambda m: m["golden"][0]["dtypes"].clear(), "lacks an input"),
        (lambda m: m["golden"][0]["dtypes"].update(image="zz"), "unknown dtype"),
        (lambda m: m["contract"]["inputs"][0].update(shape=[8, "8", 3]), r"shape\[1\]: '8' is not an int"),
        (lambda m: m["artifacts"].append(m["artifacts"][0]), "several artifacts have the role 'primary'"),
        (
            lambda m: m["artifacts"].append({**m["artifacts"][0], "role": "alternate"}),
            "two artifacts have the same recipe",
        ),
        (
            lambda m: m["artifacts"].extend({**m["artifacts"][0], "role": "degraded"} for _ in range(2)),
            "several artifacts have the role 'degraded'",
        ),
        (lambda m: m["artifacts"][0].update(recipe="../x"), "is not a name of a recipe"),
        (lambda m: m["artifacts"][0].update(ops=["CONV_2D", "CONV_2D"]), "operators occurs twice"),
        (
            lambda m: m["artifacts"][0].update(ops=[f"OP{n}" for n in range(1025)]),
            "1,025 operators are more than 1,024",
        ),
        (lambda m: m["artifacts"][0]["outputs"][0]["quantization"].update(scale=0), "a scale that is not positive"),
        (lambda m: m["artifacts"][0]["inputs"][0].update(shape=[1, 1 << 15, 1 << 15, 3]), "impossible shape"),
        (lambda m: m.update(artifacts=m["artifacts"] * 65), "65 artifacts are more than 64"),
        (lambda m: m.update(golden=m["golden"] * 33), "too many golden examples"),
        (lambda m: m.update(blobs=m["blobs"] * 2000), "blobs are more than 4,096"),
        (lambda m: m["blobs"].append(m["blobs"][0]), "is not at its place"),
        (lambda m: m["blobs"][-1].update(size=2**53 - 1), "more than 2,147,483,648 bytes"),
        (lambda m: m["blobs"][0].update(sha256="F" * 64), "not a SHA-256 in lower-case hex"),
        (lambda m: m["golden"][0]["answers"][0]["tolerance"].update(steps=10**9), "1,000,000,000 steps proves nothing"),
        (lambda m: m["golden"][0]["answers"][0]["tolerance"].update(steps=-1), "proves nothing"),
        (lambda m: m["golden"][0]["answers"][0]["tolerance"].update(cosine=-1), "cosine -1 proves nothing"),
        (lambda m: m["golden"][0]["answers"][0]["outputs"].update(probs=m["artifacts"][0]["blob"]), "differs in size"),
        (lambda m: m["golden"][0]["inputs"].update(image=m["artifacts"][0]["blob"]), "'image' differs in size"),
        (lambda m: m["golden"][0]["answers"].append(m["golden"][0]["answers"][0]), "answers it twice"),
        (lambda m: m.update(name="../../etc/cron.d/x"), "is not a name of a bundle"),
        (lambda m: m.update(name="x" * 101), "is not a name of a bundle"),
        (lambda m: m.update(model_id="0"), "model_id is not a SHA-256"),
        (lambda m: m.update(contract_digest="0" * 64), "contract_digest is not that of the contract"),
        (lambda m: m.update(rollout_seq=-1), "rollout_seq is negative"),
        (lambda m: m.update(rollout_seq=float(2**53)), "is not an int"),
        (lambda m: m.update(expires="2027-01-31"), "'2027-01-31' is not a UTC date and time"),
        (
            lambda m: m.update(not_before="2027-01-31T00:00:00Z", expires="2027-01-31T00:00:00Z"),
            "expires before it becomes valid",
        ),
        (lambda m: m.update(compatible=["raspberry-pi-4", "raspberry-pi-4"]), "occurs twice"),
        (lambda m: m.update(compatible=["a/b"]), "is not a name of a profile"),
        (lambda m: m.update(promise={"p99_ms": 0}), "a promised figure is not positive"),
        (lambda m: m.update(version="1\u200b"), "is not a version: 1 to 100 ASCII characters"),
        (lambda m: m.update(version=" 1"), "is not a version"),
        (lambda m: m.update(licence="x" * 1001), "the licence has 1,001 characters"),
        (lambda m: m.update(licence=None), "None is not anything"),
        (lambda m: m.update(min_runtime="soon"), "min_runtime 'soon' is not a version"),
        (lambda m: m.update(min_runtime="0.2.0"), "needs edgekit 0.2.0 or newer, and this is 0.1.0"),
        (lambda m: m.update(requires=["telepathy"]), "reader lacks: telepathy"),
        (lambda m: m["target"].update(threads=0), "0 is not a number of threads"),
        (lambda m: m["contract"]["inputs"][0]["image"].update(std=[1, 0, 1]), "a std is zero"),
        (lambda m: m["contract"].update(labels=["x"] * 100_001), "more than 100,000 labels"),
    ],
)
def test_a_malformed_manifest_names_the_place(tmp_path, change, why):
    with pytest.raises(BundleError, match=why):
        read_bundle(edited(tmp_path, change))


def test_unknown_keys_of_a_newer_writer_are_ignored(tmp_path):
    path = edited(tmp_path, lambda m: m.update(colour="blue"))
    assert read_bundle(path).manifest.name == "tiny"
