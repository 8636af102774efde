"""docs/bundle-manifest.schema.json is what the reader's types say, and every bundle of a release keeps it."""

from __future__ import annotations

import json
from pathlib import Path

import bundle_schema
import pytest

from edgekit_runtime.bundle.header import read_header

ROOT = Path(__file__).parents[2]
RELEASES = sorted((ROOT / "tests" / "releases").glob("*.ekb"))
OF_NO_FORMAT_1 = {"future-format"}


@pytest.fixture(scope="module")
def validator():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(bundle_schema.FILE.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def manifest(path: Path) -> dict:
    return json.loads(read_header(path.read_bytes(), path.name).manifest_bytes)


def test_the_schema_is_up_to_date():
    wrong = "docs/bundle-manifest.schema.json is out of date: run python tests/support/bundle_schema.py"
    assert bundle_schema.FILE.read_text(encoding="utf-8") == bundle_schema.text(), wrong


@pytest.mark.parametrize("path", RELEASES, ids=lambda path: path.stem)
def test_a_released_bundle_is_valid_and_one_of_another_format_is_not(validator, path):
    assert validator.is_valid(manifest(path)) == (path.stem not in OF_NO_FORMAT_1)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(rollout_seq=-1),
        lambda m: m.update(expires="tomorrow"),
        lambda m: m.update(name="../x"),
        lambda m: m["artifacts"][0].update(role="hologram"),
        lambda m: m["artifacts"][0].update(bytes="7"),
        lambda m: m["golden"][0]["answers"][0]["tolerance"].update(steps=10**9),
        lambda m: m["blobs"][0].update(offset=7),
        lambda m: m["contract"]["inputs"][0]["image"].update(crop=0),
        lambda m: m.pop("target"),
    ],
)
def test_it_finds_what_breaks_the_format(validator, change):
    value = manifest(ROOT / "tests" / "releases" / "0.1.0-signed.ekb")
    change(value)
    assert not validator.is_valid(value)


def test_every_field_of_the_schema_stands_in_the_page():
    page = (ROOT / "docs" / "bundle-format.md").read_text(encoding="utf-8")
    kinds = bundle_schema.schema()["$defs"].values()
    assert [name for kind in kinds for name in kind["properties"] if f"`{name}`" not in page] == []
