"""The corpus is what its script writes, and the reader refuses each of its bad bundles with one typed error in one
line.
"""

from __future__ import annotations

import pytest
from hostile.board import told
from hostile.cases import CASES, GOOD, Case
from hostile.make_corpus import CORPUS, DIGESTS, corpus, digests

from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.modelfile.check import check_artifact
from edgekit_runtime.system.errors import BundleError

pytest.importorskip("rfc8785", reason="the corpus is written as bundles are: pip install rfc8785")


def test_the_corpus_has_the_digests_that_are_checked_in():
    written, there = digests(corpus()), {path: path.read_bytes() for path in CORPUS.rglob("*") if path.is_file()}
    assert written == DIGESTS.read_text(), "run: python tests/hostile/make_corpus.py"
    assert digests({path.relative_to(CORPUS).as_posix(): data for path, data in there.items()}) == written, (
        "rm -r build"
    )


@pytest.mark.parametrize("case", [case for case in CASES if case.reader], ids=lambda case: case.file)
def test_a_bad_bundle_is_refused_by_the_reader(case: Case):
    """S14"""
    path = CORPUS / "bad" / case.file
    with pytest.raises(BundleError, match=case.says or ".") as caught:
        read_bundle(path, trust=CORPUS / case.root)
    assert caught.value.code == case.code
    assert path.name in told(caught.value) or case.root in told(caught.value)


@pytest.mark.parametrize("case", [case for case in CASES if case.code == "model-file"], ids=lambda case: case.file)
def test_a_bad_model_file_is_refused_before_an_engine_sees_it(case: Case):
    """S15"""
    bundle = read_bundle(CORPUS / "bad" / case.file, trust=CORPUS / case.root)
    with pytest.raises(BundleError, match=case.says or ".") as caught:
        check_artifact(bundle, bundle.artifact())
    assert caught.value.code == case.code
    assert case.file in told(caught.value)


@pytest.mark.parametrize("name", [name for name in GOOD if name != "unsigned.ekb"])
def test_a_good_bundle_is_read(name):
    bundle = read_bundle(CORPUS / "good" / name, trust=CORPUS / "root.json")
    assert bundle.trusted
    check_artifact(bundle, bundle.artifact())


def test_two_signatures_are_enough_where_two_are_asked_for():
    assert read_bundle(CORPUS / "good" / "signed-by-two.ekb", trust=CORPUS / "root-2of2.json").trusted
