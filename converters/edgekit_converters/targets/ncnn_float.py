"""A source as a float ncnn network, through pnnx.

    float_model(source, onnx_model, silent).data        # one file: see `modelfile.ncnn_structure`

Rules:
- pnnx takes the float ONNX file with a batch of 1, in a sandbox (`pnnx_worker`), within time, memory and disk;
- shapes are constants: what pnnx writes as an expression of the batch is computed here;
- a network with a layer that the runtime does not check is refused, with that layer's name;
- the result runs against the ONNX file on real items, and a difference is an error.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgekit_converters.formats.onnx_file import GraphView, attribute, free_name, new_constant, parse, value_names
from edgekit_converters.recipe.artifact import FloatModel, tool_versions, transposed_pixels, transposed_shape
from edgekit_converters.recipe.conversion_errors import ConversionError, MissingToolsError, one_line
from edgekit_converters.recipe.progress import Progress
from edgekit_converters.sources import float_onnx
from edgekit_converters.sources.source_model import SourceModel
from edgekit_converters.targets.pnnx_worker import INPUT, LIMIT_S, RESULT
from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.engines.registry import load_engine, version_of_engine
from edgekit_runtime.modelfile.ncnn_structure import NcnnSide, pack_network, read_network
from edgekit_runtime.system.children import allowed_bytes, crash_signal, environment, machine_bytes, python_module
from edgekit_runtime.system.errors import EngineError, ModelFileError, install_command

_TOOLS = ("onnx", "onnxslim", "pnnx")
_INSTEAD = "Choose a TFLite or an ONNX recipe"


def float_model(source: SourceModel, model: FloatModel, progress: Progress) -> FloatModel:
    """Convert the float ONNX `model` of the source.

    Raises ConversionError if pnnx or ncnn cannot express it, MissingToolsError without their packages.
    """
    progress("conversion", 0, None)
    where, program = source.path.name, find_pnnx()
    if program is None or version_of_engine("ncnn") is None:
        missing, command = ("pnnx", "pip install --no-deps pnnx") if program is None else ("ncnn", "")
        raise MissingToolsError(
            f"an ncnn artifact needs the package {missing}, which is not installed",
            where=where,
            do=f"Run: {command or install_command('ncnn')}",
        )
    inputs, outputs = _sides(source, model)
    for spec in (*inputs, *outputs):
        if spec.dtype != "float32" or not 2 <= len(spec.shape) <= 5:
            what = f"ncnn takes and gives 32-bit floats of 1 to 4 axes; '{spec.name}' is {spec.dtype} {spec.shape[1:]}"
            raise ConversionError(what, where=where, do=_INSTEAD)
    param, weights = _run(program, model.data, inputs, outputs, where)
    sides = [
        [NcnnSide(f"{kind}{place}", spec.shape) for place, spec in enumerate(specs)]
        for kind, specs in (("in", inputs), ("out", outputs))
    ]
    data = pack_network(_without_expressions(param).encode(), weights, *sides)
    try:
        read_network(data)
    except ModelFileError as error:
        raise ConversionError(f"ncnn cannot run it: {error.what}", where=where, do=_INSTEAD) from error
    _prove(source, model, data, where)
    tools = {**model.tools, **tool_versions(_TOOLS)}
    return replace(model, format="ncnn", data=data, tools=tools, transposes=0)


def find_pnnx() -> Path | None:
    """The program in the package pnnx, which itself would import PyTorch."""
    found = importlib.util.find_spec("pnnx")
    folders = [] if found is None else found.submodule_search_locations or []
    return next((file for folder in folders if (file := Path(folder) / "pnnx").is_file()), None)


def _sides(source: SourceModel, model: FloatModel) -> list[list[TensorSpec]]:
    """Inputs and outputs in the ONNX file's order and layout, with a batch of 1."""
    found = []
    for names, specs in ((model.inputs, source.inputs), (model.outputs, source.outputs)):
        by_name = {spec.name: spec for spec in specs}
        shapes = {name: transposed_shape(by_name[name]) for name in model.transposed & by_name.keys()}
        found.append([
            replace(by_name[name], shape=(1, *shapes.get(name, by_name[name].shape)[1:])) for name in names
        ])  # fmt: skip
    return found


def _run(
    program: Path, data: bytes, inputs: list[TensorSpec], outputs: list[TensorSpec], where: str
) -> tuple[str, bytes]:
    """The .param text and the .bin weights. Raises ConversionError."""
    parsed = parse(data)
    float_onnx.set_batch(parsed, inputs, outputs)
    _give_biases(parsed)
    with tempfile.TemporaryDirectory(prefix="edgekit-pnnx-") as folder:
        graph = Path(folder) / INPUT
        graph.write_bytes(parsed.SerializeToString())
        graph.chmod(0o644)  # the sandbox of root is another user
        memory = allowed_bytes(len(data), machine_bytes())
        command = python_module("edgekit_converters.targets.pnnx_worker", str(program), folder, str(memory))
        try:
            done = subprocess.run(
                command, cwd=folder, env={**environment(), "TMPDIR": folder}, stdin=subprocess.DEVNULL,
                capture_output=True, timeout=LIMIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise ConversionError(f"pnnx took longer than {LIMIT_S} s", where=where, do=_INSTEAD) from error
        try:
            return (Path(folder) / f"{RESULT}.param").read_text("ascii"), (Path(folder) / f"{RESULT}.bin").read_bytes()
        except (OSError, ValueError) as error:
            said = (done.stderr + done.stdout).decode(errors="replace").splitlines()
            why = crash_signal(done.returncode) or one_line(said[-1] if said else f"exit code {done.returncode}")
            raise ConversionError(f"pnnx cannot convert it: {why}", where=where, do=_INSTEAD) from error


def _give_biases(model: Any) -> None:
    """Give dense layers a bias of zeros: pnnx then makes an InnerProduct of them."""
    view = GraphView(model)
    for node in view.nodes:
        weight = view.constant(node.input[1]) if node.op_type in ("Gemm", "MatMul") else None
        if weight is None or weight.ndim != 2 or len(node.input) > 2 or view.rank(node.input[0]) != 2:
            continue
        side = 0 if node.op_type == "Gemm" and attribute(node, "transB", 0) else 1
        name = free_name(f"{node.output[0]}/bias", value_names(model))
        model.graph.initializer.append(new_constant(name, np.zeros(weight.shape[side], np.float32)))
        node.op_type = "Gemm"
        node.input.append(name)


def _without_expressions(param: str) -> str:
    """Write expressions of the batch, `6="1,1,//(1280,0n),0n"`, as numbers."""

    def numbers(found: re.Match[str]) -> str:
        sizes = re.sub(r"//\((\d+),1\)", r"\1", found[1].replace("0n", "1")).split(",")
        keys = {2: "0", 3: "01", 4: "012"}.get(len(sizes))
        if keys is None or sizes[-1] != "1" or not all(size.isdecimal() for size in sizes):
            return found[0]  # the check of the structure names the layer
        return " ".join(f"{key}={size}" for key, size in zip(keys, sizes[:-1], strict=True))

    return re.sub(r'12=0 13=0 6="([^"]*)"', numbers, param)


def _prove(source: SourceModel, model: FloatModel, data: bytes, where: str) -> None:
    """Raise ConversionError if it answers otherwise than the ONNX file."""
    given = {
        spec.name: transposed_pixels(array, spec) if spec.name in model.transposed else array
        for spec, array in zip(source.inputs, float_onnx.proof_inputs(source), strict=True)
    }
    inputs = [given[name] for name in model.inputs]
    try:
        with load_engine("ncnn", data) as engine:
            parts = [engine.run([array[i : i + 1] for array in inputs]) for i in range(len(inputs[0]))]
    except EngineError as error:
        raise ConversionError(f"ncnn refuses pnnx's network: {error.what}", where=where, do=_INSTEAD) from error
    for name, want, *got in zip(model.outputs, float_onnx.answers(model.data, inputs), *parts, strict=True):
        if worst := float_onnx.agreement(np.concatenate(got), want):
            what = f"pnnx's network gives other answers: the output '{name}' moved by {worst:.3g}"
            raise ConversionError(what, where=where, do=_INSTEAD)
