"""The benchmark of a GPU's engines, as far as a machine without one carries it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgekit_runtime.engines import cuda

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks" / "fallback"))
gpu = pytest.importorskip("gpu")


@pytest.mark.skipif(not cuda.absent(), reason="here is a GPU")
def test_without_a_gpu_it_says_so_and_ends_well():
    done = subprocess.run([sys.executable, gpu.__file__], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.startswith("no GPU: ")) == (0, True)


def test_the_network_has_the_shape_of_resnet_50_and_finite_answers():
    pytest.importorskip("onnx")
    whole, small = gpu.resnet(), gpu.resnet((1, 1, 1, 1), width=8, side=32)
    assert 50e6 < len(whole) < 52e6  # 25.6 million weights in float16
    answers = gpu.golden(small, 32)
    assert [one.shape for one in answers.values()] == [(1, 1000), (8, 1000)]
    assert all(np.isfinite(one).all() and one.std() > 0 for one in answers.values())


def test_an_engine_that_does_not_run_is_a_row_with_its_reason():
    pytest.importorskip("onnx")
    rows = gpu.engine_rows("tensorrt", b"", 32, {})
    assert [(row.batch, row.p50_ms) for row in rows] == [(1, None), (8, None)]
    assert rows[0].why in gpu.table(rows)


def test_the_table_compares_with_eager_batch_by_batch():
    rows = [
        gpu.Row("torch eager", "2", 1, None, 2.0, 3.0, 1.0, True),
        gpu.Row("torch-cuda", "2", 1, 5.0, 0.5, 0.7, 0.9999, True),
    ]
    assert "| torch-cuda 2 | 1 | 0.500 | 0.700 | 0.25 | 5.0 | 0.99990 | True |" in gpu.table(rows)
    wrong = gpu.judged(gpu.Row("x", "1", 1), np.array([[1.0, np.nan]]), np.array([[1.0, 2.0]]))
    assert wrong.cosine != wrong.cosine
