"""The root of every error tree in edgekit.

An error says *what* went wrong, *where*, and what to *do*; `code` is stable and is what `--json` prints. `do` names
options of Python; the command line prints `do_cli`, with its flags, if an error has one.

    raise InputError("the image has 2 channels", where="input 'image'", do="pass a grey, RGB or RGBA image")

Rules:
- a class is something that an application handles; `code` is the reason, the class's own or one of its `reasons`;
- an error that `install` raises leaves the active version as it was;
- `str(error)` is one line for a terminal or a log: line ends, escape sequences, direction marks and half surrogates in
  it become Python's escapes;
- a part beyond MOST_TEXT characters is cut at a word, and a place that *what* already names is not repeated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

MOST_TEXT = 2000
"""Characters of each of an error's three parts that `str` shows."""
_JOINERS = "\u200c\u200d"
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


class EdgekitError(Exception):
    """Base class of all errors. `str(error)` is the whole message."""

    code: str = "error"
    reasons: ClassVar[dict[str, str]] = {}
    """Other codes of this very class -> their meaning."""
    do_cli: str = ""
    """`do` with the flags of the command line; empty if `do` names no option of Python."""
    errno: int | None = None
    """The system's errno behind it, if a child process reported one."""
    mistakes: tuple[EdgekitError, ...] = ()
    """Each mistake of a file as an error of its own, if `what` names several."""
    of_the_caller: bool = False
    """The caller's options do not fit the bundle: installing another bundle would not help."""

    def __init_subclass__(cls) -> None:
        cls.reasons = vars(cls).get("reasons", {})

    def __init__(self, what: str, *, where: str = "", do: str = "", code: str = "", do_cli: str = "") -> None:
        super().__init__(what, where, do)
        self.what = what
        self.where = where
        self.do = do
        self.do_cli = do_cli
        if code:
            if code != self.code and code not in self.reasons:
                raise ValueError(f"{type(self).__name__} has no code {code!r}")
            self.code = code

    def __str__(self) -> str:
        what, where, do = map(_one_line, (self.what, self.where, self.do))
        named = where in what and re.search(rf"(?<![\w/.-]){re.escape(where)}(?![\w/-])", what) is not None
        return sentences(what if not where or named else f"{where}: {what}", do)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.do, self.code, self.do_cli))

    def speak_cli(self) -> None:
        """Let `do` name the flags of the command line."""
        self.do = self.do_cli or self.do

    def as_json(self) -> dict[str, str]:
        return {"code": self.code, "what": self.what, "where": self.where, "do": self.do}


def errno_of(error: BaseException | None) -> int | None:
    """The errno of the first cause that has one, else None."""
    while error is not None:
        if isinstance(error, (OSError, EdgekitError)) and error.errno is not None:
            return error.errno
        error = error.__cause__
    return None


def from_json(said: Mapping[str, str], otherwise: type[EdgekitError]) -> EdgekitError:
    """The error of another process's `as_json`; of the class `otherwise` if its code is unknown."""
    code = said["code"]
    kinds = [kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, EdgekitError)]
    for kind in kinds:
        if code == kind.code or code in kind.reasons:
            return _rebuild(kind, said["what"], said["where"], said["do"], code)
    return _rebuild(otherwise, said["what"], said["where"], said["do"], otherwise.code)


def sentences(what: str, do: str = "") -> str:
    """What is wrong and what to do about it, as one line with one full stop between them."""
    if not do:
        return what
    stop = "" if what.endswith((".", "!", "?")) else "."
    return f"{what}{stop} {do}"


def shorten(text: str, most: int) -> str:
    """At most that many characters, cut at the end of a word."""
    if len(text) <= most:
        return text
    cut = text[: most - 3]
    space = cut.rfind(" ", most // 2)
    return (cut if space < 0 else cut[:space].rstrip(" ,;:")) + "..."


def _one_line(text: str) -> str:
    text = shorten(text, MOST_TEXT)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _rebuild(kind: type[EdgekitError], what: str, where: str, do: str, code: str, do_cli: str = "") -> EdgekitError:
    error = kind.__new__(kind)
    EdgekitError.__init__(error, what, where=where, do=do, code=code, do_cli=do_cli)
    return error


class BundleError(EdgekitError):
    """The file is not a bundle, or its manifest breaks the format."""

    code = "bundle-format"
    reasons: ClassVar[dict[str, str]] = {"bundle-newer": "it needs a newer edgekit than this one"}


class IntegrityError(BundleError):
    """Bytes in the bundle are not the bytes that were packed."""

    code = "bundle-integrity"


class SignatureError(BundleError):
    """The bundle is not signed by enough keys that this machine trusts."""

    code = "bundle-signature"
    reasons: ClassVar[dict[str, str]] = {
        "unsigned": "it has no signature",
        "unknown-key": "no trusted key signed it",
        "bad-signature": "a signature by a trusted key does not match the bytes",
        "revoked-key": "the key that signed it was revoked",
        "key-expired": "the key that signed it is no longer valid",
        "too-few-signatures": "fewer trusted keys signed it than the threshold",
    }


class TrustError(SignatureError):
    """The root.json or a trusted key cannot be read, or does not hold."""

    code = "trust"
    reasons: ClassVar[dict[str, str]] = {
        "no-trust-store": "no trusted keys are configured on this machine",
        "unsafe-path": "another user could replace the file that names the trusted keys",
        "root-expired": "the root.json has expired: nothing new is accepted until a newer one is installed",
        "root-rollback": "the root.json cannot follow the installed one: it is older, or leaves versions out",
    }


class SecretError(BundleError):
    """An encrypted bundle cannot be opened here: no key, or not the right one."""

    code = "secret"
    reasons: ClassVar[dict[str, str]] = {
        "secret-missing": "no key is configured",
        "secret-unreadable": "the configured file, variable or command gave no key",
        "secret-format": "what was found is not a key",
        "secret-wrong": "the key is not the one that the bundle was encrypted with",
    }


class ModelFileError(BundleError):
    """A model file that points outside itself or asks for what is not allowed."""

    code = "model-file"


class ContractError(EdgekitError):
    """A contract that contradicts itself or the artifact."""

    code = "contract"


class InputError(EdgekitError):
    """An input the model cannot take: wrong shape or dtype, or an image the decoder rejects."""

    code = "input"
    reasons: ClassVar[dict[str, str]] = {"context-full": "a prompt or dialogue has more tokens than the cache holds"}


class CameraError(EdgekitError):
    """A camera, clip or network stream that cannot be opened, or gives no pictures."""

    code = "camera"


class OptionError(EdgekitError, ValueError):
    """An option that makes no sense.

    option: its name.
    problem: the rest of the sentence: what the value must be.
    owner: the class, or `open_bundle`, that takes it; may be empty."""

    code = "option"

    def __init__(self, option: str, problem: str, owner: str = "") -> None:
        super().__init__(f"{option} {problem}", where=owner)
        self.option, self.problem, self.owner = option, problem, owner

    def __reduce__(self) -> tuple[object, ...]:
        return (OptionError, (self.option, self.problem, self.owner))


class EngineError(EdgekitError):
    """An engine is missing, cannot load the artifact, or failed while running it."""

    code = "engine"


class EngineHung(EngineError):  # noqa: N818 - what happened, as the field says it
    """An inference did not end within the watchdog's time; the engine is not used again."""

    code = "engine-hung"


class SelfTestError(EdgekitError):
    """The bundle does not give its golden answers on this machine.
    steps, cosine: how far they differ."""

    code = "selftest"
    steps: float | None = None
    cosine: float | None = None


class ClosedError(EdgekitError):
    """The model was closed before this request was answered."""

    code = "closed"


def model_closed() -> ClosedError:
    return ClosedError("the model was closed", do="Open the bundle again")


class BudgetExceeded(EdgekitError):  # noqa: N818 - what happened, as the field says it
    """No answer within the budget. Raised immediately if expected, else when the budget ends."""

    code = "budget"


class QueueFull(EdgekitError):  # noqa: N818 - what happened, as the field says it
    """The queue is full: send fewer requests, or open the bundle with a longer queue."""

    code = "queue-full"


class MemoryExceeded(EdgekitError):  # noqa: N818 - what happened, as the field says it
    """A model does not fit into the memory it may take, even without anything optional."""

    code = "memory"


class ForkedError(EdgekitError):
    """The process was forked after the model was opened.
    Engines and threads do not survive that."""

    code = "forked"


class SessionError(EdgekitError):
    """A stateful model was asked without a session, a stateless one with it, or it ended."""

    code = "session"


class TelemetryError(EdgekitError):
    """The broker's address, the device's name or the spool cannot be used; not network trouble."""

    code = "telemetry"
    reasons: ClassVar[dict[str, str]] = {"telemetry-spool": "the file is not an edgekit spool, or cannot be read"}


class WindowError(EdgekitError):
    """A malformed telemetry payload.
    word: the kind that is counted: json, size, version, shape, device."""

    code = "telemetry-payload"

    def __init__(self, word: str, what: str) -> None:
        super().__init__(what)
        self.word = word


class CacheFileError(EdgekitError):
    """The file named for the disk cache is not a cache of edgekit."""

    code = "cache-file"


class MetricsError(EdgekitError):
    """The metrics page cannot be served at this address."""

    code = "metrics"


class InstallError(EdgekitError):
    """A bundle cannot be installed, activated or rolled back."""

    code = "install"
    reasons: ClassVar[dict[str, str]] = {
        "install-root": "the folder is not an install root, or its state cannot be read",
        "install-busy": "another install in this root did not end in time",
        "planted": "the root holds what edgekit did not put there: a link, a second name, a folder for a file",
        "incompatible": "the bundle is for other boards",
        "downgrade": "its rollout_seq is older than one accepted before",
        "rollout-seq-reused": "another bundle with its rollout_seq was accepted before",
        "expired": "the bundle is past its expires date",
        "not-yet-valid": "the bundle's not_before date is still to come",
        "trial-failed": "the bundle failed its trial on this board: too slow, too large, or its engine failed",
        "trial-pending": "a version is on trial with the application, which has to decide first",
        "no-generation": "the root has no such version, or none to go back to",
    }


class StorageError(InstallError):
    """The disk failed, or does not allow what an install must do."""

    code = "storage"
    reasons: ClassVar[dict[str, str]] = {
        "disk-full": "not enough space for the bundle",
        "read-only": "the root is on a file system that is mounted read-only",
    }


class DownloadError(InstallError):
    """The bundle cannot be downloaded; what arrived is kept, and the next install resumes there."""

    code = "download"
    reasons: ClassVar[dict[str, str]] = {
        "download-slow": "it comes too slowly, or takes too long in all",
        "download-size": "it is longer than a bundle may be, or not as long as its signed header says",
    }


class WireError(EdgekitError):
    """Bytes or tensors that the Open Inference Protocol or its codec does not allow."""

    code = "wire"


class HostError(EdgekitError):
    """The host gave no answer. status: the HTTP status, 0 without one."""

    code = "host"
    reasons: ClassVar[dict[str, str]] = {
        "host-address": "the address of the host is malformed",
        "host-unreachable": "no connection, or it broke before an answer",
        "host-busy": "503 or 429: the host is up and will not answer in time",
        "host-refused": "another 4xx, or the host serves another model or contract: a retry will not help",
        "host-late": "the time given ran out",
        "host-cut": "a streamed answer ended before it was complete",
        "host-protocol": "a 5xx, bytes that are not HTTP, or tensors that are inconsistent",
        "host-golden": "the host's answer to a golden example is not within tolerance, so it answers no request",
        "host-secret": "a token, certificate or CA cannot be read, or a token would travel unencrypted",
    }
    status: int = 0


class MissingExtraError(EdgekitError):
    """An optional part is not installed; `do` holds the command that adds it."""

    code = "missing-extra"

    def __init__(self, extra: str, why: str, *, where: str = "") -> None:
        super().__init__(
            f"{why} needs the '{extra}' extra, which is not installed", where=where, do=f"Run: {install_command(extra)}"
        )
        self.extra = extra


def install_command(extra: str) -> str:
    """The command that adds an extra, from the clone, wheel, address or index of this one."""
    import json
    import shlex
    import sys
    from importlib.metadata import PackageNotFoundError, distribution
    from importlib.util import find_spec
    from urllib.parse import unquote, urlsplit

    source, editable = f"edgekit-deploy[{extra}]", ""
    try:
        found = json.loads(distribution("edgekit-deploy").read_text("direct_url.json") or "{}")
        url = urlsplit(str(found["url"]))
        if url.scheme == "file":
            source = f"{unquote(url.path)}[{extra}]"
            editable = "-e " if found.get("dir_info", {}).get("editable") else ""
        else:
            git = found.get("vcs_info", {})
            source += f" @ {git['vcs']}+{url.geturl()}@{git['commit_id']}" if git else f" @ {url.geturl()}"
    except (PackageNotFoundError, ValueError, KeyError, AttributeError, OSError):
        pass
    install = "pip install" if find_spec("pip") else f"uv pip install --python {shlex.quote(sys.executable)}"
    return f"{install} {editable}{shlex.quote(source)}"


def print_traceback(error: BaseException) -> None:
    """Show on stderr where a fault of edgekit's own is. Never raises."""
    import contextlib
    import sys
    import traceback

    for stream in (sys.stderr, sys.__stderr__):
        with contextlib.suppress(Exception):
            assert stream is not None
            stream.write("".join(traceback.format_exception(error)))
            stream.flush()
            return


def visible(text: str) -> str:
    """Text from elsewhere, safe to show: unseen and direction-changing characters are escaped.
    Controls, line ends, zero-width spaces, direction marks, soft hyphens, tags and half surrogates become escapes of
    Python. The two joiners of Persian, Hindi and emoji stay."""
    if text.isprintable():
        return text
    from unicodedata import category

    return "".join(
        ascii(letter)[1:-1] if category(letter) in _UNSEEN and letter not in _JOINERS else letter for letter in text
    )
