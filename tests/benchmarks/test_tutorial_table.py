"""The tutorial table: a row is measured through edgekit and through the engine alone, the chain through a host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgekit_runtime.bundle.reader import read_bundle

FOLDER = Path(__file__).parents[2] / "benchmarks" / "tutorial_table"
pytestmark = pytest.mark.convert


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    """A convolution of a picture in a bundle for x86-64, by `edgekit build`."""
    keras = pytest.importorskip("keras")
    from conftest import run_edgekit

    folder = tmp_path_factory.mktemp("table")
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 3))
    pooled = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3)(image))
    keras.Model(image, keras.layers.Dense(10)(pooled)).save(folder / "net.keras")
    (folder / "net.contract.toml").write_text('task = "raw"\n')
    command = ("build", "net.keras", "--profile", "x86-64", "--recipe", "onnx-f32", "--allow-random", "-o", ".")
    assert run_edgekit(*command, cwd=folder).code == 0
    return folder / "net-x86-64.ekb"


def printed(*arguments: object) -> dict:
    done = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("items", [1, 4])
@pytest.mark.parametrize("way", ["edgekit", "raw"])
def test_a_row_has_the_time_of_a_call_items_a_second_and_resident_memory(bundle, tmp_path, way, items):
    read = read_bundle(bundle)
    (tmp_path / "model.onnx").write_bytes(read.blob(read.artifact().blob))
    path = bundle if way == "edgekit" else tmp_path / "model.onnx"
    found = printed(FOLDER / "measure.py", way, path, "--items", items, "--calls", 5)
    assert found["engine"] == "onnxruntime"
    assert found["min_ms"] <= found["p50_ms"] <= found["p99_ms"]
    assert found["per_s"] == pytest.approx(items * 1e3 / found["min_ms"])
    assert found["cpu_ms"] > 0
    assert 10 < found["resident_mb"] <= found["peak_mb"]


def test_the_stages_of_the_chain_add_up_to_the_request(bundle):
    found = printed(FOLDER / "chain.py", bundle, "--calls", 5)
    stages = [found[name] for name in ("input", "queue", "transfer", "inference", "output")]
    assert min(found["input"], found["transfer"], found["inference"]) > 0
    assert sum(stages) == pytest.approx(found["total"], rel=0.05)


def test_the_page_has_every_row_and_says_of_a_gpu_that_it_was_not_measured(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import table

    figures = {"min_ms": 2.0, "cpu_ms": 2.0, "per_s": 500.0, "resident_mb": 100.0}
    rows = [
        {"title": row.title, "recipe": row.recipe, "claimed": row.claimed, "file_mb": 1.0, "edgekit": figures}
        | {"raw": figures | {"cpu_ms": 8.0 if row.title in ("FP32", "TFLite FP32") else 2.0}}
        for row in table.ROWS
    ]
    found = {
        "conditions": {"side": 224, "threads": 1, "cpu": "cpu", "cores": 2, "load": 0, "rounds": 5, "calls": 30},
        "macs": {"resnet50": 400, "student": 4},
        "rows": rows,
        "chain": dict.fromkeys((*table.CHAIN, "total"), 1.0),
    }
    page = table.page(found)
    assert all(f"| {row.title}, " in page for row in table.ROWS)
    assert page.count("not measured") == 7
    assert "| INT8 is 4x faster than FP32 | 4.00x | 4.00x |" in page
    assert "| 50 % sparsity is 2x faster | 4.00x | 4.00x |" in page
    assert "100 times fewer products" in page


def test_what_was_measured_is_kept_so_that_the_same_command_resumes(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(FOLDER))
    import table

    calls = ["-c", "import json; print(json.dumps({'min_ms': 2.0}))"]
    kept = table.Kept(tmp_path / "measured.json", lambda: False)
    assert kept.get("0 FP32 raw", calls)["min_ms"] == 2.0
    again = table.Kept(tmp_path / "measured.json", lambda: True)
    assert again.get("0 FP32 raw", ["-c", "raise SystemExit(1)"])["min_ms"] == 2.0
    with pytest.raises(table._OutOfTimeError):
        again.get("1 FP32 raw", calls)


def test_a_row_is_its_fastest_process_with_the_median_of_memory(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import table

    runs = [
        {"min_ms": ms, "per_s": 1e3 / ms, "resident_mb": mb} for ms, mb in ((4.0, 90.0), (2.0, 300.0), (5.0, 100.0))
    ]
    assert table.best(runs) == {"min_ms": 2.0, "per_s": 500.0, "resident_mb": 100.0, "min_ms_runs": [4.0, 2.0, 5.0]}


def test_half_of_the_weights_are_zero_where_the_table_says_so(monkeypatch):
    pytest.importorskip("keras")
    monkeypatch.syspath_prepend(str(FOLDER))
    import networks

    kernels = [w for w in networks.network("halved", 32).get_weights() if w.ndim > 1]
    zeros = sum(int(np.sum(kernel == 0)) for kernel in kernels)
    assert zeros / sum(kernel.size for kernel in kernels) == pytest.approx(0.5, abs=0.01)
