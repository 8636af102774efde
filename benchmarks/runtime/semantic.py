"""What answers of near questions cost in correctness: a bound against a fixed threshold of the same hit rate.

    python benchmarks/runtime/semantic.py minilm.ekb            # a bundle that makes vectors of texts
    python benchmarks/runtime/semantic.py minilm.ekb --json

Rules:
- the questions are made here: 2,000 pairs of a question and a paraphrase, 2,000 near misses (another name, another
  number, a negation), in a seeded order; no text comes twice, and the true answer of each is known;
- the tier of the runtime itself is asked; a question that it does not answer is answered by the truth;
- beside it: of how many triples of a question, a paraphrase and another topic the paraphrase is nearer;
- the fixed threshold is the one whose hit rate on the same stream is nearest to the bound's, with all else equal.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.cache.similar import Semantic

PAIRS = 2_000
_TOPICS = (
    "reset the password", "clean the camera lens", "charge the battery", "return a damaged parcel", "mute the alarm",
    "connect the printer to wifi", "cancel my subscription", "update the firmware", "book a room", "find the exit",
    "replace the air filter", "open the gate", "print a label", "weigh a pallet", "report an accident", "order parts",
)  # fmt: skip
_FORMS = ("How do I {}?", "What must I do to {}?", "Please tell me how to {}.", "I want to {}, how?", "Help me {}.")
_BEFORE = (
    "",
    "Hi, ",
    "Quick question: ",
    "Sorry, ",
    "Hello, ",
    "One more thing: ",
    "Please help: ",
    "Hey, ",
    "Good day, ",
)
_AFTER = (
    "",
    " Thanks!",
    " It is urgent.",
    " I am new here.",
    " My colleague asks.",
    " I tried it twice.",
    " Thank you.",
)
_NAMES = (
    "Anna",
    "Boris",
    "Chloe",
    "David",
    "Elif",
    "Farid",
    "Grace",
    "Hugo",
    "Ines",
    "Jonas",
    "Kofi",
    "Lena",
    "Mia",
    "Omar",
)
_DEEDS = ("arrive at the depot", "leave the office", "start the night shift", "call the supplier", "sign the contract")
_DAYS = ("on Monday", "on Tuesday", "on Friday", "today", "tomorrow", "next week", "in March", "in May")


@dataclass(frozen=True)
class Question:
    """truth: what a right answer says. near: whether a near miss of it is in the stream."""

    text: str
    truth: str
    near: bool


def questions(pairs: int = PAIRS, seed: int = 0) -> list[Question]:
    """`pairs` paraphrases and as many near misses, mixed; no text comes twice, for the exact cache has that."""
    chance, found, seen = random.Random(seed), list[Question](), set[str]()
    for make in (_paraphrase, _near_miss):
        wanted = len(found) + pairs
        while len(found) < wanted:
            one = make(chance)
            if one.text not in seen:
                seen.add(one.text)
                found.append(one)
    chance.shuffle(found)
    return found


def _paraphrase(chance: random.Random) -> Question:
    topic = chance.choice(_TOPICS)
    text = chance.choice(_BEFORE) + chance.choice(_FORMS).format(topic) + chance.choice(_AFTER)
    return Question(text, topic, near=False)


def _near_miss(chance: random.Random) -> Question:
    """It differs from others in a name, a number or a negation alone."""
    kind = chance.randrange(3)
    if kind == 0:
        text = f"When does {chance.choice(_NAMES)} {chance.choice(_DEEDS)} {chance.choice(_DAYS)}?"
        return Question(text, text, near=True)
    number = chance.randrange(1000)
    if kind == 1:
        return Question(f"What does error {number} of the machine mean?", f"error {number}", near=True)
    text = f"What happens if valve {number} {chance.choice(('is', 'is not'))} open?"
    return Question(text, text, near=True)


@dataclass(frozen=True)
class Result:
    """hits, false: of all questions; quarters: hits and false ones of each quarter."""

    name: str
    asked: int
    hits: int
    false: int
    quarters: tuple[tuple[int, int], ...]

    @property
    def rate(self) -> float:
        return self.false / self.hits if self.hits else 0.0


def play(name: str, tier: Semantic, stream: Sequence[Question]) -> Result:
    """Ask the tier every question in turn."""
    quarters = [[0, 0] for _ in range(4)]
    for at, question in enumerate(stream):
        answer, kept = tier.answer(question.text, lambda _, question=question: question.truth)
        quarter = quarters[4 * at // len(stream)]
        quarter[0] += kept
        quarter[1] += kept and answer != question.truth
    hits, false = (sum(one[at] for one in quarters) for at in (0, 1))
    return Result(name, len(stream), hits, false, tuple((a, b) for a, b in quarters))


def compared(
    embed: Callable[[str], NDArray[np.float32]], error: float, stream: Sequence[Question], seed: int = 0
) -> tuple[Result, Result, float, Semantic]:
    """The bound, the fixed threshold of the nearest hit rate, that threshold, and the bound's tier."""
    kept: dict[str, NDArray[np.float32]] = {}

    def once(text: str) -> NDArray[np.float32]:
        if text not in kept:
            kept[text] = embed(text)
        return kept[text]

    tier = Semantic(once, error=error, chance=random.Random(seed))
    bounded = play(f"error={error:g}", tier, stream)
    low, high = 0.0, 1.0
    fixed = play("", Semantic(once, high), stream)
    for _ in range(12):
        middle = (low + high) / 2
        fixed = play(f"threshold={middle:.4f}", Semantic(once, middle), stream)
        low, high = (middle, high) if fixed.hits < bounded.hits else (low, middle)
    return bounded, fixed, middle, tier


def triples(embed: Callable[[str], NDArray[np.float32]], count: int = 600, seed: int = 5) -> float:
    """Share of triples of which a question's paraphrase is nearer than another topic in the paraphrase's words."""
    chance, right = random.Random(seed), 0
    for _ in range(count):
        (topic, other), (form, again) = chance.sample(_TOPICS, 2), chance.sample(_FORMS, 2)
        before, after = chance.choice(_BEFORE), chance.choice(_AFTER)
        texts = (form.format(topic), before + again.format(topic) + after, before + again.format(other) + after)
        question, near, far = map(embed, texts)
        right += bool(question @ near > question @ far)
    return right / count


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--error", type=float, default=0.02)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    from edgekit_runtime import open_bundle

    with open_bundle(chosen.bundle, settled=True) as model:

        def embed(text: str) -> NDArray[np.float32]:
            return model.predict(text).vector

        ranked = triples(embed)
        bounded, fixed, _, tier = compared(embed, chosen.error, questions())
    stats = tier.bound()
    assert stats is not None
    if chosen.json:
        print(json.dumps({"results": [vars(bounded), vars(fixed)], "bound": repr(stats), "triples": ranked}))
        return 0
    for one in (bounded, fixed):
        quarters = ", ".join(f"{false}/{hits}" for hits, false in one.quarters)
        rates = f"hits {100 * one.hits / one.asked:5.1f} %   false {100 * one.rate:5.2f} %"
        print(f"{one.name:<18} {rates}   by quarter {quarters}")
    print(stats)
    print(f"triples of which the paraphrase is nearer: {100 * ranked:.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
