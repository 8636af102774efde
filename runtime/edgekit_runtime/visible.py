"""Text from elsewhere as a person may be shown it: nothing that cannot be seen, and nothing that turns the writing round.

    visible("caf\u00ad\u00e9 \u202e")        # 'caf\\xad\u00e9 \\u202e'

Rules: controls, line ends, what orders or joins words without being seen (zero-width spaces, marks and overrides of direction,
soft hyphens, tags) and halves of pairs become the escape that Python writes for them. All writing stays as it is, with the two
joiners that words of Persian and Hindi, and emoji, are made with. What is shown as JSON is escaped by that.
"""

from __future__ import annotations

__all__ = ["visible"]

_JOINERS = "\u200c\u200d"
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def visible(text: str) -> str:
    if text.isprintable():
        return text
    from unicodedata import category

    return "".join(
        ascii(letter)[1:-1] if category(letter) in _UNSEEN and letter not in _JOINERS else letter for letter in text
    )
