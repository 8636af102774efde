"""The attempts of a repair: each way once, the one that was kept marked, and a reason where nothing was compared."""

from __future__ import annotations

from typing import Any

from edgekit.report.html import html
from edgekit.report.view import group_variants

FIDELITY: Any = {
    "items": 9, "metric": "top1", "original": 0.9, "artifact": 0.7, "drop": 0.2, "ci95": [0.1, 0.3], "agreement": 0.8,
    "cosine": 0.9, "sqnr_db": 9.0, "quantized_macs": 1.0, "quantized_weights": 1.0, "not_finite": 0,
}  # fmt: skip


def attempt(
    remedy: str, noise: float | None = None, drop: float | None = None, layers: int = 0, failed: str = ""
) -> Any:
    return {
        "remedy": remedy, "recipe": "tflite-int8-mixed" if layers else "tflite-int8", "float_layers": layers,
        "float_macs": 0.0, "noise_db": noise, "drop": drop, "failed": failed,
    }  # fmt: skip


STORY = {
    "of": "tflite-int8", "recipe": "tflite-int8-mixed", "met": True, "drop": 0.012, "why": "it keeps the limit",
    "plan": {"float_layers": ["a", "b"]},
    "tried": [
        attempt("as it is", 16.5),
        attempt("ranges by minmax", 14.5),
        attempt("ranges by entropy", 17.0),
        attempt("ranges by entropy", None, 0.03),
        attempt("as it is", 17.0),
        attempt("as it is", 17.0),
        attempt("weights: round", None, None, 0, "no such operator"),
        attempt("products alone in int8", 30.0, None, 2),
        attempt("products alone in int8", 31.0, None, 2),
        attempt("products alone in int8", None, 0.012, 2),
    ],
}  # fmt: skip


def test_each_way_is_one_row_with_its_noise_and_its_drop() -> None:
    rows = group_variants(STORY)
    assert [row.remedy for row in rows] == [
        "as it is", "ranges by minmax", "ranges by entropy", "weights: round", "products alone in int8",
    ]  # fmt: skip
    entropy, products = rows[2], rows[4]
    assert (entropy.noise_db, entropy.drop) == (17.0, 0.03)
    assert (products.noise_db, products.drop, products.variants) == (31.0, 0.012, 2)


def test_what_was_kept_is_marked_and_what_was_not_compared_says_why() -> None:
    rows = group_variants(STORY)
    assert [row.remedy for row in rows if row.kept] == ["products alone in int8"]
    assert (rows[0].why, rows[0].noise_db) == ("the start", 16.5)
    assert rows[1].why == "not compared: noisier than the best so far"
    assert rows[3].why == "no such operator"
    assert group_variants({**STORY, "drop": 0.2, "met": False, "recipe": "tflite-int8"})[0].kept is False


def test_a_repair_that_found_nothing_is_not_said_to_have_made_a_file_of_itself() -> None:
    story = {**STORY, "recipe": "tflite-int8", "met": False, "plan": {}, "drop": 0.2}
    candidates = [{"recipe": "tflite-int8", "bytes": 9, "fidelity": FIDELITY, "repair": story}]
    page = html(
        {"model": {"path": "n", "sha256": "ab" * 32, "format": "keras"}, "candidates": candidates, "bundles": []}
    )
    assert "made from tflite-int8" not in page
    assert "tflite-int8, not repaired" in page
