"""The estimate's benchmark: what it reads, that nothing is predicted by what it was fitted to, and what the product
holds.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "benchmarks" / "estimate"
TABLE = ROOT / "device_profiles" / "edgekit_profiles" / "roofline.toml"
ENGINES = TABLE.with_name("engines.toml")


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


def test_the_table_has_its_rows_and_every_row_its_source():
    from published import read

    rows = read()
    assert (len(rows), len({row.site for row in rows}), len({row.machine.core for row in rows})) == (1514, 50, 10)
    assert all(row.source for row in rows)


def test_rows_that_no_fit_reads_judge_what_the_product_says():
    """Fourteen times of a Pixel 4 and an Oppo Reno 3, of which the second is a board that no row of the fit is of."""
    from held_out import never_fitted
    from published import NEVER_FITTED, read

    rows = read(NEVER_FITTED)
    assert (len(rows), {row.framework for row in rows}) == (14, {"xnnpack"})
    assert {row.site for row in rows} - {row.site for row in read()} == {"Oppo Reno 3"}
    found = never_fitted(rows, tomllib.loads(TABLE.read_text(encoding="utf-8")))
    inside = {way: (int(one.inside().sum()), len(one.rows)) for way, one in found.items()}
    assert inside == {"estimated": (12, 14), "carried": (9, 10), "blended": (10, 10)}
    assert np.median(found["estimated"].error()) < 20
    assert np.median(found["blended"].error()) < 10


def test_ncnns_times_of_networks_that_no_fit_reads_lie_in_the_range():
    """Twelve of YOLOv8 and YOLO11 on a Pi 4, a Pi 5 and an RK3588: judged, never fitted."""
    from networks import NETWORKS
    from stand_in import ncnn_unread

    rows = ncnn_unread()
    assert len(rows) == 12
    assert {row["network"] for row in rows}.isdisjoint(NETWORKS)
    assert all(row["inside"] for row in rows)
    assert 1.0 < np.median([row["ratio"] for row in rows]) < 1.3


# Millions, from the papers and from keras.applications: multiply-accumulates and parameters.
SIZES = {
    "mobilenet_v1_1.0_224": (569, 4.21),
    "mobilenet_v2_1.0_224": (301, 3.47),
    "mobilenet_v3_large_224": (217, 5.45),
    "efficientnet_lite0_224": (385, 4.61),
    "efficientnet_b0_224": (386, 5.24),
    "resnet50_224": (3858, 25.50),
    "resnet18_224": (1814, 11.68),
}


@pytest.mark.parametrize("name", SIZES)
def test_networks_have_their_published_size(name: str):
    from networks import workload

    work = workload(name)
    assert (round(work.macs / 1e6), round(work.weights / 1e6, 2)) == SIZES[name]


# Inception V3 from keras.applications; YOLO from Ultralytics' tables (8.7, 28.6, 6.5, 21.5 GFLOP: two a product).
OTHER_SIZES = {
    "inception_v3_299": (5713, 23.80),
    "yolov8n_640": (4371, 3.15),
    "yolov8s_640": (14301, 11.15),
    "yolo11n_640": (3271, 2.61),
    "yolo11s_640": (10794, 9.43),
}


@pytest.mark.parametrize("name", OTHER_SIZES)
def test_networks_that_only_onnx_runtime_was_timed_with_have_their_published_size(name: str):
    from other_networks import OTHERS

    ops = OTHERS[name]().ops
    size = sum(op.macs for op in ops) / 1e6, sum(op.weight_elements for op in ops) / 1e6
    assert (round(size[0]), round(size[1], 2)) == OTHER_SIZES[name]


def test_the_factor_of_onnx_runtime_is_what_its_published_times_give_and_each_board_keeps_the_others_range():
    from fit import Fit
    from published import read
    from stand_in import judged, spread

    *rows, whole = judged(Fit(read()))
    assert (len(rows), len({row["board"] for row in rows})) == (9, 3)
    assert all(row["inside"] for row in rows)
    least, factor, most = tomllib.loads(ENGINES.read_text(encoding="utf-8"))["stand_ins"]["onnxruntime"][
        "convolutional"
    ]
    assert factor == pytest.approx(whole["factor"], rel=0.01)
    assert (least / factor, most / factor) == pytest.approx(spread(), rel=0.01)


def test_the_anchor_is_the_products_own():
    from networks import workload

    from edgekit_profiles import mobilenet_v1

    ours = [replace(op, name="") for op in mobilenet_v1("float32").ops]
    assert list(workload("mobilenet_v1_1.0_224").ops) == ours


def test_roofline_toml_is_what_the_fit_gives_and_the_product_computes_what_was_fitted():
    from fit import Fit
    from held_out import ANCHORING, apart, tested
    from later import later_cores
    from published import read, terms
    from table import differences

    held = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    fit = Fit(read())
    x = fit.solve(fit.all)
    fitted = fit.constants(x)
    bands = held.pop("bands")
    later = later_cores(fit, x).tables()
    assert {core: table["boards"] for core, table in later.items()} == dict.fromkeys(later, 1)
    fitted["cores"] |= later
    assert (
        list(differences(held, fitted | {"anchoring": ANCHORING, "tested": tested(fit.rows), "apart": apart(fit)}))
        == []
    )
    some = fit.all[:: 1 if os.environ.get("CI") == "true" else 7]
    product = [sum(terms(fit.rows[i], fitted).values()) for i in some]
    assert product == pytest.approx(fit.ms(x, some))
    assert all(low < 1 < high for low, high in bands.values())


def test_phones_leave_every_board_as_it_was_and_are_judged_by_networks_that_they_did_not_see():
    from fit import Fit
    from later import later_cores
    from published import LATER, read

    fit = Fit(read())
    x = fit.solve(fit.all)
    later = later_cores(fit, x)
    assert {row.machine.core.removeprefix("cortex-") for row in later.fit.rows} == {*LATER}
    assert len(later.fit.rows) == 76
    settled = dict(zip(later.fit.names, later.fit.solve(later.fit.all), strict=True))
    assert all(
        settled[name] == pytest.approx(value, abs=1e-3) for name, value in later.known.items() if name in settled
    )
    before = {core: np.median(one.error()) for core, one in later.unseen().items()}
    after = {core: np.median(one.error()) for core, one in later.new_network().items()}
    assert all(one < 20 for one in after.values())
    assert max(before.values()) > 90  # what a core of which nothing was published would get


def test_a_board_that_is_left_out_has_no_part_in_its_own_prediction():
    from fit import Fit
    from held_out import errors
    from published import read

    rows = read()
    slower = [replace(row, ms=10 * row.ms) if row.site == "Raspberry Pi 4B" else row for row in rows]
    told = []
    for table in (rows, slower):
        fit = Fit(table)
        left = np.array([row.site == "Raspberry Pi 4B" for row in table])
        test = fit.all[left]
        error = errors(fit, fit.solve(fit.all[~left]), test)
        told.append(np.log([table[i].ms for i in test]) - error["estimated"])
    assert len(told[0]) > 5
    assert told[0] == pytest.approx(told[1])


def test_a_band_holds_the_next_error_as_often_as_it_says():
    from held_out import CONFIDENCE, band

    random = np.random.default_rng(5)
    inside = []
    for _ in range(400):
        drawn = random.normal(0.1, 0.3, 60)
        low, high = band(drawn[:-1], np.zeros(59, bool) | (np.arange(59) % 2 == 0))
        inside.append(np.log(low) <= drawn[-1] <= np.log(high))
    assert CONFIDENCE - 0.04 < np.mean(inside) < 1.0


def test_what_differs_between_two_tables_is_named():
    from table import differences, rounded, written

    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    assert tomllib.loads(written(rounded(table))) == table
    other = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    other["cores"]["cortex-a53"]["int8"] *= 1.05
    del other["bands"]["blended"]
    found = list(differences(table, other))
    assert [line.split(":")[0].split(" ")[0] for line in found] == ["bands.blended", "cores.cortex-a53.int8"]
