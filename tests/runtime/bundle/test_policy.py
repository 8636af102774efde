"""Which reader opens which bundle: by version, by feature, and never by a key that it does not know."""

from __future__ import annotations

import pytest

import edgekit
from edgekit_runtime.bundle.manifest import RUNTIME_VERSION, check_reader
from edgekit_runtime.system.errors import BundleError

CASES = [
    ("0.1.0", "0.1.0", True),
    ("0.1.0", "0.2.0", True),
    ("0.1.9", "0.1.10", True),
    ("0.2.0", "0.1.0", False),
    ("0.10.0", "0.9.0", False),
    ("1.0.0", "0.99.99", False),
]


@pytest.mark.parametrize(("needed", "reader", "opens"), CASES)
def test_a_reader_opens_what_needs_no_newer_one(needed, reader, opens):
    if opens:
        check_reader(needed, (), "x.ekb", version=reader)
        return
    with pytest.raises(BundleError, match=f"needs edgekit {needed} or newer, and this is {reader}. Upgrade"):
        check_reader(needed, (), "x.ekb", version=reader)


@pytest.mark.parametrize(
    "text", ["", "1", "0.1", "0.1.0rc1", "v0.1.0", "0.1.0.0", "00.1.0", "0.1.-1", "9" * 50 + ".0.0", "٠.1.0"]
)
def test_what_is_no_version_is_refused(text):
    with pytest.raises(BundleError, match="is not a version"):
        check_reader(text, (), "x.ekb")


def test_a_feature_that_is_not_known_is_refused_by_name():
    check_reader("0.1.0", ("encrypted-blobs",), "x.ekb")
    with pytest.raises(BundleError, match=r"reader lacks: holograms, telepathy\. Upgrade"):
        check_reader("0.1.0", ("telepathy", "encrypted-blobs", "holograms"), "x.ekb")


def test_the_reader_says_the_version_that_is_released():
    assert edgekit.__version__ == RUNTIME_VERSION
