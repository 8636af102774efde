"""The events of a streamed answer, as OpenAI-compatible servers and llama.cpp write them.

    chunk = read_chunk('{"choices": [{"delta": {"content": "Hel"}, "finish_reason": null}]}')
    chunk.text, chunk.finish                    # "Hel", None
    stop = StopStrings(("###",))
    stop.feed("Hello #"), stop.feed("## more"), stop.found      # "Hello ", "", "###"

Rules:
- an event is a stranger's: anything but an object of the known form is a WireError that says what is wrong;
- an event without text, as of a role, of thoughts or of counts, has an empty text;
- a stop string is found across events: what may be its beginning is held back until it is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgekit_runtime.system.errors import WireError, shorten
from edgekit_runtime.system.records import record
from edgekit_runtime.system.strict_json import load_json

MOST_TOKENS = 10_000_000


@record(frozen=True)
class Chunk:
    """finish: why the answer ended ("stop", "length"), None before its end.
    tokens: of the answer so far, reused: of the prompt, not computed again; None if the event does not say."""

    text: str = ""
    finish: str | None = None
    tokens: int | None = None
    reused: int | None = None


def read_chunk(event: str | bytes) -> Chunk:
    """Raises WireError for an error that the event reports, and for what it should not be."""
    try:
        value = load_json(event)
    except ValueError as error:
        raise WireError(f"an event is not JSON ({type(error).__name__})") from error
    if not isinstance(value, dict):
        raise WireError("an event is not an object")
    if value.get("error") is not None:
        reported = value["error"]
        said = reported.get("message", reported) if isinstance(reported, dict) else reported
        raise WireError(f"it reports: {shorten(str(said), 200)}")
    choices, usage, timings = value.get("choices"), _part(value, "usage"), _part(value, "timings")
    tokens = timings.get("predicted_n", usage.get("completion_tokens"))
    reused = timings.get("cache_n", _part(usage, "prompt_tokens_details").get("cached_tokens"))
    counts = [n if type(n) is int and 0 <= n <= MOST_TOKENS else None for n in (tokens, reused)]
    if not choices:
        return Chunk("", None, *counts)
    first = choices[0] if isinstance(choices, list) else None
    if not isinstance(first, dict):
        raise WireError("an event's choices are not objects")
    delta, finish = first.get("delta"), first.get("finish_reason")
    text = delta.get("content") if isinstance(delta, dict) else first.get("text")
    if not isinstance(text or "", str) or not isinstance(finish or "", str):
        raise WireError("an event's text is not a text")
    return Chunk(text or "", finish or None, *counts)


def _part(value: dict[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


class StopStrings:
    """found: the stop string that ended the answer, None before."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self._held = tuple(stops), ""
        self.found: str | None = None

    def feed(self, piece: str) -> str:
        """What came so far and is not part of a stop string."""
        text = self._held + piece
        hits = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if hits:
            at, self.found = min(hits, key=lambda hit: (hit[0], -len(hit[1])))
            self._held = ""
            return text[:at]
        most = max(
            (size for stop in self._stops for size in range(1, len(stop)) if text.endswith(stop[:size])), default=0
        )
        self._held = text[len(text) - most :]
        return text[: len(text) - most]

    def rest(self) -> str:
        """What was held back, at the answer's end."""
        held, self._held = self._held, ""
        return held
