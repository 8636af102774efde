"""What a person types of a bundle's terms is what the manifest says, or it is refused by the option's name."""

from __future__ import annotations

import sys

import pytest
import tiny
from click.testing import CliRunner

from edgekit.cli.main import cli
from edgekit.packaging.bundle_options import BundleTerms, checked_terms, refuse_past
from edgekit.packaging.output_errors import PackagingError
from edgekit_runtime.bundle.manifest import Promise
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.bundle.trust_store import seconds_of
from edgekit_runtime.engines.registry import available


@pytest.mark.skipif("litert" not in available(), reason="needs LiteRT")
def test_the_terms_travel(tmp_path):
    terms = checked_terms(
        BundleTerms(
            licence=" Apache-2.0 ",
            rollout_seq=7,
            not_before="2027-01-01",
            expires="2027-12-31T12:00:00Z",
            compatible=("raspberry-pi-5", "x86-64", "raspberry-pi-4"),
        )
    )
    manifest = read_bundle(tiny.bundle(tmp_path, terms=terms, promise=Promise(1.5, 2.0, 60.0))).manifest
    assert (manifest.licence, manifest.rollout_seq) == ("Apache-2.0", 7)
    assert (manifest.not_before, manifest.expires) == ("2027-01-01T00:00:00Z", "2027-12-31T12:00:00Z")
    assert manifest.compatible == ("x86-64", "raspberry-pi-4", "raspberry-pi-5")
    assert manifest.promise == Promise(1.5, 2.0, 60.0)


def test_without_any_the_bundle_is_for_its_own_board(tmp_path):
    assert BundleTerms().boards("raspberry-pi-4") == ("raspberry-pi-4",)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"licence": ""}, "--licence"),
        ({"licence": "a\nb"}, "--licence"),
        ({"licence": "x" * 1001}, "--licence"),
        ({"rollout_seq": -1}, "--rollout-seq"),
        ({"rollout_seq": 2**53}, "--rollout-seq"),
        ({"expires": "tomorrow"}, "--expires"),
        ({"expires": "2027-02-30"}, "--expires"),
        ({"expires": "2027-01-01T00:00:00+01:00"}, "--expires"),
        ({"not_before": "2027-13-01"}, "--not-before"),
        ({"not_before": "2027-01-02", "expires": "2027-01-02"}, "--expires"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_option(given, option):
    with pytest.raises(PackagingError) as refused:
        checked_terms(BundleTerms(**given))
    assert refused.value.where == option
    assert refused.value.do


NOON = seconds_of("2027-01-31T12:00:00Z")


@pytest.mark.parametrize("expires", [None, "2027-02-01", "2027-01-31T12:00:01Z"])
def test_what_a_board_could_still_install_is_built(expires):
    refuse_past(checked_terms(BundleTerms(expires=expires)), NOON)


@pytest.mark.parametrize("expires", ["2026-01-01", "2027-01-31", "2027-01-31T12:00:00Z"])
def test_what_no_board_could_install_any_more_is_refused_by_the_clock_that_is_named(expires):
    with pytest.raises(PackagingError, match=r"is past.*it is 2027-01-31T12:00:00Z by this machine's clock") as refused:
        refuse_past(checked_terms(BundleTerms(expires=expires)), NOON)
    assert refused.value.where == "--expires"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a build needs Python 3.11")
def test_the_build_asks_before_any_work(tmp_path):
    asked = ["build", "net.keras", "--profile", "x86-64", "--expires", "2026-01-01", "-o", str(tmp_path / "out")]
    refused = CliRunner().invoke(cli, asked).exception
    assert isinstance(refused, PackagingError)
    assert "2026-01-01T00:00:00Z is past" in refused.what
    assert not (tmp_path / "out").exists()


def test_a_moment_has_one_spelling_and_comes_back():
    from edgekit_runtime.bundle.trust_store import moment_of

    assert seconds_of("1970-01-01T00:00:01Z") == 1
    assert moment_of(seconds_of("2027-01-31T23:59:59Z") + 0.9) == "2027-01-31T23:59:59Z"
    for other in (
        "2027-01-31",
        "2027-01-31T00:00:00",
        "2027-01-31t00:00:00Z",
        "2027-01-31T24:00:00Z",
        "٢٠٢٧-01-31T00:00:00Z",
    ):
        assert seconds_of(other) is None
