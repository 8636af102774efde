"""docs/errors.md is the tree of errors in the code."""

from __future__ import annotations

import pickle

import errors_page
import pytest

from edgekit_runtime import EdgekitError
from edgekit_runtime.system import errors
from edgekit_runtime.system.errors import InstallError


def test_the_page_is_up_to_date():
    wrong = "docs/errors.md is out of date: run python tests/support/errors_page.py"
    assert errors_page.FILE.read_text(encoding="utf-8") == errors_page.text(), wrong


def test_every_error_that_may_reach_an_application_is_in_one_module_of_at_most_30_classes():
    code = {kind.__name__ for _, kind in errors_page.errors()}
    assert code >= errors_page.WITHIN
    public = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, EdgekitError)}
    assert code - errors_page.WITHIN <= public
    assert len(public) <= 30


def test_no_code_stands_for_two_reasons():
    kinds = [EdgekitError, *(kind for _, kind in errors_page.errors())]
    codes = [code for kind in kinds if hasattr(errors, kind.__name__) for code in (kind.code, *kind.reasons)]
    assert len(codes) == len(set(codes))


def test_an_error_may_carry_only_the_codes_of_its_class():
    with pytest.raises(ValueError, match="no-such"):
        InstallError("x", code="no-such")
    carried = pickle.loads(pickle.dumps(InstallError("x", where="y", code="downgrade")))
    assert (type(carried), carried.code, carried.where) == (InstallError, "downgrade", "y")
    assert errors.from_json(carried.as_json(), EdgekitError).as_json() == carried.as_json()
