"""A folder in Hugging Face's layout -> an ONNX file of one length, and its contract.

    found = read_transformer(Path("all-MiniLM-L6-v2"), length=128)
    Path("minilm.onnx").write_bytes(found.onnx);  found.contract     # keys of the contract file

Rules:
- the network is the folder's own `model.onnx` or `onnx/model.onnx`; without one, a BERT is built from its
  `model.safetensors`. No code of the folder runs, and pickles are not read;
- lengths become one fixed length, so shorter texts are padded: fixed shapes are what engines of boards are fast at;
- an encoder's token vectors are pooled (`1_Pooling/config.json`, else their mean) and brought to length 1 inside the
  file, so an answer, and a cached one, is one small vector;
- padding is kept out of attention by -100 in the scores, not -3e38: in 8 bits a score must keep its steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats.onnx_file import new_constant
from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.sources import checked_onnx
from edgekit_runtime.system.errors import MissingExtraError

DEFAULT_LENGTH = 128
_MOST_JSON = 64 << 20
_MASKED = -100.0
_OPSET = 17
_WEIGHTS, _NETWORKS = "model.safetensors", ("model.onnx", "onnx/model.onnx")
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class Transformer:
    """onnx: the file. contract: tables of the contract file, without the tokenizer's path."""

    onnx: bytes
    contract: Mapping[str, Any]


def is_transformer(path: Path) -> bool:
    """Whether a folder has Hugging Face's layout."""
    return (path / "config.json").is_file() and not (path / "saved_model.pb").is_file()


def find_tokenizer(folder: Path) -> Path:
    """tokenizer.json, or T5's and ALBERT's SentencePiece file. Raises SourceError."""
    found = next((folder / name for name in ("tokenizer.json", "spiece.model") if (folder / name).is_file()), None)
    if found is None:
        do = "Save it with transformers: AutoTokenizer.from_pretrained(FOLDER, use_fast=True).save_pretrained(FOLDER)"
        _refuse(folder, "it has no tokenizer.json", do)
    return found


def read_transformer(folder: Path, length: int | None = None) -> Transformer:
    """Read the folder.
    length: tokens of a text; None for the model's own, at most DEFAULT_LENGTH. Raises SourceError."""
    if find_spec("onnx") is None:
        raise MissingExtraError("convert", "an ONNX file")
    config = _json(folder / "config.json")
    find_tokenizer(folder)
    longest = _whole(folder, config, "max_position_embeddings", 1 << 20)
    said = _json(folder / "sentence_bert_config.json", {}).get("max_seq_length")
    chosen = length or min(said if isinstance(said, int) and said > 2 else longest, longest, DEFAULT_LENGTH)
    if not 3 <= chosen <= longest:
        _refuse(folder, f"a length of {chosen} tokens is not within 3 and {longest}", "Pass another --length")
    network = next((folder / name for name in _NETWORKS if (folder / name).is_file()), None)
    try:
        model = checked_onnx.read(network)[0] if network is not None else _bert(folder, config, chosen)
    except SourceError:
        raise
    except Exception as error:  # noqa: BLE001 - protobuf's errors have no common base
        _refuse(network or folder, f"it cannot be read: {error}"[:300], "Export it again", error)
    pooling = _fix(model, folder, chosen)
    table: dict[str, Any] = {"pad": config.get("pad_token_id") or 0, "pooling": pooling}
    if pooling != "none":
        return Transformer(model.SerializeToString(), {"task": "embedding", "text": table})
    keys: dict[str, Any] = {}
    output = model.graph.output[0]
    if output.name == "logits":
        names = config.get("id2label")
        keys = {"task": "classification", "scores": "logits"}
        if isinstance(names, dict) and all(str(at) in names for at in range(len(names))):
            keys["labels"] = [str(names[str(at)]) for at in range(len(names))]
    return Transformer(model.SerializeToString(), {**(keys or {"task": "embedding"}), "text": table})


def _fix(model: Any, folder: Path, length: int) -> str:
    """Fix the length, and pool an output of token vectors. Returns the pooling."""
    from onnx import TensorProto, helper

    graph = model.graph
    unknown = [one.name for one in graph.input if one.name not in _INPUTS]
    if unknown or not any(one.name == "input_ids" for one in graph.input):
        _refuse(folder, f"its inputs are {[one.name for one in graph.input]}", f"Export it with {', '.join(_INPUTS)}")
    for one in graph.input:
        shape = one.type.tensor_type.shape
        if len(shape.dim) != 2:
            _refuse(folder, f"its input '{one.name}' is not [batch, length]", "Export it again")
        shape.dim[0].dim_param, shape.dim[1].dim_value = "batch", length
    del graph.value_info[:]  # shapes of other lengths
    by_name = {one.name: one for one in graph.output}
    ready = next((by_name[name] for name in ("sentence_embedding", "logits") if name in by_name), None)
    if ready is not None:
        del graph.output[:]
        graph.output.append(ready)
        return "none"
    tokens = by_name.get("last_hidden_state", graph.output[0])
    rank = len(tokens.type.tensor_type.shape.dim)
    if rank != 3:
        return "none"
    pooling = _pooling(folder)
    vector, floor = "edgekit_pooled", _constant(graph, "edgekit_least", np.float32(1e-9))
    if pooling == "cls":
        first = _constant(graph, "edgekit_first", np.int64(0))
        graph.node.append(helper.make_node("Gather", [tokens.name, first], [vector], axis=1))
    else:
        last = _constant(graph, "edgekit_axis", np.array([-1], np.int64))
        steps: list[tuple[str, list[str], dict[str, Any]]] = [
            ("Cast", ["attention_mask"], {"to": TensorProto.FLOAT}),
            ("Unsqueeze", ["edgekit_0", last], {}),
            ("Mul", [tokens.name, "edgekit_1"], {}),
            ("ReduceSum", ["edgekit_2", _constant(graph, "edgekit_tokens", np.array([1], np.int64))], {"keepdims": 0}),
            ("ReduceSum", ["edgekit_0", last], {"keepdims": 1}),
        ]
        for at, (op, names, attributes) in enumerate(steps):
            graph.node.append(helper.make_node(op, names, [f"edgekit_{at}"], **attributes))
        graph.node.append(helper.make_node("Div", ["edgekit_3", "edgekit_4"], [vector]))
    graph.node.append(helper.make_node("ReduceL2", [vector], ["edgekit_length"], axes=[-1], keepdims=1))
    graph.node.append(helper.make_node("Max", ["edgekit_length", floor], ["edgekit_divisor"]))
    graph.node.append(helper.make_node("Div", [vector, "edgekit_divisor"], ["sentence_embedding"]))
    width = tokens.type.tensor_type.shape.dim[2].dim_value
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", width]))
    return pooling


def _pooling(folder: Path) -> str:
    said = _json(folder / "1_Pooling" / "config.json", {})
    chosen = [key for key, value in said.items() if key.startswith("pooling_mode_") and value is True]
    if chosen in ([], ["pooling_mode_mean_tokens"]):
        return "mean"
    if chosen == ["pooling_mode_cls_token"]:
        return "cls"
    return _refuse(folder, f"its pooling is {', '.join(chosen)}", "Only the mean and the first token are supported")


def _bert(folder: Path, config: Mapping[str, Any], length: int) -> Any:
    """A BERT for inference, as transformers' BertModel computes it.

    Source: Devlin et al. 2018 (arXiv 1810.04805)."""
    from onnx import TensorProto, helper

    kind = config.get("model_type")
    if kind != "bert" or config.get("hidden_act", "gelu") != "gelu" or config.get("is_decoder"):
        do = "Export it first: optimum-cli export onnx --model FOLDER FOLDER/onnx"
        _refuse(folder, f"it has no {_NETWORKS[0]}, and only a BERT is built from weights, not {kind!r}", do)
    weights = _safetensors(folder / _WEIGHTS)
    prefix = "bert." if any(name.startswith("bert.") for name in weights) else ""
    width = _whole(folder, config, "hidden_size", 1 << 14)
    heads = _whole(folder, config, "num_attention_heads", 1 << 10)
    layers, epsilon = _whole(folder, config, "num_hidden_layers", 1 << 10), float(config.get("layer_norm_eps", 1e-12))
    graph = helper.make_graph([], "bert", [], [])
    count = iter(range(1 << 30))

    def weight(name: str, *shape: int, transpose: bool = False) -> str:
        found = weights.get(prefix + name, weights.get(name))
        if found is None or found.shape != shape:
            has = "is missing" if found is None else f"is {list(found.shape)}"
            _refuse(folder, f"'{name}' {has}; config.json says {list(shape)}", "Download the folder again")
        return _constant(graph, name, found.T if transpose else found)

    def add(op: str, *names: str, out: str = "", **attributes: Any) -> str:
        out = out or f"{op.lower()}_{next(count)}"
        graph.node.append(helper.make_node(op, names, [out], **attributes))
        return out

    def number(value: Any) -> str:
        return _constant(graph, f"number_{next(count)}", np.asarray(value))

    def dense(value: str, name: str, into: int, out_of: int) -> str:
        product = add("MatMul", value, weight(f"{name}.weight", into, out_of, transpose=True))
        return add("Add", product, weight(f"{name}.bias", into))

    def norm(value: str, name: str, out: str = "") -> str:
        scale, shift = weight(f"{name}.weight", width), weight(f"{name}.bias", width)
        return add("LayerNormalization", value, scale, shift, out=out, axis=-1, epsilon=epsilon)

    def split(value: str) -> str:
        return add("Transpose", add("Reshape", value, number([0, length, heads, width // heads])), perm=[0, 2, 1, 3])

    words = weight("embeddings.word_embeddings.weight", _whole(folder, config, "vocab_size", 1 << 22), width)
    kinds = weight("embeddings.token_type_embeddings.weight", _whole(folder, config, "type_vocab_size", 64), width)
    places = weights.get(prefix + "embeddings.position_embeddings.weight", np.zeros((0, width), np.float32))[:length]
    if places.shape != (length, width):
        _refuse(folder, "its position embeddings are shorter than config.json says", "Download the folder again")
    value = add("Add", add("Gather", words, "input_ids"), add("Gather", kinds, "token_type_ids"))
    value = norm(add("Add", value, _constant(graph, "positions", places)), "embeddings.LayerNorm")
    padded = add("Sub", number(np.float32(1)), add("Cast", "attention_mask", to=TensorProto.FLOAT))
    padded = add("Unsqueeze", add("Mul", padded, number(np.float32(_MASKED))), number([1, 2]))
    inner = _whole(folder, config, "intermediate_size", 1 << 16)
    for at in range(layers):
        name = f"encoder.layer.{at}"
        query, key, content = (
            split(dense(value, f"{name}.attention.self.{part}", width, width)) for part in ("query", "key", "value")
        )
        scores = add("MatMul", query, add("Transpose", key, perm=[0, 1, 3, 2]))
        scores = add("Add", add("Div", scores, number(np.float32(math.sqrt(width // heads)))), padded)
        mixed = add("Transpose", add("MatMul", add("Softmax", scores, axis=-1), content), perm=[0, 2, 1, 3])
        mixed = dense(add("Reshape", mixed, number([0, length, width])), f"{name}.attention.output.dense", width, width)
        value = norm(add("Add", mixed, value), f"{name}.attention.output.LayerNorm")
        wide = dense(value, f"{name}.intermediate.dense", inner, width)
        half = add("Mul", wide, number(np.float32(0.5)))  # GELU: x / 2 (1 + erf(x / sqrt 2))
        curve = add("Add", add("Erf", add("Div", wide, number(np.float32(math.sqrt(2))))), number(np.float32(1)))
        wide = dense(add("Mul", half, curve), f"{name}.output.dense", width, inner)
        value = norm(
            add("Add", wide, value), f"{name}.output.LayerNorm", "last_hidden_state" if at == layers - 1 else ""
        )
    shape: list[Any] = ["batch", length, width]
    output = "last_hidden_state"
    if "classifier.weight" in weights:
        first = add("Gather", value, number(np.int64(0)), axis=1)
        pooled = add("Tanh", dense(first, "pooler.dense", width, width))
        classes = len(weights["classifier.weight"])
        add("Add", add("MatMul", pooled, weight("classifier.weight", classes, width, transpose=True)),
            weight("classifier.bias", classes), out="logits")  # fmt: skip
        shape, output = ["batch", classes], "logits"
    graph.input.extend(helper.make_tensor_value_info(one, TensorProto.INT64, ["batch", length]) for one in _INPUTS)
    graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, shape))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)


def _constant(graph: Any, name: str, value: Any) -> str:
    if all(one.name != name for one in graph.initializer):
        graph.initializer.append(new_constant(name, np.asarray(value)))
    return name


_FLOATS = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "BF16": "<u2"}


def _safetensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """Float tensors by name.

    The file: 8 bytes for the length of a JSON of dtypes, shapes and places, then the tensors' bytes."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            head = json.loads(file.read(size) if size <= _MOST_JSON else b"")
            data = np.fromfile(file, np.uint8)
        found = {}
        for name, entry in head.items():
            if name != "__metadata__" and entry["dtype"] in _FLOATS:
                start, end = entry["data_offsets"]
                values = data[start:end].view(_FLOATS[entry["dtype"]]).reshape(entry["shape"])
                if entry["dtype"] == "BF16":
                    values = (values.astype(np.uint32) << 16).view(np.float32)
                found[name] = values.astype(np.float32)
    except FileNotFoundError as error:
        do = "Export it first: optimum-cli export onnx --model FOLDER FOLDER/onnx"
        _refuse(path.parent, f"it has neither {_NETWORKS[0]} nor {_WEIGHTS}", do, error)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        _refuse(path, f"it is damaged: {error}"[:200], "Download it again", error)
    return found


def _json(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        if default is not None and not path.is_file():
            return default
        if path.stat().st_size > _MOST_JSON:
            raise ValueError("it is too large")
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        _refuse(path, f"it cannot be read: {error}"[:200], "Download it again", error)
    if not isinstance(found, dict):
        _refuse(path, "it is not a JSON object", "Download it again")
    return found


def _whole(folder: Path, config: Mapping[str, Any], key: str, most: int) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        _refuse(folder / "config.json", f"{key} is {value!r:.40}", "Download the folder again")
    return value


def _refuse(where: Path, what: str, do: str, cause: Exception | None = None) -> NoReturn:
    raise SourceError(what, where=str(where), do=do) from cause
