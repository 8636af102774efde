"""The page is made of a build's JSON alone, holds all it needs, and says what it does not know."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from reported import ESTIMATE, FIDELITY, report

from edgekit.report.html import html
from edgekit.report.words import brief, percent, points, size


class _Links(HTMLParser):
    """Everything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href")]


def figures(page: str) -> list[str]:
    return re.findall(r'<figure class="chart.*?</figure>', page, re.DOTALL)


def keys(figure: str) -> list[str]:
    return re.findall(r"</svg>([^<]+)</span>", figure)


def test_a_name_that_would_turn_the_page_round_is_shown_escaped() -> None:
    found = report(model={"path": "\u202egpj.net", "sha256": "ab" * 32, "format": "keras"})
    found["candidates"][0] |= {"recipe": "tflite\u202e8tni", "layers": [{"layer": "\u202eb", "sqnr_db": 3.0}]}
    page = html(found)
    assert "\\u202egpj.net" in page
    assert "\u202e" not in page
    assert keys(figures(page)[0]) == ["tflite\\u202e8tni"]


def test_nothing_is_fetched_from_anywhere() -> None:
    links = _Links()
    links.feed(html(report()))
    assert [link for link in links.found if not link.startswith("data:")] == []


def test_verdict_says_what_the_board_gets_and_what_it_costs() -> None:
    page = html(report())
    assert "raspberry-pi-4 gets tflite-int8, whose top-1 accuracy is 91.8 % where the original&#39;s is 92.0 %" in page
    assert "20.7 ms (15.9 to 36.4), anchored, not measured on the board" in page
    timed = {**report()["bundles"][0], "estimate": {**ESTIMATE, "grade": "measured"}}
    assert "not measured on the board" not in html(report(bundles=[timed]))


def test_a_board_without_a_bundle_says_so_and_every_reason_is_there() -> None:
    refused = [
        {"recipe": name, "reason": f"why {name} fails", "code": "budget"} for name in ("tflite-int8", "tflite-f32")
    ]
    board = {
        "profile": "tiny",
        "path": None,
        "recipe": None,
        "bytes": None,
        "fidelity": None,
        "estimate": None,
        "refused": refused,
    }
    page = html(report(bundles=[board]))
    assert "tiny gets no bundle" in page
    assert "why tflite-int8 fails" in page
    assert "why tflite-f32 fails" in page


def test_names_are_text_never_markup() -> None:
    model = {"path": "<script>alert(1)</script>.keras", "sha256": "0" * 64, "format": "keras"}
    layer = {"layer": "</script><b>x", "op": "CONV_2D", "sqnr_db": 20.0}
    candidate = {"recipe": "tflite-int8", "bytes": 9, "fidelity": FIDELITY, "layers": [layer, layer]}
    page = html(report(model=model, candidates=[candidate]))
    assert "<script>alert" not in page
    assert "</script><b>x" not in page
    assert [keys(figure) for figure in figures(page)] == [["chosen"], ["tflite-int8"]]


def test_trade_off_shows_only_what_has_a_latency_on_that_board() -> None:
    (figure,) = figures(html(report()))
    assert keys(figure) == ["chosen"]
    assert re.findall("<title>(.*?)</title>", figure) == ["tflite-int8: 20.7 ms (15.9 to 36.4), anchored, 5.27 MB"]


def test_a_dot_has_both_intervals_and_an_axis_that_holds_them() -> None:
    """98.8 to 99.8 % where the artifact has 99.4: a difference of noise is no slope across the whole axis."""
    near = {**FIDELITY, "original": 0.995, "artifact": 0.994, "drop": 0.001, "ci95": [-0.003, 0.007]}
    (figure,) = figures(html(report(candidates=[{"recipe": "tflite-int8", "bytes": 9, "fidelity": near}])))
    places = re.findall(r'<line class="bar h3" x1="(.*?)%" x2="(.*?)%" y1="(.*?)%" y2="(.*?)%"/>', figure)
    across, up = ([float(place) for place in line] for line in places)
    assert across[2] == across[3]
    assert across[0] < across[1]
    assert up[0] == up[1]
    assert 20 < up[2] - up[3] < 60, "half the height of the plot at most"
    assert re.findall(r">([\d.]+ %)</text>", figure) == ["98.0 %", "98.5 %", "99.0 %", "99.5 %", "100.0 %"]


def test_the_page_needs_no_script_and_is_as_large_as_what_it_says() -> None:
    page = html(report())
    assert "<script" not in page
    assert len(page) < 30_000


def test_what_was_asked_for_is_said() -> None:
    assert "Asked for: a drop of at most 1 %, at most 50 ms an answer." in html(
        report(limits={"max_drop": 0.01, "budget_ms": 50.0})
    )
    assert "Asked for" not in html(report(limits={"max_drop": None, "budget_ms": None}))


def test_a_repair_is_told_with_what_was_tried() -> None:
    story = {
        "of": "tflite-int8", "recipe": "tflite-int8-mixed", "met": True, "drop": 0.001,
        "why": "1 of 9 layers in float keeps it",
        "tried": [{"remedy": "ranges by mse", "recipe": "tflite-int8", "float_layers": 0, "float_macs": 0.0,
                   "noise_db": 21.3, "drop": 0.04, "failed": ""}],
    }  # fmt: skip
    mixed = {"recipe": "tflite-int8-mixed", "bytes": 9, "fidelity": FIDELITY, "repair": story}
    missed = {"recipe": "tflite-int8", "bytes": 9, "fidelity": FIDELITY, "repair": story}
    page = html(report(candidates=[missed, mixed]))
    assert page.count("1 of 9 layers in float keeps it") == 1
    for text in ("tflite-int8-mixed, made from tflite-int8", "ranges by mse", "21.3 dB", "4.0 %"):
        assert text in page


def test_causes_of_one_kind_stand_together_and_layers_have_names_that_can_be_read() -> None:
    causes = [
        {
            "layer": f"net/block_{i}/add;net/block_{i}/conv",
            "code": "weight-resolution",
            "what": f"what {i}",
            "remedy": "x",
        }
        for i in range(3)
    ]
    page = html(report(candidates=[{"recipe": "tflite-int8", "bytes": 9, "fidelity": FIDELITY, "causes": causes}]))
    assert page.count("Rounded weights") == 1
    assert "2 more" in page
    assert ">block_1/add<" in page


def test_a_large_int8_file_says_what_the_rest_is() -> None:
    parts = {"int8_weights": 4000, "other_weights": 100, "graph": 9000}
    int8 = {"recipe": "tflite-int8", "bytes": 13_100, "fidelity": FIDELITY, "size_breakdown": parts}
    float32 = {"recipe": "tflite-f32", "bytes": 20_000, "fidelity": FIDELITY}
    page = html(report(candidates=[int8, float32]))
    assert "4.0 kB weights in 8 bits, 100 B other weights, 9.0 kB operators and names" in page


def test_random_calibration_is_said_at_the_top() -> None:
    assert "Calibrated on random data" in html(report(random_data=True))
    assert "Calibrated on random data" not in html(report())


def test_layers_causes_histograms_and_disagreements_appear_where_there_are_some() -> None:
    rich = {
        "recipe": "tflite-int8", "bytes": 9, "fidelity": FIDELITY,
        "plan": {"ranges": "mse", "float_layers": ["head"], "steps": ["round"]},
        "layers": [{"layer": "a", "op": "CONV_2D", "sqnr_db": 40.0}, {"layer": "b", "op": "MUL", "sqnr_db": None}],
        "causes": [{"layer": "a", "code": "outlier-activation", "what": "values stretch the range 9x",
            "remedy": "mse"}],
        "histograms": [{"layer": "a", "edges": [0.0, 1.0, 2.0], "original": [3, 1], "artifact": [4, 0]}],
        "disagreements": [
            {"item": "cats/1.png", "image": None, "original": {"index": 1, "label": "cat", "score": 0.6},
             "artifact": {"index": 2, "label": "dog", "score": 2.286}}
        ],
    }  # fmt: skip
    page = html(report(candidates=[rich]))
    assert "dog 2.286" in page
    assert "228.6 %" not in page
    for text in (
        "values stretch the range 9x",
        "cats/1.png",
        "1 layer in float",
        "ranges by mse",
        "weights rounded by error",
    ):
        assert text in page
    assert len(figures(page)) == 3


@pytest.mark.parametrize("missing", ["seconds", "data"])
def test_what_is_not_known_is_left_out(missing: str) -> None:
    short = report()
    del short[missing]
    assert "None" not in re.sub(r"<script>.*?</script>", "", html(short), flags=re.DOTALL)


def test_mean_absolute_error_is_a_number_not_a_percentage() -> None:
    fidelity = FIDELITY | {"metric": "mae", "original": 3.25, "artifact": 3.5, "drop": 0.25, "ci95": [0.1, 0.4]}
    candidate = {"recipe": "tflite-int8", "bytes": 9, "fidelity": fidelity}
    page = html(report(candidates=[candidate]))
    assert "3.25" in page
    assert "325.0 %" not in page


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (percent(0.9996), "99.9 %"),
        (percent(1.0), "100.0 %"),
        (points(-0.0001), "0.0"),
        (size(950), "950 B"),
        (percent(None), "–"),
    ],
)
def test_numbers_are_rounded_as_a_person_would(written: str, wanted: str) -> None:
    assert written == wanted


def test_two_figures_of_noise_are_not_called_by_one_name() -> None:
    story = {"of": "tflite-int8", "recipe": "tflite-int8", "why": "it keeps the limit", "met": True,
             "tried": [{"remedy": "ranges by mse", "recipe": "tflite-int8", "float_layers": 0, "float_macs": 0.0,
                        "noise_db": 16.5, "drop": 0.01, "failed": ""}]}  # fmt: skip
    candidate = {"recipe": "tflite-int8", "bytes": 9, "fidelity": FIDELITY, "layers": [], "repair": story}
    page = " ".join(html(report(candidates=[candidate])).replace("<br>", " ").split())
    assert "signal to noise on calibration samples" in page
    assert "SQNR is the power of the answers" in page


def with_metric(name: str, original: float, artifact: float, *, higher_is_better: bool = True) -> str:
    drop = (original - artifact) * (1 if higher_is_better else -1)
    score = {
        "metric": name, "original": original, "artifact": artifact, "drop": drop, "ci95": [drop, drop],
        "higher_is_better": higher_is_better,
    }  # fmt: skip
    fidelity = {**FIDELITY, **score, "scores": [score], "agreement": None}
    return html(report(candidates=[{"recipe": "tflite-int8", "bytes": 1000, "fidelity": fidelity, "tools": {}}]))


def test_a_metric_that_is_no_share_is_shown_in_its_own_unit() -> None:
    page = with_metric("own:rmse", 92.479, 2186.473, higher_is_better=False)
    assert '<td class="number" data-label="own:rmse">2186</td>' in page
    assert "+2094 (+2264.3 %)" in page
    assert "in the metric&#39;s own unit" in page or "in the metric's own unit" in page
    assert "218647" not in page
    share = with_metric("miou", 0.9, 0.8)
    assert "mean IoU" in share
    assert "80.0 %" in share
    assert "+10.0" in share


def test_what_is_said_of_every_board_is_said_once_and_as_a_sentence() -> None:
    own = {**report()["bundles"][0], "notes": ["few items", "`edgekit profiles measure` settles it"]}
    other = {**own, "profile": "raspberry-pi-5", "notes": ["few items", "tflite-f32 was repaired"]}
    none = {**own, "profile": "tiny", "recipe": None, "notes": []}
    page = html(report(bundles=[own, other, none]))
    assert page.count("ew items.") == 1
    assert "For each of them: Few items." in page
    assert "<small>edgekit profiles measure settles it.</small>" in page
    assert "<small>tflite-f32 was repaired.</small>" in page
    assert "<small>Few items.</small>" in html(report(bundles=[own, none]))


def test_the_headline_says_what_a_model_without_metric_or_classes_kept() -> None:
    fidelity = {
        **FIDELITY,
        "metric": None,
        "original": None,
        "artifact": None,
        "drop": None,
        "ci95": None,
        "agreement": None,
    }
    bundle = {**report()["bundles"][0], "fidelity": fidelity}
    assert "a cosine of 0.9980 with the original" in html(report(bundles=[bundle]))


def test_the_words_of_a_latency_are_explained_where_they_are_used() -> None:
    estimate = {**ESTIMATE, "dominated_by": "dispatch of operations"}
    bundle = {**report()["bundles"][0], "estimate": estimate}
    page = html(report(bundles=[{**bundle, "candidates": [{"recipe": "tflite-int8", "estimate": estimate}]}]))
    assert "<b>anchored</b> is derived from the time of another network" in page
    assert "<b>dispatch of operations</b> is the fixed cost of starting each operator" in page
    assert "<b>estimated</b>" not in page


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (
            "no kernel for WHILE in 's0t18e;s0t19e;s0t20e'. Leave it",
            "no kernel for WHILE in 's0t18e and 2 more'. Leave it",
        ),
        ('In Node, ("net/a;net/b", TFL_GELU)', 'In Node, ("net/a and 1 more", TFL_GELU)'),
        (f"the output '{'scope/' * 20}add' drifts", f"the output '...{('scope/' * 20 + 'add')[-40:]}' drifts"),
        ("the output 'probs' drifts; look at it", "the output 'probs' drifts; look at it"),
        ("x" * 900, "x" * 397 + "..."),
    ],
)
def test_reasons_have_names_that_can_be_read(reason: str, told: str) -> None:
    assert brief(reason) == told


def test_layers_stand_at_their_depth_also_where_nothing_differs() -> None:
    rows = [{"layer": "a", "op": "CONV_2D", "sqnr_db": None, "depth": 0.0, "quantized": False},
            {"layer": "b", "op": "CONV_2D", "sqnr_db": 20.0, "depth": 0.75, "quantized": True}]  # fmt: skip
    from_ = {"set": "evaluation", "items": 10}
    candidate = {"recipe": "tflite-int8", "bytes": 9, "fidelity": FIDELITY, "layers": rows, "layers_from": from_}
    page = html(report(candidates=[candidate]))
    dots = re.findall(r'<svg class="h0 ?(\w*)" x="([\d.]+)%" y="[\d.]+%"><g><title>tflite-int8, (.*?)</title>', page)
    assert dots == [("hollow", "0.00", "a CONV_2D: exact"), ("", "75.00", "b CONV_2D: 20.0 dB")]
    assert "The same 10 items of the evaluation set run through" in page
