"""A language model of 130 kB that llama.cpp runs: each letter is followed by the next one, "z" by " ", "!" by the end.

    write_gguf(header(), tensors())             # the bytes of a .gguf file
    model_file(folder)                          # the model; bundle(folder) built from it

The network is one layer that adds nothing: the last token's vector alone decides, so "abc" is continued by "defghi".
`chat=True` gives it a template whose prompt ends with the last message.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyz "
WORDS = [*"!?.,:0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ<>\n", *LETTERS.replace(" ", "\u2581")]
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
WIDTH, CONTEXT = 64, 512
TEMPLATE = "{% for one in messages %}{{ one['content'] }}{% endfor %}"
_KINDS = {int: (4, "I"), np.int32: (5, "i"), float: (6, "f"), bool: (7, "?")}


def follower(word: str) -> str:
    """What the model chooses behind this one."""
    return "</s>" if word == "!" else LETTERS[(LETTERS.index(word) + 1) % len(LETTERS)].replace(" ", "\u2581")


def header(*, chat: bool = False, **changes) -> dict[str, object]:
    """Keys and values as llama.cpp wants them."""
    values: dict[str, object] = {
        "general.architecture": "llama",
        "general.name": "alphabet",
        "llama.context_length": CONTEXT,
        "llama.embedding_length": WIDTH,
        "llama.block_count": 1,
        "llama.feed_forward_length": 32,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": 32,
        "llama.vocab_size": len(TOKENS),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.scores": [0.0] * len(TOKENS),
        "tokenizer.ggml.token_type": list(np.array([2, 3, 3, *[6] * 256, *[1] * len(WORDS)], np.int32)),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
    }
    if chat:
        values["tokenizer.chat_template"] = TEMPLATE
    return {key: value for key, value in {**values, **changes}.items() if value is not None}


def tensors() -> dict[str, np.ndarray]:
    """Name -> weights; the last axis is GGUF's first."""
    draw = np.random.default_rng(7)
    words = draw.normal(size=(len(TOKENS), WIDTH)).astype(np.float32)
    words /= np.linalg.norm(words, axis=1, keepdims=True)
    out = np.zeros_like(words)
    for word in (*LETTERS, "!"):
        out[TOKENS.index(follower(word))] += words[TOKENS.index(word.replace(" ", "\u2581"))]
    ones, zeros = np.ones(WIDTH, np.float32), np.zeros
    return {
        "token_embd.weight": words,
        "output_norm.weight": ones,
        "output.weight": 4 * out,
        "blk.0.attn_norm.weight": ones,
        "blk.0.attn_q.weight": zeros((WIDTH, WIDTH), np.float32),
        "blk.0.attn_k.weight": zeros((WIDTH // 2, WIDTH), np.float32),
        "blk.0.attn_v.weight": zeros((WIDTH // 2, WIDTH), np.float32),
        "blk.0.attn_output.weight": zeros((WIDTH, WIDTH), np.float32),
        "blk.0.ffn_norm.weight": ones,
        "blk.0.ffn_gate.weight": zeros((32, WIDTH), np.float32),
        "blk.0.ffn_down.weight": zeros((WIDTH, 32), np.float32),
        "blk.0.ffn_up.weight": zeros((32, WIDTH), np.float32),
    }


def write_gguf(values: dict[str, object], weights: dict[str, np.ndarray], align: int = 32) -> bytes:
    """A GGUF file, version 3."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(weights), len(values))
    for key, value in values.items():
        head += text(key) + encoded(value)
    place, data = 0, b""
    for name, array in weights.items():
        head += text(name) + struct.pack("<I", array.ndim)
        head += struct.pack(f"<{array.ndim}QIQ", *array.shape[::-1], 0, place)
        data += array.tobytes() + bytes(-array.nbytes % align)
        place = len(data)
    return head + bytes(-len(head) % align) + data


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def encoded(value: object) -> bytes:
    """A value with its kind in front."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        parts = [encoded(one) for one in value]
        return (
            struct.pack("<I", 9) + parts[0][:4] + struct.pack("<Q", len(parts)) + b"".join(part[4:] for part in parts)
        )
    kind, form = _KINDS[type(value)]
    return struct.pack(f"<I{form}", kind, value)


def model_file(folder: Path, *, chat: bool = False) -> Path:
    file = folder / ("chat.gguf" if chat else "alphabet.gguf")
    if not file.exists():
        file.write_bytes(write_gguf(header(chat=chat), tensors()))
    return file


def bundle(folder: Path, *, chat: bool = False, **options) -> Path:
    """Built for this machine."""
    from edgekit import build

    report = build(
        model_file(folder, chat=chat), profiles=["host-cpu"], output=folder / "bundles", cache=False, **options
    )
    return report.bundles[0].path


def continued(prompt: str, count: int) -> str:
    """What the model says behind a prompt that ends with a letter, in so many tokens."""
    at, said = LETTERS.index(prompt[-1]), ""
    for _ in range(count):
        at = (at + 1) % len(LETTERS)
        said += LETTERS[at]
    return said
