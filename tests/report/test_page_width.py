"""The page in a real browser: no column leaves it, on a desk or on a phone."""

from __future__ import annotations

from typing import Any

import pytest
from reported import ESTIMATE, FIDELITY, report

from edgekit.report.compress_page import page
from edgekit.report.html import html

OUTSIDE = """
const edge = document.documentElement.clientWidth;
document.querySelectorAll("details").forEach((part) => { part.open = true; });
return [...document.querySelectorAll("th, td, p, li, pre, small, .chart, .card, svg.plot")]
  .filter((part) => part.getBoundingClientRect().right > edge + 1)
  .map((part) => part.outerHTML.slice(0, 80));
"""


def share(value: float) -> dict[str, Any]:
    return {"value": value, "ci95": [value - 0.012, value + 0.011], "items": 500}


def full() -> dict[str, Any]:
    """Every table, with the longest names that recipes, boards, outputs and tensors have."""
    output = {
        "name": "StatefulPartitionedCall_classification_head", "kind": "classes", "agreement": share(0.97),
        "agreement_top5": share(0.98), "agreement_sure": share(0.98), "cosine": 0.9981, "cosine_ci95": [0.9975, 0.9986],
        "sqnr_db": 22.9, "worst": 0.314159, "loss": 0.03, "measure": "agreement",
    }  # fmt: skip
    top5 = {
        "metric": "top5", "original": 0.99, "artifact": 0.98, "drop": 0.01, "ci95": [-0.002, 0.02],
        "higher_is_better": True,
    }  # fmt: skip
    fidelity = {**FIDELITY, "outputs": [output], "scores": [top5], "uncounted": ["custom TFLite_Detection_PostProcess"]}
    long = "tflite-int8-per-tensor-mixed-before"
    attempt = {
        "remedy": "channels equalised, weights rounded by error", "recipe": long, "float_layers": 12,
        "float_macs": 0.123, "noise_db": 21.2, "drop": 0.0123, "failed": "",
    }  # fmt: skip
    story = {"of": long, "recipe": long, "met": True, "why": "it keeps the limit", "drop": 0.0123, "plan": {},
             "tried": [attempt]}  # fmt: skip
    made = [
        {"recipe": name, "bytes": 5_272_056, "fidelity": fidelity, "tools": {}, "repair": story,
         "file": "mine/mobilenet_v3_large_full_integer_quant.tflite" if name.endswith(".tflite") else None,
         "plan": {"ranges": "percentile", "steps": ["equalise", "round"], "float_layers": ["head", "stem"]}}
        for name in (long, "tflite-dynamic", "onnx-int8-qdq-symmetric-mixed",
                     "mobilenet_v3_large_full_integer_quant.tflite")
    ]  # fmt: skip
    bundles = [
        {
            **report()["bundles"][0], "profile": name, "recipe": long, "notes": ["a note " * 30],
            "candidates": [{"recipe": one["recipe"], "estimate": ESTIMATE} for one in made],
            "refused": [{"recipe": "tflite-dynamic", "code": "budget", "reason": "it may take 36.3 to 222 ms",
                         "rule": "it may take longer than the budget of 50 ms", "do": ""}],
        }
        for name in ("raspberry-pi-4-64-bit-bookworm", "orange-pi-5")
    ]  # fmt: skip
    data = [{"code": "overlap", "level": "warning", "what": f"photos/{'long' * 20}.png is in both", "do": "Move it"}]
    return report(
        candidates=made, bundles=bundles, data=data, limits={"max_drop": 0.001, "budget_ms": 50.0},
        command=f"edgekit build {'x' * 150}.keras", tools={"tensorflow": "2.21.0"},
    )  # fmt: skip


def check_width(browser, folder, text, width, selector, fewest, media=""):
    """That nothing of a page lies outside, and that it has its parts."""
    file = folder / "page.html"
    file.write_text(text, encoding="utf-8")
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media})
    try:
        browser.get(file.as_uri())
        assert browser.execute_script(OUTSIDE) == []
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.execute_script(f"return document.querySelectorAll('{selector}').length") >= fewest
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@pytest.mark.parametrize("width", [1280, 390])
def test_no_column_leaves_the_page(browser, tmp_path, width):
    check_width(browser, tmp_path, html(full()), width, "table", 5)


def test_no_column_leaves_a4_paper_and_every_chart_is_drawn_on_it(browser, tmp_path):
    """718 pixels are 210 mm less two margins of a centimetre."""
    check_width(browser, tmp_path, html(full()), 718, "svg.plot .dot", 4, media="print")


@pytest.mark.parametrize("width", [1280, 390])
def test_no_column_leaves_the_page_of_compress(browser, tmp_path, width):
    row = {
        "metric": "top1", "original": 0.9, "score": 0.88, "drop": 0.02, "interval": [0.011, 0.029], "failed": "",
        "macs": 123_456_789, "low_ms": 36.3, "ms": 71.2, "high_ms": 222.0, "here_ms": 12.3, "bytes": 5_272_056,
        "packed_bytes": 4_100_000,
    }  # fmt: skip
    steps = ("original", "plain INT8", "repaired", "distill", "prune", "sparse", "qat")
    rows = [{"step": step, "recipe": "onnx-int8-qdq-symmetric-mixed", **row} for step in steps]
    gain = {"of": "sparse", "recipe": "onnx-int8-qdq-symmetric-mixed", "points": 0.0, "ci95": [-0.0123, 0.0123]}
    record = [{"step": "qat", "kept": False, "why": "it loses no less than before", "gain": gain}]
    result = {"name": "x" * 60, "profile": "raspberry-pi-4", "seed": 0, "kept": False, "verdict": "a verdict " * 20,
              "rows": rows, "steps": record}  # fmt: skip
    check_width(browser, tmp_path, page([result]), width, "svg.plot", 2)
