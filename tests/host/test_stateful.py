"""A model that keeps a state is not served: two requests have nothing in common."""

from __future__ import annotations

import memory
import pytest

from edgekit.host.http1 import ServeError
from edgekit.host.models import Repository


@pytest.mark.parametrize("kind", memory.HERE)
def test_a_stateful_bundle_is_refused(tmp_path, kind):
    with pytest.raises(ServeError, match=r"the model is stateful.* model\.session\(\)"):
        Repository.open([memory.bundle(tmp_path, kind)])
