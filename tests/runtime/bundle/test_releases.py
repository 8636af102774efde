"""Bundles of every release open, or are refused by name.

A reader written from the document alone agrees about all.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from pathlib import Path

import pytest
import rfc8785
from hostile.make_corpus import CORPUS
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples
from refusing import has_code

from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.manifest import FORMAT_VERSION
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.bundle.secrets import Secret
from edgekit_runtime.engines.registry import available
from edgekit_runtime.system.errors import BundleError

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
RELEASES = ROOT / "tests" / "releases"
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(RELEASES))

import independent
import make as releases

KEY = RELEASES / "signer.pub.pem"
# name -> None where 0.1.0 opens it, else words of its refusal
EXPECTED = {
    "0.1.0-unsigned": None,
    "0.1.0-signed": None,
    "0.1.0-encrypted": None,
    "future-unknown-keys": None,
    "future-requires": "reader lacks: holograms",
    "future-min-runtime": "needs edgekit 9.0.0 or newer",
    "future-format": "bundle format 2 is not 1",
}
OPEN = [name for name, refusal in EXPECTED.items() if refusal is None]
NEWER = [name for name, refusal in EXPECTED.items() if refusal is not None]
HOSTILE = sorted(CORPUS.rglob("*.ekb"))


def path(name: str) -> Path:
    return RELEASES / f"{name}.ekb"


def test_every_bundle_of_the_folder_is_expected_and_small():
    assert {one.stem for one in RELEASES.glob("*.ekb")} == EXPECTED.keys()
    assert sum(one.stat().st_size for one in RELEASES.glob("*.ekb")) < 100_000


@pytest.mark.parametrize("name", OPEN)
def test_what_a_release_wrote_opens_and_answers(name):
    if "litert" not in available() and "tflite-runtime" not in available():
        pytest.skip("no TFLite engine is installed")
    trust = () if name.endswith("unsigned") else KEY
    with open_bundle(path(name), trust=trust, secret=Secret([releases.SECRET])) as model:
        answer = model.predict(_picture(read_bundle(path(name), secret=Secret([releases.SECRET]))))
        assert answer.top(1)[0].label == "red"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("changed") / "x.ekb"


def _picture(bundle):
    (golden,) = bundle.manifest.golden
    return bundle.golden_items(golden)["image"]


@pytest.mark.parametrize("name", NEWER)
def test_what_asks_for_a_newer_reader_is_refused_in_so_many_words(name):
    with pytest.raises(BundleError, match=EXPECTED[name], check=has_code("bundle-newer")) as refused:
        read_bundle(path(name))
    assert refused.value.code == "bundle-newer"
    assert "Upgrade" in refused.value.do


@pytest.mark.parametrize("name", NEWER)
def test_a_newer_bundle_is_called_newer_whatever_else_is_new_in_it(name, tmp_path):
    def stranger(manifest):
        manifest["artifacts"][0] = {"role": "hologram", "format": "gguf"}
        manifest["target"] = 7

    data = releases.changed(path(name).read_bytes(), stranger)
    (tmp_path / "x.ekb").write_bytes(data)
    with pytest.raises(BundleError, check=has_code("bundle-newer")):
        read_bundle(tmp_path / "x.ekb")


def test_keys_that_are_not_known_are_ignored_and_stay_part_of_every_digest():
    strange, plain = (read_bundle(path(name)).manifest for name in ("future-unknown-keys", "0.1.0-signed"))
    assert strange.contract == plain.contract
    assert strange.contract_digest != plain.contract_digest
    assert [entry.blob for entry in strange.artifacts] == [entry.blob for entry in plain.artifacts]


def test_the_generator_makes_what_is_kept(tmp_path):
    """Of the future ones, byte for byte; a release's own are kept, because a later writer may write more."""
    for kept in RELEASES.glob("0.1.0-*.ekb"):
        (tmp_path / kept.name).write_bytes(kept.read_bytes())
    assert {*releases.write(tmp_path)} == {"signer.pub.pem", *(f"{name}.ekb" for name in EXPECTED if "future" in name)}
    for made in tmp_path.iterdir():
        assert made.read_bytes() == (RELEASES / made.name).read_bytes()
    assert releases.write(tmp_path) == []


def test_the_page_says_what_is_promised_of_releases():
    page = (ROOT / "docs" / "bundle-format.md").read_text(encoding="utf-8")
    assert "Every release opens the bundles of all releases before it" in page
    assert FORMAT_VERSION == 1


# -- the reader that was written from the page
# --------------------------------------------------------------------------


def _theirs(file: Path, **options) -> tuple[str, object]:
    try:
        opened = independent.read(file, **options)
        return "opens", (opened.digest, opened.keyids, opened.manifest["name"], opened.blobs)
    except independent.Refused as refused:
        return ("newer", None) if refused.newer else ("refused", None)


def _ours(file: Path, **options) -> tuple[str, object]:
    try:
        opened = read_bundle(file, **options)
        found = {blob.sha256: opened.blob(blob.sha256) for blob in opened.manifest.blobs if not opened.locked}
        return "opens", (opened.digest, opened.signed_by, opened.manifest.name, found)
    except BundleError as error:
        return "newer" if error.code == "bundle-newer" else "refused", None


def test_the_other_reader_knows_nothing_of_this_one():
    tree = ast.parse((HERE / "independent.py").read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in imported if "edgekit" in name]


@pytest.mark.parametrize("name", EXPECTED)
def test_the_reader_of_the_page_agrees_about_every_release(name):
    ours = _ours(path(name), secret=Secret([releases.SECRET]))
    assert _theirs(path(name), key=releases.SECRET) == ours
    assert ours[0] == ("opens" if name in OPEN else "newer")


def test_it_agrees_about_signatures_and_keys():
    public = releases._public()
    assert independent.read(path("0.1.0-signed"), public=public).signed
    assert _theirs(path("0.1.0-unsigned"), public=public)[0] == "refused"
    assert _theirs(path("0.1.0-signed"), public=bytes(32))[0] == "refused"
    assert _theirs(path("0.1.0-encrypted"), key=bytes(32))[0] == "refused"
    assert independent.read(path("0.1.0-encrypted")).blobs == {}


@pytest.mark.parametrize("file", HOSTILE, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_it_agrees_about_bundles_of_bad_intent(file):
    """Both judge the file alone here: who signed it, and what its model file does to an engine, is asked elsewhere."""
    assert _theirs(file)[0] == _ours(file)[0]


VALUES = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        1,
        float(2**53),
        0.5,
        1e300,
        "",
        "x",
        "../x",
        "a" * 501,
        "f" * 64,
        [],
        [1],
        ["x"],
        ["x", "x"],
        {},
        {"x": 1},
    ]
)


@settings(max_examples=examples(250))
@given(st.data())
def test_it_agrees_about_any_value_in_any_place(scratch, data):
    """One value of a good manifest is replaced, or taken away; the contract's digest mostly follows."""
    name, follows = data.draw(st.sampled_from(OPEN)), data.draw(st.integers(0, 4))

    def change(manifest):
        _mutate(manifest, data)
        if isinstance(manifest.get("contract"), dict) and follows:
            manifest["contract_digest"] = hashlib.sha256(rfc8785.dumps(manifest["contract"])).hexdigest()

    scratch.write_bytes(releases.changed(path(name).read_bytes(), change))
    assert _ours(scratch)[0] == _theirs(scratch)[0], _reasons(scratch)


def _mutate(place, data):
    keys = [*place] if isinstance(place, dict) else [*range(len(place))]
    key = data.draw(st.sampled_from(keys))
    inner = place[key]
    if isinstance(inner, (dict, list)) and inner and data.draw(st.integers(0, 3)):
        _mutate(inner, data)
    elif data.draw(st.booleans()):
        place[key] = data.draw(VALUES)
    else:
        del place[key]


def _reasons(file: Path) -> list[str]:
    told = []
    for read in (read_bundle, independent.read):
        try:
            read(file)
            told.append("opens")
        except (BundleError, independent.Refused) as error:
            told.append(str(error))
    return told
