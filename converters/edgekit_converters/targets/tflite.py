"""TFLite artifacts, through TensorFlow's converter.

Rules:
- a fixed batch of 1: many .tflite graphs cannot be resized;
- `tflite-int8` is full integer: a representative dataset, int8 inputs and outputs, weights per channel. Nothing is left
  in float silently: an operator without an int8 kernel is an error that names it;
- `tflite-dynamic` keeps dense layers per tensor: per channel they become FULLY_CONNECTED version 12, which no
  tflite-runtime loads (measured: version 9 runs on 2.7 to 2.14);
- TensorFlow ("Select TF") and custom operators are refused by name: boards' runtimes do not carry them.

- an ONNX source first becomes TensorFlow code (see `onnx_to_tf`); pictures are NHWC in the artifact.

    convert(source, RECIPES["tflite-int8"], Job(samples, silent)).data
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from edgekit_converters.errors import ConversionError
from edgekit_converters.sources.keras import KerasSource
from edgekit_converters.sources.keras_to_onnx import graph_names
from edgekit_converters.sources.model import SourceModel
from edgekit_converters.sources.quiet import import_tensorflow, quiet
from edgekit_converters.targets.artifact import Recipe
from edgekit_converters.targets.converted import Converted, Job, checked_samples, tool_versions, turn, turned_shape
from edgekit_converters.targets.network import Network
from edgekit_runtime.errors import EdgekitError

__all__ = ["convert"]

_TOOLS = ("tensorflow-cpu", "tensorflow")


def convert(source: SourceModel, recipe: Recipe, job: Job) -> Converted:
    """Raises ConversionError, naming the operators where the converter names them."""
    job.progress("conversion", 0, None)
    tf = import_tensorflow()
    network = _network(source, recipe)
    ins, outs = graph_names(source.inputs), graph_names(source.outputs)
    with quiet() as log:
        try:
            converter = _converter(tf, source, network, (ins, outs))
            _configure(tf, converter, recipe)
            if job.samples is not None:
                converter.representative_dataset = lambda: _representative(source, job, network.turned)
            data = bytes(converter.convert())
        except EdgekitError:
            raise
        except Exception as error:
            raise _explained(error, log.text(), source, recipe) from error
    inputs, outputs = _engine_order(data)
    in_names = dict(zip(ins, (spec.name for spec in source.inputs), strict=True))
    out_names = dict(zip(outs, (spec.name for spec in source.outputs), strict=True))
    return Converted(
        data,
        tuple(in_names[name] for name in inputs),
        tuple(out_names[name] for name in outputs),
        tool_versions((*_TOOLS, *network.tools)),
        network.turned,
    )


def _network(source: SourceModel, recipe: Recipe) -> Network:
    if isinstance(source, KerasSource):
        return Network(source.call, [variable.value for variable in source.network.variables], tools=("keras",))
    from edgekit_converters.targets.onnx_to_tf import network

    return network(source, f"{source.path.name}, {recipe.name}")


def _converter(tf: Any, source: SourceModel, network: Network, names: tuple[list[str], list[str]]) -> Any:
    ins, outs = names
    signature = []
    for spec, name in zip(source.inputs, ins, strict=True):
        shape = turned_shape(spec) if spec.name in network.turned else spec.shape
        signature.append(tf.TensorSpec([1, *shape[1:]], spec.dtype, name=name))

    def infer(*inputs: Any) -> dict[str, Any]:
        return dict(zip(outs, network.call(*inputs), strict=True))

    holder = tf.Module()  # keeps the weights in sight of the converter, which freezes only what it can track
    holder.weights = list(network.weights)
    concrete = tf.function(infer, input_signature=signature).get_concrete_function()
    return tf.lite.TFLiteConverter.from_concrete_functions([concrete], holder)


def _configure(tf: Any, converter: Any, recipe: Recipe) -> None:
    if recipe.precision == "float32":
        return
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if recipe.precision == "dynamic":
        converter._experimental_disable_per_channel_quantization_for_dense_layers = True
        return
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8


def _representative(source: SourceModel, job: Job, turned: frozenset[str]) -> Iterator[dict[str, NDArray[Any]]]:
    assert job.samples is not None
    names = graph_names(source.inputs)
    for arrays in checked_samples(job.samples, [spec.shape[1:] for spec in source.inputs], job.progress):
        feed = {}
        for name, array, spec in zip(names, arrays, source.inputs, strict=True):
            feed[name] = (turn(array, spec) if spec.name in turned else array).astype(spec.dtype, copy=False)
        yield feed


def _engine_order(data: bytes) -> tuple[list[str], list[str]]:
    """Signature names in the order in which an interpreter lists the tensors: the two differ with several outputs."""
    with quiet():
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(model_content=data)
        runner = interpreter.get_signature_runner()
        sides = (
            (interpreter.get_input_details(), runner.get_input_details()),
            (interpreter.get_output_details(), runner.get_output_details()),
        )
    inputs, outputs = (_names_in_order(details, signature) for details, signature in sides)
    return inputs, outputs


def _names_in_order(details: Sequence[dict[str, Any]], signature: dict[str, dict[str, Any]]) -> list[str]:
    by_index: dict[int, str] = {}
    for name, detail in signature.items():
        if detail["index"] in by_index:
            raise ConversionError(
                f"'{name}' and '{by_index[detail['index']]}' are one tensor in the artifact",
                do="Return the value once from the original model",
            )
        by_index[detail["index"]] = name
    return [by_index[detail["index"]] for detail in details]


def _explained(error: Exception, log: str, source: SourceModel, recipe: Recipe) -> ConversionError:
    """The converter's page of MLIR notes, boiled down to the operators it could not take."""
    text = f"{error}\n{log}"
    operators = _operators(text)
    where = f"{source.path.name}, {recipe.name}"
    if operators:
        return ConversionError(
            f"TFLite has no {'int8 ' if recipe.precision == 'int8' else ''}kernel for {', '.join(operators)}",
            where=where,
            do="Replace these operators in the model, or choose an ONNX recipe: onnx-int8-qdq, onnx-f32",
        )
    return ConversionError(
        f"TensorFlow's converter failed: {_first_line(str(error)) or type(error).__name__}", where=where
    )


def _operators(text: str) -> list[str]:
    found = re.findall(r"'tf\.(\w+)' op is neither a custom op nor a flex op", text)
    found += re.findall(r"Quantization not yet supported for op: '?(\w+)'?", text)
    for names in re.findall(r"(?:TF Select ops|Flex ops|Custom ops|[Cc]ustom ops): ([\w, ]+)", text):
        found += [name.removeprefix("Flex") for name in re.split(r",\s*", names.strip()) if name]
    return sorted(set(found))


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else ""
