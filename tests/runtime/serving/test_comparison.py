"""One in 200 of the hosts' answers, more where they differ, is computed on the device, too, when the device is idle."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from edgekit_runtime.serving.fallback import COMPARE_EVERY, Comparison

ITEMS = {"image": tiny.RED}
HERE = np.array([0.9, 0.05, 0.03, 0.02], np.float32)


class Device:
    """idle: whether it takes a comparison."""

    def __init__(self, idle: bool = True):
        self.idle, self.ran = idle, 0

    def run_beside(self, items, done):
        if self.idle:
            self.ran += 1
            done({"probs": HERE})
        return self.idle


def compare(device, answers, outputs=HERE):
    counted = []
    comparison = Comparison(tiny.CONTRACT, device.run_beside, counted.append)
    for _ in range(answers):
        comparison.answered(ITEMS, {"probs": outputs})
    return counted


@pytest.mark.parametrize(("answers", "compared"), [(COMPARE_EVERY - 1, 0), (COMPARE_EVERY, 1), (5 * COMPARE_EVERY, 5)])
def test_one_in_so_many_answers_is_compared(answers, compared):
    device = Device()
    assert compare(device, answers) == [False] * compared
    assert device.ran == compared


ANSWERS = {
    "the same": (HERE, False),
    "another precision": (HERE + np.float32(0.01), False),
    "another best class": (HERE[::-1], True),
    "the same best class, other scores": (np.array([0.3, 0.29, 0.29, 0.12], np.float32), True),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_that_is_not_within_tolerance_is_counted(answer):
    outputs, differs = ANSWERS[answer]
    assert compare(Device(), COMPARE_EVERY, outputs) == [differs]


def test_the_share_that_is_compared_grows_with_one_that_differs_and_shrinks_with_those_that_agree():
    device, places, doubts = Device(), [], []
    comparison = Comparison(tiny.CONTRACT, device.run_beside, lambda _: places.append(place[0]))
    place = [0]
    while place[0] < 2000:
        place[0] += 1
        wrong = 200 <= place[0] < 500
        comparison.answered(ITEMS, {"probs": HERE[::-1] if wrong else HERE}, lambda: doubts.append(place[0]))
    steps = np.diff([0, *places]).tolist()
    assert steps[:6] == [200, 50, 12, 5, 5, 5]
    last = next(i for i, place in enumerate(places) if place >= 500)
    assert steps[last : last + 8] == [5, 10, 20, 40, 80, 160, 200, 200]
    assert doubts == [place for place in places if 200 <= place < 500]


def test_a_busy_device_compares_when_it_is_idle_again():
    device = Device(idle=False)
    counted = []
    comparison = Comparison(tiny.CONTRACT, device.run_beside, counted.append)
    for _ in range(COMPARE_EVERY + 10):
        comparison.answered(ITEMS, {"probs": HERE})
    assert counted == []
    device.idle = True
    for _ in range(COMPARE_EVERY - 11):
        comparison.answered(ITEMS, {"probs": HERE})
    assert counted == [False]
