"""A BERT of two layers with made-up weights in Hugging Face's layout, and its NumPy twin."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    *["where", "is", "the", "depot", "what", "capital", "of", "france", "germany", "not", "red", "green", "one", "two"],
]
WIDTH, HEADS, INNER, LAYERS, LONGEST = 16, 2, 32, 2, 32
LINES = ["where is the depot", "what is the capital of france", "what is the capital of germany", "one red depot"]
LINES += [
    f"{a} {b} is {c} {d}"
    for a in ("red", "green")
    for b in ("one", "two")
    for c in ("not", "the")
    for d in ("red", "two")
]


def tokenizer_json(words: list[str] = WORDS) -> str:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.add_special_tokens(WORDS[:4])
    return made.to_str()


def weights(classes: int = 0, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)

    def drawn(*shape: int) -> np.ndarray:
        return random.normal(0, 0.3, shape).astype(np.float32)

    found = {f"embeddings.{name}_embeddings.weight": drawn(rows, WIDTH)
             for name, rows in (("word", len(WORDS)), ("position", LONGEST), ("token_type", 2))}  # fmt: skip
    dense = {"pooler.dense": (WIDTH, WIDTH)}
    norms = ["embeddings.LayerNorm"]
    for at in range(LAYERS):
        layer = f"encoder.layer.{at}"
        dense |= {f"{layer}.attention.self.{one}": (WIDTH, WIDTH) for one in ("query", "key", "value")}
        dense |= {f"{layer}.attention.output.dense": (WIDTH, WIDTH)}
        dense |= {f"{layer}.intermediate.dense": (INNER, WIDTH), f"{layer}.output.dense": (WIDTH, INNER)}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    if classes:
        dense |= {"classifier": (classes, WIDTH)}
    for name, shape in dense.items():
        found |= {f"{name}.weight": drawn(*shape), f"{name}.bias": drawn(shape[0])}
    for name in norms:
        found |= {f"{name}.weight": 1 + drawn(WIDTH), f"{name}.bias": drawn(WIDTH)}
    return found


def write_folder(folder: Path, classes: int = 0, labels: list[str] | None = None, **config: Any) -> Path:
    """config: keys of config.json that differ."""
    folder.mkdir(parents=True)
    said = {"model_type": "bert", "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS,
            "intermediate_size": INNER, "vocab_size": len(WORDS), "type_vocab_size": 2, "pad_token_id": 0,
            "max_position_embeddings": LONGEST}  # fmt: skip
    if labels:
        said["id2label"] = {str(at): label for at, label in enumerate(labels)}
    (folder / "config.json").write_text(json.dumps(said | config))
    (folder / "tokenizer.json").write_text(tokenizer_json())
    write_safetensors(folder / "model.safetensors", weights(classes))
    return folder


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    head, data = {}, b""
    for name, value in tensors.items():
        head[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [len(data), len(data) + value.nbytes]}
        data += value.tobytes()
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def bert(found: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """[tokens, WIDTH] of one text without padding."""

    def dense(value: np.ndarray, name: str) -> np.ndarray:
        return value @ found[f"{name}.weight"].T + found[f"{name}.bias"]

    def norm(value: np.ndarray, name: str) -> np.ndarray:
        apart = value - value.mean(-1, keepdims=True)
        return (
            apart / np.sqrt((apart**2).mean(-1, keepdims=True) + 1e-12) * found[f"{name}.weight"]
            + found[f"{name}.bias"]
        )

    value = found["embeddings.word_embeddings.weight"][ids] + found["embeddings.position_embeddings.weight"][: len(ids)]
    value = norm(value + found["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for at in range(LAYERS):
        layer = f"encoder.layer.{at}"
        query, key, content = (dense(value, f"{layer}.attention.self.{one}") for one in ("query", "key", "value"))
        mixed = []
        for head in range(HEADS):
            part = slice(head * WIDTH // HEADS, (head + 1) * WIDTH // HEADS)
            scores = np.exp(query[:, part] @ key[:, part].T / math.sqrt(WIDTH // HEADS))
            mixed.append(scores / scores.sum(-1, keepdims=True) @ content[:, part])
        value = norm(
            dense(np.hstack(mixed), f"{layer}.attention.output.dense") + value, f"{layer}.attention.output.LayerNorm"
        )
        wide = dense(value, f"{layer}.intermediate.dense")
        wide = wide / 2 * (1 + np.vectorize(math.erf)(wide / math.sqrt(2)))
        value = norm(dense(wide, f"{layer}.output.dense") + value, f"{layer}.output.LayerNorm")
    return value


def embedding(found: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    vector = bert(found, ids).mean(0)
    return vector / np.linalg.norm(vector)
