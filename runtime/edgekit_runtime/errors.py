"""The root of every error tree in edgekit.

An error says *what* went wrong, *where*, and what to *do* about it; `code` is stable and is what `--json` prints.

    raise InputError("the image has 2 channels", where="input 'image'", do="pass a grey, RGB or RGBA image")

Rule: `str(error)` is one line that a terminal and a log can show, whatever a file that nobody vouches for wrote into its
names: line ends, escape sequences, marks that turn the direction of writing and half surrogates are printed as Python's
escapes, and a text beyond MOST_TEXT characters is cut at the end of a word. A place that *what* names already is not repeated.
"""

from __future__ import annotations

import re
from typing import ClassVar

__all__ = [
    "BudgetExceeded",
    "BundleError",
    "ClosedError",
    "ContractError",
    "EdgekitError",
    "EngineError",
    "EngineHung",
    "ForkedError",
    "InputError",
    "IntegrityError",
    "MemoryExceeded",
    "MissingExtraError",
    "ModelFileError",
    "NewerBundleError",
    "QueueFull",
    "SelfTestError",
    "SessionError",
    "SignatureError",
    "TelemetryError",
    "errno_of",
    "sentences",
    "shortened",
]


MOST_TEXT = 2000
"""Characters of each of an error's three parts that `str` shows."""


class EdgekitError(Exception):
    """Anything edgekit refuses or cannot do. `str(error)` is the whole message in up to three sentences."""

    code: ClassVar[str] = "error"
    errno: int | None = None
    """The system's number of what is behind it, where a child process told it."""
    of_the_caller: bool = False
    """What the caller asked for does not fit the bundle: installing another bundle mends nothing."""

    def __init__(self, what: str, *, where: str = "", do: str = "") -> None:
        super().__init__(what, where, do)
        self.what = what
        self.where = where
        self.do = do

    def __str__(self) -> str:
        what, where, do = map(_one_line, (self.what, self.where, self.do))
        return sentences(what if not where or _names(what, where) else f"{where}: {what}", do)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.do))

    def as_json(self) -> dict[str, str]:
        return {"code": self.code, "what": self.what, "where": self.where, "do": self.do}


def errno_of(error: BaseException | None) -> int | None:
    """The system's number of what went wrong, found along its causes; None where the system refused nothing."""
    while error is not None:
        if isinstance(error, (OSError, EdgekitError)) and error.errno is not None:
            return error.errno
        error = error.__cause__
    return None


def sentences(what: str, do: str = "") -> str:
    """What is wrong and what to do about it, as one line with one full stop between them."""
    if not do:
        return what
    stop = "" if what.endswith((".", "!", "?")) else "."
    return f"{what}{stop} {do}"


def shortened(text: str, most: int) -> str:
    """At most that many characters, cut at the end of a word."""
    if len(text) <= most:
        return text
    cut = text[: most - 3]
    space = cut.rfind(" ", most // 2)
    return (cut if space < 0 else cut[:space].rstrip(" ,;:")) + "..."


def _names(what: str, where: str) -> bool:
    return where in what and re.search(rf"(?<![\w/.-]){re.escape(where)}(?![\w/-])", what) is not None


def _one_line(text: str) -> str:
    text = shortened(text, MOST_TEXT)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _rebuild(kind: type[EdgekitError], what: str, where: str, do: str) -> EdgekitError:
    error = kind.__new__(kind)
    EdgekitError.__init__(error, what, where=where, do=do)
    return error


class BundleError(EdgekitError):
    """The file is not a bundle, or its manifest breaks the format."""

    code = "bundle-format"


class NewerBundleError(BundleError):
    """The bundle is sound, as far as this reader can tell, and asks for a newer one."""

    code = "bundle-newer"


class IntegrityError(BundleError):
    """Bytes in the bundle are not the bytes that were packed."""

    code = "bundle-integrity"


class SignatureError(BundleError):
    """The bundle is not signed by a key that is trusted here."""

    code = "bundle-signature"


class ModelFileError(BundleError):
    """A model file whose structure no engine should be shown: it points outside itself, or asks for what is not allowed."""

    code = "model-file"


class ContractError(EdgekitError):
    """A contract that contradicts itself or the artifact."""

    code = "contract"


class InputError(EdgekitError):
    """An input the model cannot take: wrong shape or dtype, or an image the decoder rejects."""

    code = "input"


class EngineError(EdgekitError):
    """An engine is missing, cannot load the artifact, or failed while running it."""

    code = "engine"


class EngineHung(EngineError):  # noqa: N818 - what happened, as the field says it
    """An inference did not end within the watchdog's time; the engine is not asked again."""

    code = "engine-hung"


class SelfTestError(EdgekitError):
    """The bundle does not give its golden answers on this machine. steps, cosine: how far they are, where they differ."""

    code = "selftest"
    steps: float | None = None
    cosine: float | None = None


class ClosedError(EdgekitError):
    """The model was closed before this request was answered."""

    code = "closed"


class BudgetExceeded(EdgekitError):  # noqa: N818 - what happened, as the field says it
    """Nobody that could answer is expected to make it within the budget; said at once, before anything was run."""

    code = "budget"


class QueueFull(EdgekitError):  # noqa: N818 - what happened, as the field says it
    """More requests wait than the queue holds: ask less often, or say how many may wait when the bundle is opened."""

    code = "queue-full"


class MemoryExceeded(EdgekitError):  # noqa: N818 - what happened, as the field says it
    """A model does not fit into the memory it may take, even with nothing optional beside it."""

    code = "memory"


class ForkedError(EdgekitError):
    """The process was forked after the model was opened: engines and threads do not survive that."""

    code = "forked"


class SessionError(EdgekitError):
    """A model that keeps a state was asked as if it kept none, or the other way round; or its sessions cannot go on."""

    code = "session"


class TelemetryError(EdgekitError):
    """Where to report, or as which device, makes no sense. Trouble on the way there is never an error."""

    code = "telemetry"


class MissingExtraError(EdgekitError):
    """An optional part is not installed; `do` holds the command that adds it."""

    code = "missing-extra"

    def __init__(self, extra: str, why: str, *, where: str = "") -> None:
        super().__init__(
            f"{why} needs the '{extra}' extra, which is not installed",
            where=where,
            do=f"Run: pip install 'edgekit-deploy[{extra}]'",
        )
        self.extra = extra
