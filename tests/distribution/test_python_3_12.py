"""What boards run is tested on Python 3.12, too."""

from __future__ import annotations

import pytest
from distribution.other_pythons import LIMIT_S, passes_on


@pytest.mark.network
@pytest.mark.timeout(LIMIT_S + 300)
def test_the_runtime_passes_its_suite_on_python_3_12(wheel, uv, tmp_path):
    passes_on("3.12", wheel, uv, tmp_path)
