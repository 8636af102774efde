"""A picture is answered by likeness only where it is like one that was really inferred, a short while ago."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from edgekit_runtime.cache.similar import Similar

ANSWER = {"probs": np.array([0.1, 0.9], np.float32)}
rng = np.random.default_rng(3)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def picture(shape=(224, 224, 3), seed=0):
    return np.random.default_rng(seed).integers(40, 200, shape, np.uint8)


def seen(item, threshold=4.0, **options):
    similar = Similar(threshold, **options)
    similar.remember(similar.mark({"image": item}), ANSWER)
    return similar


def find(similar, item):
    return similar.find(similar.mark({"image": item}))


def test_the_same_picture_is_at_distance_zero():
    hit = find(seen(picture()), picture())
    assert hit.distance == 0
    np.testing.assert_array_equal(hit.outputs["probs"], ANSWER["probs"])


def test_noise_of_a_sensor_is_alike():
    noisy = np.clip(picture().astype(int) + rng.normal(0, 5, (224, 224, 3)).round().astype(int), 0, 255).astype(
        np.uint8
    )
    assert find(seen(picture(), 4.0), noisy).distance < 2


def test_something_small_that_appears_is_not_alike():
    changed = picture()
    changed[100:130, 60:90] = 255
    assert find(seen(picture(), 4.0), changed) is None


@pytest.mark.parametrize("corner", [np.s_[:3, :3], np.s_[-3:, -3:], np.s_[:3, -3:], np.s_[-3:, :3]])
@pytest.mark.parametrize("shape", [(224, 224, 3), (97, 130, 3), (33, 17, 1), (8, 8, 1), (5, 300, 4), (300, 5, 3)])
def test_every_pixel_counts_whatever_the_size(shape, corner):
    dark = np.zeros(shape, np.uint8)
    spot = dark.copy()
    spot[corner] = 255
    assert find(seen(dark, 1.0), spot) is None


def test_another_colour_of_the_same_brightness_is_not_alike():
    red, blue = np.zeros((2, 64, 64, 3), np.uint8)
    red[..., 0], blue[..., 2] = 200, 200
    assert find(seen(red, 10.0), blue) is None


@settings(max_examples=examples(40))
@given(
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from([1, 3, 4]),
    st.sampled_from(["u1", "i1", "f4"]),
    st.integers(0, 99),
)
def test_the_distance_is_the_largest_change_of_a_blocks_mean(height, width, channels, dtype, seed):
    random = np.random.default_rng(seed)
    low, high = (-128, 128) if dtype == "i1" else (0, 256)
    one, other = (random.integers(low, high, (height, width, channels)).astype(dtype) for _ in range(2))
    similar = Similar(1e9, grid=4)
    similar.remember(similar.mark({"x": one}), ANSWER)

    rows = max(1, height // 4)
    columns = np.arange(width) * min(4, width) // width
    largest = max(
        abs(
            float(
                one[top : top + rows, columns == c, k].astype(float).mean()
                - other[top : top + rows, columns == c, k].astype(float).mean()
            )
        )
        for top in range(0, height, rows)
        for c in set(columns)
        for k in range(channels)
    )
    assert similar.find(similar.mark({"x": other})).distance == pytest.approx(largest, abs=1e-2)


def test_slow_change_adds_up_and_is_noticed():
    similar, frame = seen(np.zeros((64, 64, 3), np.uint8), 4.0), np.zeros((64, 64, 3), np.uint8)
    answered = 0
    for _ in range(20):
        frame = frame + 1  # a dawn, one grey level a frame
        answered += find(similar, frame) is not None
    assert answered == 4


def test_an_answer_that_is_too_old_is_not_given():
    clock = Clock()
    similar = seen(picture(), max_age_s=2.0, clock=clock)
    clock.now = 1.9
    assert find(similar, picture()).age_s == pytest.approx(1.9)
    clock.now = 2.0
    assert find(similar, picture()) is None


def test_two_cameras_in_turn_both_find_their_own():
    similar, outputs = Similar(2.0), [{"y": np.array([k])} for k in range(2)]
    for k in range(2):
        similar.remember(similar.mark({"image": picture(seed=k)}), outputs[k])
    for k in range(2):
        assert find(similar, picture(seed=k)).outputs["y"].tolist() == [k]


def test_nan_is_like_nothing():
    broken = np.full((16, 16, 3), np.nan, np.float32)
    assert find(seen(broken), broken) is None


@pytest.mark.parametrize(
    "item", [np.zeros(16000, np.float32), np.zeros((100, 40), np.float32), np.zeros((3, 64, 64), np.uint8)]
)
def test_what_is_no_picture_has_no_mark(item):
    assert Similar(1.0).mark({"x": item}) is None


def test_another_dtype_or_size_is_another_thing():
    similar = seen(np.zeros((16, 16, 3), np.uint8), 1e9)
    assert find(similar, np.zeros((16, 16, 3), np.int8)) is None
    assert find(similar, np.zeros((16, 17, 3), np.uint8)) is None


def test_what_comes_beside_a_picture_must_be_equal():
    similar = Similar(4.0)
    items = {"image": picture(), "gain": np.array([1.0], np.float32)}
    similar.remember(similar.mark(items), ANSWER)
    assert similar.find(similar.mark(items)) is not None
    assert similar.find(similar.mark({**items, "gain": np.array([1.5], np.float32)})) is None


def test_a_view_in_another_order_is_the_same_picture():
    turned = picture((3, 64, 64)).transpose(1, 2, 0)
    assert find(seen(turned), turned.copy()).distance == 0


def test_flush_forgets():
    similar = seen(picture())
    similar.flush()
    assert find(similar, picture()) is None


@pytest.mark.parametrize(
    "options", [{"threshold": -1}, {"threshold": float("nan")}, {"max_age_s": 0}, {"keep": 0}, {"grid": 0}]
)
def test_settings_that_make_no_sense_are_the_callers_bug(options):
    with pytest.raises(ValueError, match=r"must be|at least"):
        Similar(**{"threshold": 1.0, **options})
