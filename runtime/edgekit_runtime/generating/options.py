"""What `Model.generate` is asked, checked before anything runs.

    request = check_request("Where is the depot?", chat=True, max_tokens=100, stop="###")
    request.way, request.body["messages"]       # "chat", [{"role": "user", "content": "Where is the depot?"}]

Rules:
- a prompt is a text, or a list of messages for a model that takes them; `contract.text` checks each;
- for a chat model a text is one message of the user, for any other one the text to continue;
- a temperature of 0 takes the most probable token each time: the same answer to the same prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgekit_runtime.contract.text import admit
from edgekit_runtime.engines.llamacpp import Way
from edgekit_runtime.system.errors import InputError, OptionError
from edgekit_runtime.system.records import record

Message = Mapping[str, str]
Prompt = str | bytes | Sequence[Message]
ROLES = ("system", "user", "assistant")
MOST_TOKENS, MOST_STOPS, MOST_STOP, MOST_MESSAGES = 100_000, 16, 200, 10_000
_SENT_STOPS = 4
"""OpenAI's own servers take no more; all are looked for here."""


@record(frozen=True)
class TextRequest:
    """One request.

    way: to continue a text, or to answer messages.
    body: as the protocol of OpenAI has it.
    key: all of the prompt as one text, to find what two of them share.
    """

    way: Way
    body: dict[str, Any]
    key: str
    stops: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of the prompt."""
        return len(self.key.encode())

    def continued(self, text: str, tokens: int) -> TextRequest:
        """The same, of which `text` is the answer's beginning, with so many tokens."""
        left = {"max_tokens": max(1, self.body["max_tokens"] - tokens)}
        if self.way == "text":
            body = {**self.body, **left, "prompt": self.body["prompt"] + text}
        else:
            messages = [*self.body["messages"], {"role": "assistant", "content": text}]
            body = {**self.body, **left, "messages": messages if text else self.body["messages"]}
        return TextRequest(self.way, body, self.key + text, self.stops)


def check_request(
    prompt: Prompt,
    *,
    chat: bool,
    max_tokens: int = 256,
    stop: str | Sequence[str] = (),
    temperature: float = 0.0,
    seed: int | None = None,
) -> TextRequest:
    """Raises InputError for the prompt, OptionError for the rest."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, Sequence) else (stop,)
    if len(stops) > MOST_STOPS or not all(isinstance(one, str) and 0 < len(one) <= MOST_STOP for one in stops):
        what = f"must be at most {MOST_STOPS} texts of 1 to {MOST_STOP} characters, not {stop!r:.60}"
        raise OptionError("stop", what, "generate")
    if type(max_tokens) is not int or not 1 <= max_tokens <= MOST_TOKENS:
        what = f"must be a whole number from 1 to {MOST_TOKENS:,}, not {max_tokens!r:.40}"
        raise OptionError("max_tokens", what, "generate")
    if type(temperature) not in (int, float) or not 0 <= temperature <= 2:
        raise OptionError("temperature", f"must be a number from 0 to 2, not {temperature!r:.40}", "generate")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 1 << 32):
        raise OptionError("seed", f"must be a whole number below 2**32, not {seed!r:.40}", "generate")
    body: dict[str, Any] = {"max_tokens": max_tokens, "temperature": float(temperature)}
    body |= {} if seed is None else {"seed": seed}
    body |= {"stop": list(stops[:_SENT_STOPS])} if stops else {}
    if isinstance(prompt, (str, bytes, bytearray, memoryview)):
        text = admit(prompt, "the prompt").data.decode()
        if not chat:
            return TextRequest("text", {**body, "prompt": text}, text, stops)
        messages: Sequence[Message] = [{"role": "user", "content": text}]
    else:
        messages = _messages(prompt)
        if not chat:
            raise InputError("the model continues a text and takes no messages", where="the prompt", do="Pass a text")
    key = "\n".join(f"{one['role']}: {one['content']}" for one in messages)
    return TextRequest("chat", {**body, "messages": messages}, key, stops)


def _messages(given: object) -> list[Message]:
    do = 'Pass a text, or messages as [{"role": "user", "content": "Hello"}]'
    if not isinstance(given, Sequence) or not 0 < len(given) <= MOST_MESSAGES:
        raise InputError(f"a {type(given).__name__} is neither a text nor messages", where="the prompt", do=do)
    found: list[Message] = []
    for number, one in enumerate(given):
        where = f"message {number} of the prompt"
        if not isinstance(one, Mapping) or set(one) != {"role", "content"} or one["role"] not in ROLES:
            raise InputError(f"it has not a role ({', '.join(ROLES)}) and a content", where=where, do=do)
        if not isinstance(one["content"], (str, bytes)):
            raise InputError(f"its content is a {type(one['content']).__name__}", where=where, do=do)
        found.append({"role": str(one["role"]), "content": admit(one["content"], where).data.decode()})
    return found
