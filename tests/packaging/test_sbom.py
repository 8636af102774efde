"""The bill of materials is one that other tools take, names every model file, and is the same for the same bundle."""

from __future__ import annotations

import json

import pytest
import tiny

from edgekit.packaging.assemble import BundleArtifact
from edgekit.packaging.bundle_options import BundleTerms
from edgekit.packaging.sbom import sbom
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import available

pytestmark = pytest.mark.skipif(
    not {"litert", "onnxruntime"} <= set(available()), reason="needs both LiteRT and ONNX Runtime"
)


@pytest.fixture
def bundle(tmp_path):
    terms = BundleTerms(licence="Apache-2.0 OR MIT", rollout_seq=3, expires="2030-01-01T00:00:00Z")
    path = tiny.bundle(tmp_path, terms=terms, alternates=[BundleArtifact(tiny.artifact("onnx-f32"))])
    return read_bundle(path)


def test_it_is_valid_by_the_schema_of_cyclonedx(bundle):
    pytest.importorskip("cyclonedx")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(sbom(bundle))) is None


def test_it_names_every_model_file_by_its_digest_and_the_engines_that_answered(bundle):
    told = sbom(bundle)
    files = [one for one in told["components"] if one["type"] == "machine-learning-model"]
    assert [one["hashes"][0]["content"] for one in files] == [one.blob for one in bundle.manifest.artifacts]
    libraries = {one["name"] for one in told["components"] if one["type"] == "library"}
    assert {"ai-edge-litert", "onnxruntime"} <= libraries
    assert told["metadata"]["component"]["licenses"] == [{"expression": "Apache-2.0 OR MIT"}]
    assert {"name": "edgekit:rollout_seq", "value": "3"} in told["metadata"]["component"]["properties"]


def test_the_same_bundle_gives_the_same_document_and_another_has_another_number(bundle, tmp_path):
    other = read_bundle(tiny.bundle(tmp_path, "onnx-f32"))
    assert sbom(bundle) == sbom(bundle)
    assert sbom(bundle)["serialNumber"] != sbom(other)["serialNumber"]


def test_a_licence_that_is_no_expression_is_named_as_it_was_written(tmp_path):
    told = sbom(read_bundle(tiny.bundle(tmp_path, terms=BundleTerms(licence="ours; see LICENCE.txt"))))
    assert told["metadata"]["component"]["licenses"] == [{"license": {"name": "ours; see LICENCE.txt"}}]
