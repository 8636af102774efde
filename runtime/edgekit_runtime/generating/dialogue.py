"""A dialogue: messages that go back and forth, within the model's cache.

    with model.dialogue(system="Answer in one sentence.") as dialogue:
        for piece in dialogue.say("Where is the depot?"): print(piece, end="")
        dialogue.say("And when does it open?").read()
        dialogue.messages

Rules:
- an answer is part of what follows, also one that was stopped; one that failed is not, and neither is its question;
- a dialogue that is longer than the cache forgets its oldest question and answer, never the system's message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgekit_runtime.generating.generation import GeneratedText
from edgekit_runtime.generating.options import Message
from edgekit_runtime.system.errors import SessionError


class Dialogue:
    """One thread or task at a time. forgotten: exchanges that the cache had no room for.

    generate: as `Model.generate`, with what to call for a shorter prompt.
    """

    def __init__(self, generate: Callable[..., GeneratedText], system: str | None) -> None:
        self._generate = generate
        self._system: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._exchanges: list[tuple[Message, Message]] = []
        self._last: GeneratedText | None = None  # until it is one of the exchanges
        self.forgotten = 0

    @property
    def messages(self) -> list[Message]:
        """Of the system, the user and the assistant, as far as they are remembered."""
        self._remember()
        return [*self._system, *(message for pair in self._exchanges for message in pair)]

    def say(self, text: str, **options: Any) -> GeneratedText:
        """The answer to what the user says. options: as of `Model.generate`.

        Raises SessionError while another answer of this dialogue is open, and as `Model.generate` does.
        """
        self._remember()
        if self._last is not None:
            do = "Read the answer to its end, or close it, before the next question"
            raise SessionError("an answer of this dialogue is still open", do=do)
        question: Message = {"role": "user", "content": text}
        self._question = question

        def shorter() -> list[Message] | None:
            if not self._exchanges:
                return None
            del self._exchanges[0]
            self.forgotten += 1
            return [*self.messages, question]

        self._last = self._generate([*self.messages, question], shorter=shorter, **options)
        return self._last

    def reset(self) -> None:
        """Forget all but the system's message."""
        self._remember()
        self._exchanges.clear()
        self.forgotten = 0

    def _remember(self) -> None:
        """Keep the last answer, if it has ended."""
        last = self._last
        if last is not None and last.finish is not None:
            self._last = None
            if last.text and last.finish != "error":
                self._exchanges.append((self._question, {"role": "assistant", "content": last.text}))

    def __enter__(self) -> Dialogue:
        return self

    def __exit__(self, *_: object) -> None:
        if self._last is not None:
            self._last.close()
