"""`predict.js` with types: an ES module for a page, or for Node."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator
from typing import Literal

from edgekit.shipping.programs import numbers
from edgekit.shipping.programs.artifact import ExportedArtifact, Program
from edgekit.shipping.programs.numbers import allowed, golden_bin, size_of
from edgekit.shipping.programs.template import fill, js

PACKAGES = {"onnxruntime-node": "1.30.0", "onnxruntime-web": "1.30.0", "@litertjs/core": "2.5.3", "sharp": "0.35.5"}
"""The releases that the programs are tried with."""
_ARRAYS = {"float32": "Float32Array", "int8": "Int8Array", "uint8": "Uint8Array"}
_MODULES = {
    "onnxruntime-web": {"onnxruntime-web/wasm": "./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs"},
    "@litertjs/core": {
        "@litertjs/core": "./node_modules/@litertjs/core/dist/index.js",
        "@litertjs/wasm-utils": "./node_modules/@litertjs/wasm-utils/dist/index.js",
    },
}
ANSWERS = {
    "classification": "The five best classes, best first.",
    "detection": "The boxes, best first, in pixels of the picture.",
    "embedding": "The vector.",
    "raw": "The outputs by name.",
}


def web_refusals(artifact: ExportedArtifact) -> Iterator[str]:
    """What a page cannot express; LiteRT.js takes fewer TFLite files than LiteRT."""
    yield from numbers.refusals(artifact)
    for tensor in (*artifact.inputs, *artifact.outputs) if artifact.entry.format == "tflite" else ():
        if tensor.dtype != "float32":
            yield f"'{tensor.name}' is {tensor.dtype}, and LiteRT.js takes float32"
        if tensor.free_batch:
            yield f"'{tensor.name}' has a free batch axis, and LiteRT.js takes fixed ones"


def write(artifact: ExportedArtifact, runs_in: Literal["web", "node"]) -> Program:
    """Write it for a page, or for Node."""
    contract, entry, tensor = artifact.contract, artifact.entry, artifact.inputs[0]
    picture, shape = artifact.picture is not None, contract.input(tensor.name).shape
    engine = (
        "onnxruntime-node" if runs_in == "node" else "onnxruntime-web" if entry.format == "onnx" else "@litertjs/core"
    )
    names = (engine, "sharp") if picture and runs_in == "node" else (engine,)
    texts, facts = numbers.fillings(artifact, js, js)
    size = " x ".join(map(str, shape))
    texts |= {
        "INPUT": js(tensor.tensor),
        "DTYPE": js(tensor.dtype),
        "SHAPE": js([1, *tensor.shape[1:]]),
        "ARRAY": _ARRAYS[tensor.dtype],
        "OUTPUTS": js([
            {
                "name": one.name, "tensor": one.tensor, "size": size_of(one), "allowed": allowed(artifact, within),
                "scale": one.quantization.scale if one.quantization else 0,
                "zero": one.quantization.zero_point if one.quantization else 0,
            }
            for one, within in zip(artifact.outputs, entry.outputs, strict=True)
        ]),
        "OUTPUT_TYPE": " | ".join(js(one.name) for one in entry.outputs),
        "ITEM": f"{size} pixels, a byte each" if picture else f"{size} numbers",
        "ITEM_ARRAY": "Uint8Array" if picture else "Float32Array",
        "ITEM_BYTES": str(math.prod(shape) * (1 if picture else 4)),
        "ANSWER": ANSWERS[contract.task],
        "SOURCE": "its file's name" if runs_in == "node" else "an image, a canvas, a video",
        "IMPORTS": js(_MODULES.get(engine, {})),
        "STEP": f"(step - {texts.get('ZERO')}) * {texts.get('SCALE')}" if artifact.float_sides else "step",
        "OPTIONS": '{ extra: { session: { x64quantprecision: "1" } } }' if runs_in == "node" else "{}",  # exact
        "VALUE": "nearest(Math.fround(x))" if facts["quantized"] else "x",
        "PIXEL": f"nearest(Math.fround(Math.fround(pixel - mean) / [{texts.get('STD')}][c]))" if facts["quantized"]
        else f"Math.fround(pixel * [{texts.get('FACTOR')}][c]) + [{texts.get('TERM')}][c]",
        "FILLED": f"answer[{texts['COUNT']}][0]" if facts.get("count") else texts.get("CANDIDATES", ""),
        "LABEL": "labels[index] ?? String(index)" if contract.labels else "String(index)",
        "SURE": "1 / (1 + Math.exp(-sure))" if facts.get("sigmoid") else "sure",
        **shown(contract.task),
    }  # fmt: skip
    facts |= {"node": runs_in == "node", "web": runs_in == "web", "metrics": False}
    files = {
        "golden.bin": golden_bin(artifact)[0],
        "predict.js": fill("predict.js", texts, facts).encode(),
        "predict.d.ts": fill("predict.d.ts", texts, facts).encode(),
        "package.json": package({name: PACKAGES[name] for name in names}),
    }
    if contract.labels is not None:
        files["labels.js"] = f"export const labels = {js(list(contract.labels))};\n".encode()
    if runs_in == "web":
        texts["TITLE"] = html.escape(texts["TITLE"])
        files["index.html"] = fill("index.html", texts, facts).encode()
        return Program(files, names, ("npm install", "python3 -m http.server --bind 127.0.0.1"))
    return Program(files, names, ("npm install --ignore-scripts", "node predict.js"))


def package(dependencies: dict[str, str]) -> bytes:
    return (json.dumps({"private": True, "type": "module", "dependencies": dependencies}, indent=2) + "\n").encode()


def shown(task: str) -> dict[str, str]:
    """How an answer is printed."""
    line, lines = "${one.label} ${one.score.toFixed(4)}", "(await predict(process.argv[2])).map"
    if task == "classification":
        line = f"(one) => `{line}`"
    elif task == "detection":
        corners = " ".join(f"${{one.{side}.toFixed(1)}}" for side in ("left", "top", "right", "bottom"))
        line = f"(one) => `{line} {corners}`"
    else:
        return {"SHOW": "JSON.stringify(answer, null, 1)", "SHOWN": "[await predict(process.argv[2])]"}
    return {"SHOW": f'answer.map({line}).join("\\n")', "SHOWN": f"{lines}({line})"}
