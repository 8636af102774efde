"""A SentencePiece model becomes a tokenizer.json with the same tokens."""

from __future__ import annotations

import io
import random
from collections import Counter
from pathlib import Path

import pytest
import sentencepiece as spm
from tokenizers import Tokenizer

from edgekit_converters.data.sentencepiece import tokenizer_json

DOCS = Path(__file__).parents[3] / "docs"
ODD = [
    "", " two  spaces ", "tab\tnew\nline", "\u65e5\u672c\u8a9e", "\U0001f469\u200d\U0001f467 joined", "\ufb01ne",
    "e\u0301 \u00e9", "\uff21\uff22 wide", "\u0645\u0631\u062d\u0628\u0627", "x" * 400, "a\u200bb", "$5.00 (-3 %)",
    "(in brackets)", " a \n b ", "\ttab",
]  # fmt: skip


@pytest.fixture(scope="module")
def lines():
    return [line for file in sorted(DOCS.glob("*.md")) for line in file.read_text().splitlines() if len(line) > 20]


def trained(lines, **options) -> bytes:
    made = io.BytesIO()
    settings = {"vocab_size": 700, "model_type": "unigram", "minloglevel": 2} | options
    spm.SentencePieceTrainer.train(sentence_iterator=iter(lines[::4]), model_writer=made, **settings)
    return made.getvalue()


OPTIONS = [
    {}, {"byte_fallback": True}, {"add_dummy_prefix": False}, {"bos_id": -1}, {"remove_extra_whitespaces": False},
    {"normalization_rule_name": "identity"}, {"user_defined_symbols": ["(", "-", ".", "\u2013", "\u00a3", "edgekit"]},
]  # fmt: skip


@pytest.mark.parametrize("options", [*OPTIONS, *({"model_type": "bpe"} | one for one in OPTIONS)])
def test_it_gives_the_same_tokens(lines, options):
    data = trained(lines, **options)
    theirs, ours = spm.SentencePieceProcessor(model_proto=data), Tokenizer.from_str(tokenizer_json(data).decode())
    for text in [*ODD, *lines[1::9]]:
        want, got = theirs.encode(text), ours.encode(text, add_special_tokens=False).ids
        if want != got:  # as likely, so either may be taken
            assert "model_type" not in options, text
            scores = [sum(map(theirs.get_score, ids)) for ids in (want, got)]
            assert scores[0] == pytest.approx(scores[1], abs=1e-3), text
            assert theirs.decode(want) == theirs.decode(got)
    assert ours.encode("hello").tokens[-1] == "</s>"
    assert (ours.encode("hello").tokens[0] == "<s>") == ("bos_id" not in options)


@pytest.mark.parametrize("data", [b"", b"no model", bytes(100)])
def test_other_bytes_are_refused(data):
    with pytest.raises(ValueError, match="not a SentencePiece model"):
        tokenizer_json(data)


def test_a_damaged_file_is_refused_or_read_and_nothing_else(lines):
    data, draw = trained(lines, vocab_size=100, normalization_rule_name="identity"), random.Random(1)
    ends = Counter()
    for _ in range(300):
        damaged = bytearray(data[: draw.choice([len(data), draw.randrange(len(data))])])
        for _ in range(min(len(damaged), 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        try:
            ends[bool(tokenizer_json(bytes(damaged)))] += 1
        except ValueError as error:
            ends[str(error)[:31]] += 1
    assert set(ends) <= {True, "it is not a SentencePiece model"}
    assert len(ends) == 2


def test_another_kind_is_refused(lines):
    with pytest.raises(ValueError, match="of the kind Unigram or BPE"):
        tokenizer_json(trained(lines, model_type="char", vocab_size=100))
