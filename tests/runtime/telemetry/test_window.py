"""A window: what was counted, in at most 1,200 bytes, and nothing that is not documented."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.fleet.store.messages import origin, parse_window
from edgekit_runtime.cache.bounded import BoundStats
from edgekit_runtime.system.errors import WindowError
from edgekit_runtime.telemetry.histogram import CountedWindow, Histogram
from edgekit_runtime.telemetry.window import MOST_BYTES, About, Report, Seal, System, device_id, encode, sealed_payload

ABOUT = About("porch-1", "efficientnet_lite0", "1.4.2", "9f3c01ab77de", "raspberry-pi-4", 100.0)
SEAL = Seal("0123456789abcdef", 41_000, 40_998, 3, 12, 11_000)
BOUND = BoundStats(0.02, True, 0.06, 900, 80, 100, 1, 0.01, (0.00025, 0.05448))
SYSTEM = System(41.5, 63.2, 71.3, 0x50005, 12_345)
FORMAT = Path(__file__).parents[3] / "docs" / "telemetry-format.md"


def histogram(values):
    made = Histogram()
    for value in values:
        made.record(value)
    return made


def report(latency=None, **counted):
    latency = latency or {}
    given = {"errors": {"decode": 2}, "over_budget": 5 if latency else 0} | counted
    return Report(ABOUT, 7, 1_760_000_000_000, 60_001, True, CountedWindow(latency, **given), SYSTEM)


def a_minute(seed=0):
    """Three sources, 6,060 answers, a slow tail: the shape that fallback and throttling make."""
    rng = random.Random(seed)
    return {
        "device": histogram([rng.lognormvariate(3.0, 0.25) for _ in range(4000)] + [rng.uniform(60, 900)] * 60),
        "cache": histogram([rng.lognormvariate(-4.0, 0.5) for _ in range(1500)]),
        "host": histogram([rng.lognormvariate(2.5, 0.5) for _ in range(500)]),
    }


def stages(seed=0):
    """Of the same minute, as the meter names them."""
    rng = random.Random(seed)
    means = {"prepare": 0.5, "queue": -1.0, "infer": 2.9, "finish": -2.0, "network": 1.5, "host": 2.0}
    return {
        name: histogram([rng.lognormvariate(mean, 0.4) for _ in range(500 if name in ("network", "host") else 4560)])
        for name, mean in means.items()
    }


def second_report(seed=0):
    """Everything that version 2 may say."""
    about = replace(ABOUT, site="berlin", group="doors")
    counted = {"stages": stages(seed), "refused": 3, "compared": 4, "differed": 1, "clipped": 7, "values": 90}
    counted["dropped"] = 41
    errors = {"decode": 6, "budget": 3}
    return replace(report(a_minute(seed), errors=errors, **counted), about=about, psi=0.125)


def payload(**changes):
    value = json.loads(sealed_payload(encode(report(a_minute())), SEAL)) | changes
    return json.dumps({name: entry for name, entry in value.items() if entry is not ...}).encode()


def test_what_is_sent_is_what_is_read():
    latency = a_minute()
    window = parse_window(sealed_payload(encode(report(latency)), SEAL), "porch-1")
    assert window.seal == SEAL
    assert (window.model, window.version, window.profile) == ("efficientnet_lite0", "1.4.2", "raspberry-pi-4")
    assert (window.n, window.host, window.hits, window.misses) == (6060, 500, 1500, 4560)
    assert (window.errors, window.over_budget, window.system) == (2, 5, SYSTEM)
    for source in ("device", "host"):
        for q in (0.5, 0.95, 0.99):
            assert window.latency[source].quantile(q) == pytest.approx(latency[source].quantile(q))


@pytest.mark.parametrize("seed", range(5))
def test_a_minute_of_three_sources_fits_and_only_the_cache_loses_precision(seed):
    data = sealed_payload(encode(report(a_minute(seed))), SEAL)
    assert len(data) <= MOST_BYTES
    scales = {source: h.scale for source, h in parse_window(data, "porch-1").latency.items()}
    assert scales | {"cache": 3} == {"device": 5, "host": 5, "cache": 3}
    assert scales["cache"] >= 3


@pytest.mark.parametrize("source", ["device", "host"])
def test_quantiles_read_at_the_host_are_within_one_point_one_per_cent_of_the_exact_ones(source):
    rng = random.Random(3)
    values = sorted([rng.lognormvariate(3.0, 0.25) for _ in range(6000)] + [rng.uniform(60, 900) for _ in range(60)])
    window = parse_window(sealed_payload(encode(report({source: histogram(values)})), SEAL), "porch-1")
    for q in (0.5, 0.9, 0.95, 0.99, 0.999):
        exact = values[math.ceil(q * len(values)) - 1]
        assert window.latency[source].quantile(q) == pytest.approx(exact, rel=0.011)


def test_whatever_was_counted_a_window_stays_small():
    rng = random.Random(1)
    wild = {
        source: histogram([10 ** rng.uniform(-5, 6) for _ in range(3000)]) for source in ("device", "cache", "host")
    }
    data = sealed_payload(encode(report(wild)), SEAL)
    assert len(data) <= MOST_BYTES
    window = parse_window(data, "porch-1")
    assert window.n == 9000
    assert window.latency["device"].quantile(0.5) == pytest.approx(wild["device"].quantile(0.5), rel=0.5)


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent / "released").glob("0.1.0-*.json")), ids=lambda p: p.stem
)
def test_windows_of_the_first_release_are_read(path):
    data = path.read_bytes()
    window, value = parse_window(data, "porch-1"), json.loads(data)
    assert (window.seal, window.n, window.misses) == (SEAL, value["n"], value["cm"])
    assert {source: histogram.wire() for source, histogram in window.latency.items()} == value["lat"]
    assert (window.stages, window.error_codes, window.values, window.psi, window.site) == ({}, {}, 0, None, "")
    assert window.dropped == 0


@pytest.mark.parametrize("seed", range(3))
def test_version_two_says_what_the_board_counts_and_stays_small(seed):
    sent = second_report(seed)
    data = sealed_payload(encode(sent), SEAL)
    assert len(data) <= MOST_BYTES
    window = parse_window(data, "porch-1")
    assert (window.refused_by_budget, window.error_codes) == (3, {"decode": 6, "budget": 3})
    assert (window.clipped, window.values, window.psi, window.dropped) == (7, 90, 0.125, 41)
    assert (window.site, window.group, window.compared) == ("berlin", "doors", 4)
    scales = {source: h.scale for source, h in window.latency.items()}
    assert scales["device"] >= 4, "the device loses precision late"
    assert set(window.stages) == {"input", "queue", "transfer", "inference", "output"}
    assert window.stages["inference"].count == 5060, "a host's own time is inference, too"


@pytest.mark.parametrize("seed", range(3))
def test_a_window_says_what_a_semantic_cache_knows_and_stays_small(seed):
    data = sealed_payload(encode(replace(second_report(seed), semantic=BOUND)), SEAL)
    assert len(data) <= MOST_BYTES
    window = parse_window(data, "porch-1")
    assert window.semantic == BOUND
    assert window.latency["device"].scale >= 4


def test_the_time_of_generated_tokens_travels_in_a_field_that_older_fleets_ignore():
    tokens = histogram([40.0, 41.0, 42.0])
    data = sealed_payload(encode(report({"device": histogram([300.0])}, over_budget=0, stages={"token": tokens})), SEAL)
    value = json.loads(data)
    assert "st" not in value
    assert value["tk"][0] == 4
    assert parse_window(data, "porch-1").stages["token"].quantile(0.5) == pytest.approx(41, rel=0.03)
    assert parse_window(payload(tk=...), "porch-1").stages == {}


def test_a_semantic_cache_that_compared_nothing_yet_has_no_interval():
    learning = BoundStats(0.02, False, 0.0, 0, 300, 0, 0, None, None)
    data = sealed_payload(encode(replace(report(), semantic=learning)), SEAL)
    assert parse_window(data, "porch-1").semantic == learning


def test_stages_travel_by_their_names_where_there_is_room():
    only = {"device": histogram([20.0, 21.0, 90.0])}
    measured = {"prepare": histogram([1.0] * 3), "infer": histogram([19.0, 20.0, 88.0]), "tea": histogram([1.0])}
    sent = report(only, over_budget=1, stages=measured)
    window = parse_window(sealed_payload(encode(sent), SEAL), "porch-1")
    assert list(window.stages) == ["input", "inference"]
    assert window.stages["inference"].quantile(0.99) == pytest.approx(88.0, rel=0.09)


def test_of_many_error_codes_the_frequent_ones_keep_their_names():
    codes = {f"code-{n}": n for n in range(1, 12)} | {"no code at all!": 3}
    sent = report(errors=codes)
    window = parse_window(sealed_payload(encode(sent), SEAL), "porch-1")
    assert len(window.error_codes) == 9
    assert window.error_codes["code-11"] == 11
    assert sum(window.error_codes.values()) == sum(codes.values())
    assert window.error_codes["other"] == 9


def test_what_fits_the_format_never_makes_a_merged_histogram_unreadable():
    """However many windows of the largest count are added, the sum can be written and read again."""
    most = 1000 * 60_001 + 1_000_000
    whole = Histogram()
    window = parse_window(payload(lat={"device": [5, 0, [most]]}, n=most, ch=0, cm=0, fb=0), "porch-1")
    for _ in range(100):
        whole.merge(window.latency["device"])
    assert whole.count == 100 * most
    while whole.count < 2**53 - whole.count:
        whole.merge(Histogram.from_wire(whole.wire()))
    for _ in range(3):
        whole.merge(Histogram.from_wire(whole.wire()))
        assert Histogram.from_wire(whole.wire()).count == whole.count < 2**53


def test_a_board_that_rests_still_says_so():
    window = parse_window(sealed_payload(encode(report()), SEAL), "porch-1")
    assert (window.n, window.latency) == (0, {})


def test_every_field_that_leaves_the_board_is_documented_and_no_other_does():
    value = json.loads(sealed_payload(encode(replace(second_report(), semantic=BOUND)), SEAL))
    documented = set(re.findall(r"^\| `([a-z0-9.]+)`", FORMAT.read_text(), re.MULTILINE))
    flat = set(value) | {f"{name}.{part}" for name in ("model", "spool", "lab") for part in value[name]}
    assert flat <= documented, flat - documented


SEMANTIC = [0.02, 0.06, 900, 80, 100, 1, 0.00025, 0.05448]
BAD = {
    "half a surrogate pair in a name": (payload(prof="net\ud800"), "shape"),
    "a control character in a name": (payload(prof="net\x00"), "shape"),
    "not JSON": (b"hello", "json"),
    "not UTF-8": (b"\xff\xfe\x00", "json"),
    "a list": (b"[1]", "shape"),
    "NaN": (payload().replace(b'"cpu": 41.5', b'"cpu": NaN'), "json"),
    "100,000 nested lists": (b"[" * 9_000 + b"]" * 100, "json"),
    "a megabyte": (b" " * 1_000_000, "size"),
    "another format": (payload(v=3), "version"),
    "a format that is nearly one": (payload(v=1.0), "version"),
    "a format of true": (payload(v=True), "version"),
    "another device": (payload(dev="porch-2"), "device"),
    "no device": (payload(dev=...), "device"),
    "a negative count": (payload(n=-1), "shape"),
    "a count that is no number": (payload(n="7"), "shape"),
    "a count that does not add up": (payload(n=7), "shape"),
    "true for a number": (payload(err=True), "shape"),
    "a count above 2^53": (payload(err=2**53), "shape"),
    "more answers than a board can give": (
        payload(lat={"device": [5, 0, [2**53 - 1]]}, n=2**53 - 1, ch=0, cm=0, fb=0),
        "shape",
    ),
    "more errors than a board can make": (payload(err=10**12), "shape"),
    "more late answers than answers": (payload(bv=6061), "shape"),
    "a window of centuries": (payload(dur=10**13), "shape"),
    "a boot beyond belief": (payload(boot=2**40), "shape"),
    "a seq beyond belief": (payload(seq=2**50), "shape"),
    "more given up than there were": (payload(drop=40_998), "shape"),
    "a stage that is none": (payload(st={"prepare": [2, 0, [1]]}), "shape"),
    "a stage that counts beyond belief": (payload(st={"input": [2, 0, [2**50]]}), "shape"),
    "more refused than errors": (payload(rb=3), "shape"),
    "more codes than errors": (payload(ec={"decode": 2, "budget": 1}), "shape"),
    "a code that is a sentence": (payload(ec={"no picture of <b>mary</b>": 1}), "shape"),
    "too many codes": (payload(ec={f"c{n}": 1 for n in range(10)}, err=10), "shape"),
    "a share above one": (payload(cl=[3, 2]), "shape"),
    "a share of one number": (payload(cl=[3]), "shape"),
    "a drift beyond bounds": (payload(psi=1e9), "shape"),
    "more false answers than were compared": (payload(se=[*SEMANTIC[:5], 101, 0.1, 0.2]), "shape"),
    "a share of false answers above one": (payload(se=[1.5, *SEMANTIC[1:]]), "shape"),
    "an interval of text": (payload(se=[*SEMANTIC[:7], "<b"]), "shape"),
    "an interval of one end": (payload(se=SEMANTIC[:7]), "shape"),
    "no interval of what was compared": (payload(se=SEMANTIC[:6]), "shape"),
    "an interval of nothing": (payload(se=[*SEMANTIC[:4], 0, 0, 0, 1]), "shape"),
    "times of tokens that are no histogram": (payload(tk=[4]), "shape"),
    "a semantic cache that is a number": (payload(se=7), "shape"),
    "labels that are none": (payload(lab=["x"]), "shape"),
    "half of the labels": (payload(lab={"site": "berlin"}), "shape"),
    "a label with a control character": (payload(lab={"site": "a\x1b", "group": ""}), "shape"),
    "an epoch that is none": (payload(epoch="../../etc"), "shape"),
    "seq below floor": (payload(seq=5, floor=6), "shape"),
    "seq 0": (payload(seq=0, floor=0), "shape"),
    "no model": (payload(model=...), "shape"),
    "a model's name of a megabyte": (payload(model={"id": "x" * 5000, "ver": "1", "sha": "0"}), "shape"),
    "scale 99": (payload(lat={"device": [99, 0, [6060]]}), "shape"),
    "a negative scale": (payload(lat={"device": [-3, 0, [6060]]}), "shape"),
    "a million buckets": (payload(lat={"device": [5, 0, [-1_000_000, 6060]]}), "shape"),
    "an offset far away": (payload(lat={"device": [5, 10**9, [6060]]}), "shape"),
    "a histogram that is none": (payload(lat={"device": {"p99": 3}}), "shape"),
    "fractions counted": (payload(lat={"device": [5, 0, [6060.0]]}), "shape"),
    "nine sources": (payload(lat={f"{c}": [5, 0, []] for c in "abcdefghi"}, n=0), "shape"),
    "HTML for a source": (payload(lat={"<script>": [5, 0, [6060]]}), "shape"),
    "colder than nothing": (payload(temp=-300), "shape"),
    "120 per cent busy": (payload(cpu=120), "shape"),
    "more hits than answers": (payload(ch=6061), "shape"),
    "a clock before 1970": (payload(t0=-1), "shape"),
}


@pytest.mark.parametrize(("data", "word"), BAD.values(), ids=BAD)
def test_a_bad_payload_is_refused_with_one_word(data, word):
    with pytest.raises(WindowError) as caught:
        parse_window(data, "porch-1")
    assert caught.value.word == word


@pytest.mark.parametrize("t0", [0, 12_345, 4_102_444_800_000])
def test_a_clock_in_1970_or_2100_is_survived(t0):
    assert parse_window(payload(t0=t0), "porch-1").t0_ms == t0


def test_html_in_a_name_is_text_like_any_other():
    name = "<script>alert(1)</script>"
    assert parse_window(payload(model={"id": name, "ver": "1", "sha": "0"}), "porch-1").model == name


def test_a_field_of_a_later_release_is_ignored():
    assert parse_window(payload(drift={"psi": 0.1}), "porch-1").n == 6060


def test_the_origin_of_a_refused_payload_can_still_be_told():
    assert origin(payload(v=9)) == SEAL
    assert origin(payload(v=9, floor=41_001)) is None
    assert origin(payload(v=9).replace(b'"dev"', b'"x": "\\ud800", "dev"')) == SEAL, (
        "or its board sends it again for ever"
    )
    assert origin(payload(v=9, epoch="\ud800")) is None
    assert origin(b"junk") is None


@given(
    st.binary(max_size=300)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_no_payload_makes_the_parser_fail_in_another_way(data):
    with pytest.raises(WindowError):
        parse_window(data, "porch-1")


VALUES = st.lists(st.floats(0, 1e6), max_size=200)


@given(VALUES)
def test_a_histogram_survives_the_wire(values):
    made = histogram(values)
    back = Histogram.from_wire(json.loads(json.dumps(made.wire())))
    assert (back.buckets, back.count, back.zeros) == (made.buckets, made.count, made.zeros)


@given(VALUES, VALUES, st.integers(0, 5), st.integers(0, 5))
def test_merging_at_two_scales_commutes_and_loses_nothing(left, right, a, b):
    one, other = histogram(left), histogram(right)
    one.downscale(a)
    other.downscale(b)
    forth, back = Histogram(one.buckets, a), Histogram(other.buckets, b)
    forth.merge(other)
    back.merge(one)
    both = histogram(left + right)
    both.downscale(min(a, b))
    assert forth.buckets == both.buckets
    assert back.buckets == both.buckets


@pytest.mark.parametrize("name", ["porch-1", "0ab", "a" * 63])
def test_a_device_id_may_be(name):
    assert device_id(name) == name


@pytest.mark.parametrize(
    "name", ["", "ab", "-ab", "Porch", "a" * 64, "a/b", "a#", "+++", "a b", "a\n", "porch-1\n", "ä-1", "../../x"]
)
def test_a_device_id_may_not_be(name):
    with pytest.raises(WindowError) as caught:
        device_id(name)
    assert caught.value.word == "device"


def test_a_long_name_is_cut_and_not_refused_by_the_host():
    about = replace(ABOUT, model="m" * 200, version="v" * 200, sha="f" * 64)
    window = parse_window(sealed_payload(encode(replace(report(), about=about)), SEAL), "porch-1")
    assert len(window.model) == 64


def test_compared_answers_of_hosts_travel_where_there_are_any():
    seen = parse_window(sealed_payload(encode(report(a_minute(), compared=5, differed=1)), SEAL), "porch-1")
    assert (seen.compared, seen.differed) == (5, 1)
    body = encode(report(a_minute()))
    assert b'"hc"' not in body
    assert parse_window(sealed_payload(body, SEAL), "porch-1").compared == 0


@pytest.mark.parametrize("fields", [{"hc": 2, "hd": 3}, {"hc": -1, "hd": 0}, {"hc": 2}, {"hc": "2", "hd": 0}])
def test_compared_answers_that_do_not_add_up_are_refused(fields):
    with pytest.raises(WindowError):
        parse_window(payload(**fields), "porch-1")
