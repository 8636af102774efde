"""What a person is shown is what is there: nothing unseen, nothing turned round, and every real word as it is."""

from __future__ import annotations

import pytest

from edgekit_runtime.system.errors import visible

WHOLE = {
    "Persian": "می\u200cخواهم",
    "Hindi": "क्\u200dष",
    "Hebrew": "חתול",
    "Thai": "แมว",
    "an emoji made of others": "👩\u200d🚀",
    "an accent that stands alone": "cafe\u0301",
    "spaces of other widths": "東京\u3000駅\u00a0",
}
ESCAPED = {
    "an escape sequence": ("\x1b[2Jcat", "\\x1b[2Jcat"),
    "a line end": ("cat\ndog", "cat\\ndog"),
    "another line end": ("cat\u2028dog", "cat\\u2028dog"),
    "a width of nothing": ("c\u200bat\u2060", "c\\u200bat\\u2060"),
    "a soft hyphen": ("c\u00adat", "c\\xadat"),
    "writing turned round": ("\u202etac\u202c", "\\u202etac\\u202c"),
    "an isolated direction": ("\u2067tac\u2069", "\\u2067tac\\u2069"),
    "a hidden message": ("cat\U000e0068\U000e0069", "cat\\U000e0068\\U000e0069"),
    "half a pair": ("cat\ud83d", "cat\\ud83d"),
}


@pytest.mark.parametrize("word", WHOLE.values(), ids=WHOLE)
def test_the_words_of_the_world_stay_as_they_are(word: str):
    assert visible(word) == word


@pytest.mark.parametrize(("word", "shown"), ESCAPED.values(), ids=ESCAPED)
def test_what_cannot_be_seen_is_shown_escaped(word: str, shown: str):
    assert visible(word) == shown
