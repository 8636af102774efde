"""Texts as inputs: the bundle's tokenizer makes the tensors of a text.

    register(Path("tokenizer.json").read_bytes())    # its SHA-256, as the contract names it
    tensors = TextInput(contract)("Where is the depot?")    # {"input_ids": int64 [128], "attention_mask": ...}

Rules:
- a text is a str, or UTF-8 bytes; arrays of tokens are taken as any tensor's, and need no tokenizer;
- empty texts, NUL, invalid UTF-8, more than MAX_CHARS and texts without one token of their own are refused;
- a longer text is cut at the model's length, or refused, as the contract says; a shorter one is padded;
- tokenizers are kept by their SHA-256, so two models with the same one share it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.system.errors import ContractError, EdgekitError, InputError, MissingExtraError

MAX_CHARS = 100_000
"""Characters of one text; the longest models take about 8,000 tokens."""
MAX_TOKENIZER_BYTES = 64 << 20
TEXT = "text"
"""The name under which a request holds its text, in place of the inputs' names."""
_SHORTER = "Split it into paragraphs, and pass each one by itself"
_files: dict[str, bytes] = {}
_parsed: dict[str, Any] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Text:
    """One text, checked. data: UTF-8."""

    data: bytes


def texts_of(named: Mapping[str, Any]) -> dict[str, str]:
    """The text of a request, for an embedder; empty if it was given as arrays."""
    return {name: value.data.decode() for name, value in named.items() if isinstance(value, Text)}


def register(data: bytes) -> str:
    """Keep the bytes of a tokenizer.json; returns their SHA-256 in hex."""
    digest = hashlib.sha256(data).hexdigest()
    _files.setdefault(digest, data)
    return digest


def tokenizer_file(digest: str) -> bytes:
    """The bytes that were registered. Raises ContractError."""
    if digest not in _files:
        raise ContractError(f"the tokenizer {digest[:12]} is not open", do="Open the bundle, or its contract file")
    return _files[digest]


def tokenizer(digest: str) -> Any:
    """The `tokenizers.Tokenizer` of a registered file, without padding or truncation.

    Raises ContractError for a file that is not a tokenizer.json, MissingExtraError without the package."""
    with _lock:
        if digest not in _parsed:
            try:
                from tokenizers import Tokenizer
            except ImportError as error:
                raise MissingExtraError("text", "a text") from error
            made = guarded(lambda: Tokenizer.from_buffer(tokenizer_file(digest)))
            if isinstance(made, Exception):
                do = "Save it again with transformers' save_pretrained"
                raise ContractError(f"it is not a tokenizer.json: {made}"[:300], where="the tokenizer", do=do)
            made.no_padding()
            made.no_truncation()
            _parsed[digest] = made
        return _parsed[digest]


def guarded(call: Any) -> Any:
    """What `call` returns, or its error; a panic of the Rust library is not an `Exception`."""
    try:
        return call()
    except EdgekitError:
        raise
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        return error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return ValueError(str(error))


def admit(value: Any, where: str) -> Text:
    """The text of a str or of bytes. Raises InputError."""
    if isinstance(value, Text):
        return value

    def refusal(what: str, do: str) -> InputError:
        return InputError(what, where=where, do=do)

    try:
        text = value if isinstance(value, str) else bytes(value).decode("utf-8")
        data = text.encode("utf-8")
    except UnicodeDecodeError as error:
        raise refusal(f"the text is not UTF-8 (byte {error.start})", "Decode it before") from error
    except UnicodeEncodeError as error:
        what = f"the text has half a surrogate pair, or bytes that are not UTF-8 (character {error.start})"
        raise refusal(what, "Save its file as UTF-8") from error
    if not text.strip():
        raise refusal("the text is empty", "Pass at least one word")
    if len(text) > MAX_CHARS:
        what = f"the text has {len(text):,} characters, more than {MAX_CHARS:,}"
        raise refusal(what, _SHORTER)
    if "\0" in text:
        what = f"the text has a NUL (character {text.index(chr(0))})"
        raise refusal(what, "Check that it is text, not a binary file or UTF-16")
    return Text(data)


class TextInput:
    """Callable: a text in, the canonical items of its inputs out. Thread-safe."""

    def __init__(self, contract: Contract) -> None:
        assert contract.text is not None
        self._spec, self._contract = contract.text, contract
        ids = contract.input(self._spec.ids)
        self._length = int(ids.shape[-1])
        self._where = f"input '{ids.name}'"

    def admit(self, value: Any) -> Text:
        """The text of a str or of bytes. Raises InputError."""
        return admit(value, self._where)

    def __call__(self, value: Any) -> dict[str, NDArray[Any]]:
        """Arrays [length] by input name: token ids, mask and token types. Raises InputError."""
        spec, length = self._spec, self._length
        text = self.admit(value).data.decode()
        read = tokenizer(spec.tokenizer)
        found = guarded(lambda: read.encode(text, add_special_tokens=False))
        if isinstance(found, Exception):
            raise self._refusal(f"the tokenizer refuses the text: {found}"[:300], "Remove unusual characters")
        if not found.ids:
            raise self._refusal("the text has no token of the model's vocabulary", "Pass at least one word")
        room = length - (read.num_special_tokens_to_add(False) if spec.special_tokens else 0)
        if len(found.ids) > room:
            if spec.truncation == "refuse":
                raise self._refusal(f"the text has {len(found.ids):,} tokens, more than {room}", _SHORTER)
            found.truncate(room, direction=spec.truncation)
        found = read.post_process(found, None, spec.special_tokens)
        return {
            name: self._row(name, values, pad)
            for name, values, pad in (
                (spec.ids, found.ids, spec.pad),
                (spec.mask, found.attention_mask, 0),
                (spec.types, found.type_ids, 0),
            )
            if name is not None
        }

    def _row(self, name: str, values: list[int], pad: int) -> NDArray[Any]:
        row = np.full(self._length, pad, self._contract.input(name).dtype)
        row[: len(values)] = values
        return row

    def _refusal(self, what: str, do: str) -> InputError:
        return InputError(what, where=self._where, do=do)
