"""A GGUF file's header is checked as a stranger's, before llama.cpp reads the file."""

from __future__ import annotations

import struct

import alphabet
import numpy as np
import pytest

from edgekit_runtime.modelfile.check import check_model
from edgekit_runtime.modelfile.gguf_structure import read_gguf
from edgekit_runtime.system.errors import ModelFileError

GOOD = alphabet.write_gguf(alphabet.header(chat=True), alphabet.tensors())


def changed(at: int, form: str, value: int) -> bytes:
    data = bytearray(GOOD)
    struct.pack_into(f"<{form}", data, at, value)
    return bytes(data)


def with_key(**changes) -> bytes:
    return alphabet.write_gguf(alphabet.header(**{key.replace("__", "."): v for key, v in changes.items()}), SMALL)


SMALL = {"token_embd.weight": np.zeros((2, 32), np.float32)}
LLAMA = alphabet.encoded("llama")
FIRST_TENSOR = GOOD.index(b"token_embd.weight") + len("token_embd.weight")


def test_the_facts_of_a_header_are_what_memory_follows_from():
    model = read_gguf(GOOD)
    assert (model.architecture, model.context, model.layers, model.chat) == ("llama", 512, 1, True)
    assert model.kv_bytes_per_token == 2 * 1 * 1 * (32 + 32)
    assert model.precision == "f32"
    facts = check_model("gguf", GOOD)
    assert (facts.ops, facts.version, facts.tensors) == (("F32",), "GGUF 3", 12)


BAD = {
    "empty": (b"", "GGUF"),
    "another format": (b"TFL3" + GOOD[4:], "begin with GGUF"),
    "an unknown version": (changed(4, "I", 9), "version 9"),
    "big-endian": (changed(4, "I", 3 << 24), "big-endian"),
    "no tensors": (changed(8, "Q", 0), "0 tensors"),
    "tensors without end": (changed(8, "Q", 1 << 60), "tensors"),
    "keys without end": (changed(16, "Q", 1 << 40), "keys"),
    "a key longer than the file": (changed(24, "Q", 1 << 62), "more than 1,000"),
    "a key that is no text": (GOOD[:32] + b"\xff\xfe" + GOOD[34:], "not UTF-8"),
    "an unknown kind of value": (GOOD.replace(LLAMA, struct.pack("<I", 99) + LLAMA[4:]), "kind 99"),
    "five sides": (changed(FIRST_TENSOR, "I", 5), "5 sides"),
    "a side of 0": (changed(FIRST_TENSOR + 4, "Q", 0), "sides"),
    "sides beyond the file": (changed(FIRST_TENSOR + 4, "Q", 1 << 30), "declares"),
    "sides that overflow": (changed(FIRST_TENSOR + 4, "Q", (1 << 64) - 1), "sides"),
    "an unknown number format": (changed(FIRST_TENSOR + 20, "I", 200), "kind 200"),
    "half a block": (changed(FIRST_TENSOR + 20, "I", 12), "blocks of 256"),
    "an offset behind the end": (changed(FIRST_TENSOR + 24, "Q", 1 << 40), "behind the file's end"),
    "an odd offset": (changed(FIRST_TENSOR + 24, "Q", 7), "aligned"),
    "two tensors at one place": (changed(FIRST_TENSOR + 24, "Q", 1 << 17), "overlaps"),
    "no architecture": (with_key(general__architecture=None), "architecture"),
    "no tokenizer": (with_key(tokenizer__ggml__tokens=None), "tokenizer"),
    "no context": (with_key(llama__context_length=0), "context_length"),
    "layers without end": (with_key(llama__block_count=1 << 30), "block_count"),
    "an alignment of 3": (with_key(general__alignment=3), "alignment"),
    "a part of a model": (with_key(split__count=3), "split"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_damaged_header_is_refused_with_what_is_wrong(case):
    data, words = BAD[case]
    with pytest.raises(ModelFileError, match=words):
        read_gguf(data)


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.9, 0.9999])
def test_a_file_that_was_cut_is_refused(share):
    with pytest.raises(ModelFileError):
        read_gguf(GOOD[: int(share * len(GOOD))])


def test_a_key_twice_is_refused():
    head = GOOD[:16] + struct.pack("<Q", 2) + 2 * (alphabet.text("a.b") + alphabet.encoded(1))
    with pytest.raises(ModelFileError, match="twice"):
        read_gguf(head)
