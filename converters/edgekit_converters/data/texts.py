"""Texts: files of them, a line an item, and the table [text] of a contract file.

    open_dataset("questions.txt", contract)      # a text a line
    open_dataset("reviews.tsv", contract)        # text, tab, label a line

Rules: UTF-8, with or without a byte order mark; empty lines are not items; a bad line is an error of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, cast, get_args

import numpy as np

from edgekit_converters.data import sentencepiece
from edgekit_converters.data.dataset import Canonical, Dataset, Example, Label, fingerprint_of
from edgekit_converters.data.folder import Classes
from edgekit_converters.recipe.conversion_errors import CalibrationError, ContractFileError
from edgekit_converters.sources.source_model import SourceModel
from edgekit_profiles.schema import Table
from edgekit_runtime.contract.spec import Contract, InputContract, Pooling, TextSpec, Truncation
from edgekit_runtime.contract.text import MAX_TOKENIZER_BYTES, TEXT, register, tokenizer
from edgekit_runtime.system.errors import ContractError

TEXTS = (".txt", ".tsv")
_MOST_BYTES = 1 << 30


def read_lines(path: Path) -> list[tuple[int, bytes]]:
    """(line number, its bytes) of each line that is not blank. Raises CalibrationError."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise CalibrationError("is larger than 1 GB", where=str(path), do="Give a representative part")
        data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        why, do = f"cannot be read: {error.strerror or error}", "Check the path and its permissions"
        raise CalibrationError(why, where=str(path), do=do) from error
    found = [(at, line.rstrip(b"\r")) for at, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    if not found:
        raise CalibrationError("contains no text", where=str(path), do="Write one text a line")
    return found


@dataclass(frozen=True)
class Texts(Dataset):
    """A Dataset of the lines of a file. labelled: whether a tab and a label end each line."""

    path: Path
    contract: Contract
    labelled: bool
    any_order: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def fingerprint(self) -> str | None:
        return fingerprint_of([self.path])

    @cached_property
    def _lines(self) -> list[tuple[int, bytes]]:
        return read_lines(self.path)

    def __len__(self) -> int:
        return len(self._lines)

    def pick(self, indexes: Iterable[int]) -> Iterator[Example]:
        canonical, classes = Canonical(self.contract), Classes(self.contract)
        for index in indexes:
            number, data = self._lines[index]
            origin = f"{self.path}, line {number}"
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError as error:
                why = f"is not UTF-8 (byte {error.start})"
                raise CalibrationError(why, where=origin, do="Save the file as UTF-8") from error
            label: Label | None = None
            if self.path.suffix.lower() == ".tsv":
                text, tab, name = text.rpartition("\t")
                if not tab:
                    raise CalibrationError("has no tab", where=origin, do="Write: text, tab, label")
                label = self._label(classes, name.strip(), origin) if self.labelled else None
            yield Example(canonical({TEXT: text}, origin), label, origin, text=text)

    @staticmethod
    def _label(classes: Classes, name: str, origin: str) -> Label:
        if classes.count is not None:
            return int(classes.of_names(np.array([name]), origin)[0])
        try:
            return float(name)
        except ValueError:
            do = 'Write a number, or task = "classification" and labels in the contract file'
            raise CalibrationError(f"'{name:.40}' is not a number", where=origin, do=do) from None


def open_texts(path: Path, contract: Contract, *, labelled: bool) -> Texts:
    """Raises CalibrationError for an empty file, or a model that takes no text."""
    if contract.text is None:
        do = "Name its tokenizer in [text] of the contract file"
        raise CalibrationError("texts do not fit a model of tensors", where=str(path), do=do)
    found = Texts(path, contract, labelled)
    len(found)  # an unreadable file is refused now
    return found


_USUAL = (("ids", "input_ids"), ("mask", "attention_mask"), ("types", "token_type_ids"))
_KEYS = ("tokenizer", "ids", "mask", "types", "pad", "truncation", "special_tokens", "pooling")


def text_spec(document: Table, inputs: Sequence[InputContract]) -> TextSpec | None:
    """The table [text] of a contract file; registers its tokenizer. Raises ContractFileError."""
    table = document.optional_table("text")
    if table is None:
        return None
    table.done(_KEYS)
    names = [spec.name for spec in inputs]
    given: dict[str, str | None] = {}
    for key, usual in _USUAL:
        name = table.text(key, usual if usual in names else "")
        if name and name not in names:
            table.stop(key, f"the model has no input '{name}'", f"Its inputs: {', '.join(names)}")
        given[key] = name or None
    if given["ids"] is None:
        table.stop("ids", "is missing", f"Name the input that takes token ids: {', '.join(names)}")
    missing = [spec.name for spec in inputs if spec.name not in given.values()]
    if missing:
        table.stop("types", f"a text fills no input '{missing[0]}'", "Export the model without it")
    shapes = {spec.shape for spec in inputs}
    if len(shapes) > 1 or len(inputs[0].shape) != 1 or {spec.dtype for spec in inputs} - {"int32", "int64"}:
        table.stop("ids", "the inputs are not rows of token ids of one length", "Export the model with one length")
    file = Path(document.file).parent / table.text("tokenizer")
    pad = table.data.get("pad", 0)
    if not isinstance(pad, int) or isinstance(pad, bool) or not 0 <= pad < 1 << 31:
        table.stop("pad", f"{pad!r} is not a token id", "Write pad = 0, or what config.json calls pad_token_id")
    spec = TextSpec(
        tokenizer=_registered(file, table),
        ids=given["ids"],
        mask=given["mask"],
        types=given["types"],
        pad=pad,
        truncation=cast(Truncation, table.text("truncation", "right", get_args(Truncation))),
        special_tokens=table.flag("special_tokens", True),
        pooling=cast(Pooling, table.text("pooling", "none", get_args(Pooling))),
    )
    length, own = inputs[0].shape[0], tokenizer(spec.tokenizer).num_special_tokens_to_add(False)
    if spec.special_tokens and own >= length:
        table.stop("special_tokens", f"{own} special tokens leave no room in {length}", "Export a longer model")
    return spec


def _registered(file: Path, table: Table) -> str:
    """The digest of a tokenizer.json, parsed to see that it is one, or of a SentencePiece file."""
    try:
        if file.stat().st_size > MAX_TOKENIZER_BYTES:
            table.stop("tokenizer", f"{file} has more than {MAX_TOKENIZER_BYTES >> 20} MB", "Name a tokenizer.json")
        data = file.read_bytes()
        digest = register(sentencepiece.tokenizer_json(data) if file.suffix == sentencepiece.SUFFIX else data)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = getattr(error, "strerror", None) or error
        table.stop("tokenizer", f"{file} cannot be read: {why}", "Name the model's tokenizer.json")
    try:
        tokenizer(digest)
    except ContractError as error:
        table.stop("tokenizer", f"{file}: {error.what}", error.do)
    return digest


def check_tokenizer(source: SourceModel, contract: Contract) -> None:
    """Raises ContractFileError if the model has no row for the tokenizer's last token.

    The model is asked: it answers a row of padding, and fails for that token."""
    if contract.text is None:
        return
    spec, vocabulary = contract.text, tokenizer(contract.text.tokenizer).get_vocab(with_added_tokens=True)
    last, word = max((place, word) for word, place in vocabulary.items())

    def answers(token: int) -> str:
        values = {spec.ids: token, spec.mask: 1}
        try:
            source.predict([np.full((1, *one.shape[1:]), values.get(one.name, 0), one.dtype) for one in source.inputs])
        except Exception as error:  # noqa: BLE001 - each engine has its own error for an index out of range
            return str(error).splitlines()[0] or type(error).__name__
        return ""

    if (why := answers(last)) and not answers(spec.pad):
        what = f"the tokenizer has {last + 1:,} tokens, and the model has no row for the last one, '{word:.40}': {why}"
        do = "Name the tokenizer.json that belongs to this model in [text]"
        raise ContractFileError(what[:400], where=str(source.path), do=do)
