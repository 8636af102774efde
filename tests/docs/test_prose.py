"""The pages stay short: sentences of at most 25 words, and bounds on the pages that grow by themselves.

A sentence ends at a full stop, a question mark or an exclamation mark. Code in a line counts as one word. Tables,
headings and fenced blocks are not sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")),
    *sorted((ROOT / "docs").glob("*.md")),
]
MOST_WORDS = 25


def sentences(text: str) -> Iterator[str]:
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "\n\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^( *\|.*|#.*)$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "code", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text))
    text = re.sub(r"^\s*(?:[-*]|\d+\.)\s+", "\n\n", text, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", text):
        yield from re.split(r"(?<=[.!?])[)*\"]*\s+", " ".join(paragraph.split()))


def too_long(text: str) -> list[str]:
    return [one for one in sentences(text) if len(one.split()) > MOST_WORDS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_sentence_has_at_most_25_words(page: Path):
    assert too_long(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "longest"),
    [
        ("word " * 25 + "end.", 1),
        ("word " * 24 + "end.", 0),
        ("word " * 20 + "end. " + "word " * 20 + "end.", 0),
        ("- " + "word " * 20 + "\n- " + "word " * 20, 0),
        ("- " + "word " * 20 + "\n  " + "word " * 20, 1),
        ("word " * 20 + "`" + "word " * 20 + "` end.", 0),
        ("| " + "word " * 40 + "|\n", 0),
    ],
    ids=["26 words", "25 words", "two sentences", "two items", "one item", "code", "a table"],
)
def test_long_sentences_are_found(text: str, longest: int):
    assert len(too_long(text)) == longest


@pytest.mark.parametrize(("page", "most"), [("CHANGELOG.md", 500), ("docs/known-limits.md", 1000)])
def test_a_page_that_grows_by_itself_stays_short(page: str, most: int):
    assert len((ROOT / page).read_text(encoding="utf-8").split()) <= most
