"""A TensorFlow.js graph model (model.json and its weights) as a SavedModel.

    to_saved_model(Path("faceres.json"), Path("saved_model"))

Weights are stored in fewer bits and scaled back on reading; fused operations of TensorFlow.js are taken apart into the
TensorFlow operations that they are made of. Only what feed-forward picture models need is known.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DTYPES = {"uint8": "<u1", "uint16": "<u2", "float16": "<f2", "float32": "<f4", "int32": "<i4", "bool": "?"}
_FUSED = {"_FusedConv2D": "Conv2D", "FusedDepthwiseConv2dNative": "DepthwiseConv2dNative", "_FusedMatMul": "MatMul"}
_KEPT = ("strides", "padding", "data_format", "dilations", "transpose_a", "transpose_b")


def to_saved_model(path: Path, target: Path) -> None:
    """Raises ValueError for a fused operation that is not known and weights that do not fit."""
    import tensorflow as tf

    model = json.loads(path.read_text())
    graph = _graph(
        model["modelTopology"], dict(_weights(model["weightsManifest"], path.with_suffix(".bin").read_bytes()))
    )
    used = {name.split(":")[0] for node in graph.node for name in node.input}
    signature = model.get("signature") or {}
    inputs = [entry["name"] for entry in signature.get("inputs", {}).values()] or [
        node.name for node in graph.node if node.op == "Placeholder"
    ]
    outputs = [entry["name"] for entry in signature.get("outputs", {}).values()] or [
        node.name for node in graph.node if node.name not in used and node.op not in ("Const", "NoOp")
    ]
    whole = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph, name=""), [])

    def tensor(name: str) -> Any:
        return whole.graph.as_graph_element(name if ":" in name else f"{name}:0")

    pruned = whole.prune(
        [tensor(name) for name in inputs], {f"output_{i}": tensor(name) for i, name in enumerate(outputs)}
    )
    shapes = [[side if side and side > 0 else None for side in item.shape.as_list()] for item in pruned.inputs]
    specs = [
        tf.TensorSpec(shape, item.dtype, name=f"input_{i}")
        for i, (shape, item) in enumerate(zip(shapes, pruned.inputs, strict=True))
    ]
    holder = tf.Module()
    holder.infer = tf.function(lambda *arrays: pruned(*arrays), input_signature=specs)
    tf.saved_model.save(holder, str(target), signatures=holder.infer.get_concrete_function())


def _weights(manifest: Any, blob: bytes) -> Iterator[tuple[str, NDArray[Any]]]:
    at = 0
    for entry in (entry for group in manifest for entry in group["weights"]):
        packing = entry.get("quantization")
        stored = np.dtype(_DTYPES[packing["dtype"] if packing else entry["dtype"]])
        count = int(np.prod(entry["shape"], dtype=np.int64))
        values = np.frombuffer(blob, stored, count, at)
        at += values.nbytes
        if packing:
            values = values.astype(np.float32) * packing.get("scale", 1) + packing.get("min", 0)
        kind = np.int32 if entry["dtype"] == "int32" else None
        yield entry["name"], (values.round().astype(kind) if kind and packing else values).reshape(entry["shape"])
    if at != len(blob):
        raise ValueError(f"the weights use {at} of {len(blob)} bytes")


def _graph(topology: Any, weights: dict[str, NDArray[Any]]) -> Any:
    import tensorflow as tf
    from google.protobuf import json_format
    from tensorflow.core.framework import graph_pb2, node_def_pb2

    graph = graph_pb2.GraphDef()
    graph.versions.producer = 1087
    for entry in topology["node"]:
        for value in entry.get("attr", {}).values():
            for holder in (value, value.get("list", {})):
                if "s" in holder:
                    holder["s"] = _text(holder["s"])
        node = node_def_pb2.NodeDef()
        wanted = {key: value for key, value in entry.items() if key in ("name", "op", "input", "attr")}
        json_format.ParseDict(wanted, node, ignore_unknown_fields=True)
        if node.name in weights:
            values = weights[node.name]
            if node.attr["dtype"].type == tf.int64.as_datatype_enum:
                values = values.astype(np.int64)
            elif node.attr["dtype"].type == tf.int32.as_datatype_enum:
                values = values.astype(np.int32)
            elif values.dtype == np.float16:
                values = values.astype(np.float32)
            node.op = "Const"
            del node.input[:]
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values))
        if node.op in _FUSED:
            _take_apart(node, graph)
        else:
            graph.node.append(node)
    return graph


def _take_apart(node: Any, graph: Any) -> None:
    """A product, its bias and its activation, one operation each; the last has the fused one's name."""
    steps = [step.decode() for step in node.attr["fused_ops"].list.s]
    extra = list(node.input[2:])

    def add(name: str, op: str, inputs: list[str]) -> Any:
        made = graph.node.add()
        made.name, made.op = name, op
        made.input.extend(inputs)
        made.attr["T"].CopyFrom(node.attr["T"])
        return made

    current = f"{node.name}/product" if steps else node.name
    product = add(current, _FUSED[node.op], list(node.input[:2]))
    for key in _KEPT:
        if key in node.attr:
            product.attr[key].CopyFrom(node.attr[key])
    for index, step in enumerate(steps):
        name = node.name if index == len(steps) - 1 else f"{node.name}/{step}"
        if step == "BiasAdd":
            add(name, step, [current, extra.pop(0)])
        elif step in ("Relu", "Relu6", "Elu", "Sigmoid"):
            add(name, step, [current])
        else:
            raise ValueError(f"the fused operation {step} is not known")
        current = name


def _text(value: Any) -> Any:
    """A string, stored as text in base 64 or as its bytes; or a list of such."""
    if isinstance(value, list) and value and not isinstance(value[0], int):
        return [_text(item) for item in value]
    return base64.b64encode(bytes(value)).decode() if isinstance(value, list) else value
