"""The float model in the forms that the peers start from, and the original's own answers.

    python -m peers.forms FOLDER            # in the peers' environment, from benchmarks/conversion

Keras and SavedModel sources: saved_model/ with a batch of 1, float.tflite by TFLiteConverter, float.onnx by tf2onnx.
ONNX sources: float.onnx with every axis fixed, opset 13 where it was older (per-channel QDQ needs it) and names of
operators that TensorFlow takes (onnx2tf stops at others); saved_model/ and float.tflite by onnx2tf. reference_*.npy:
the original's outputs for test.npy. What cannot be made leaves a `.why` file.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

OPSET = 17


def main(folder: Path) -> None:
    source = folder / (folder / "model.txt").read_text()
    example = np.load(folder / "test.npy", mmap_mode="r")[:1]
    if source.suffix == ".onnx":
        _attempt(folder, "float.onnx", lambda: _pinned(source, folder / "float.onnx", example))
        _attempt(folder, "saved_model", lambda: _through_onnx2tf(folder))
        _save(folder, lambda: _onnx_answers(folder))
    else:
        function, call = _traced(source, example)
        _attempt(folder, "saved_model", lambda: _save_function(function, folder / "saved_model"))
        _attempt(folder, "float.onnx", lambda: _to_onnx(function, folder / "float.onnx"))
        _save(folder, lambda: _keras_answers(call, folder))
    if not (folder / "float.tflite").exists():
        _attempt(folder, "float.tflite", lambda: _to_tflite(folder))


def _attempt(folder: Path, form: str, make: Callable[[], None]) -> None:
    try:
        make()
    except Exception as error:  # noqa: BLE001 - a peer's converter; the reason is what the table shows
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        (folder / f"{form}.why").write_text(lines[0][:200])


def _save(folder: Path, answers: Callable[[], list[Any]]) -> None:
    for index, array in enumerate(sorted(answers(), key=lambda array: -array[0].size)):
        np.save(folder / f"reference_{index}.npy", array.astype(np.float32))


def _traced(source: Path, example: Any) -> tuple[Any, Callable[[Any], list[Any]]]:
    """The source as a TensorFlow function with a batch of 1, and as a call with any batch."""
    import tensorflow as tf

    if source.is_dir():
        owner = tf.saved_model.load(str(source))
        signature = owner.signatures["serving_default"]
        name = next(iter(signature.structured_input_signature[1]))

        def call(x: Any) -> list[Any]:
            return list(signature(**{name: x}).values())
    else:
        import keras

        owner = keras.models.load_model(source, compile=False)

        def call(x: Any) -> list[Any]:
            result = owner(x, training=False)
            return list(result) if isinstance(result, (list, tuple)) else [result]

    spec = tf.TensorSpec([1, *example.shape[1:]], tf.as_dtype(example.dtype), name="x")
    function = tf.function(lambda x: {f"output_{i}": out for i, out in enumerate(call(x))}, input_signature=[spec])
    return function, call


def _save_function(function: Any, target: Path) -> None:
    """With its weights as constants: not every owner's variables are seen by TensorFlow's saver."""
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    concrete = function.get_concrete_function()
    frozen = convert_variables_to_constants_v2(concrete)
    names = list(concrete.structured_outputs)
    holder = tf.Module()
    holder.call = tf.function(
        lambda x: dict(zip(names, frozen(x), strict=True)), input_signature=function.input_signature
    )
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)  # swish has one, and its own captures
    tf.saved_model.save(holder, str(target), signatures=holder.call.get_concrete_function(), options=options)


def _to_onnx(function: Any, target: Path) -> None:
    import tf2onnx

    tf2onnx.convert.from_function(function, function.input_signature, opset=OPSET, output_path=str(target))


def _to_tflite(folder: Path) -> None:
    import tensorflow as tf

    if not (folder / "saved_model").is_dir():
        raise RuntimeError(f"no TensorFlow form: {(folder / 'saved_model.why').read_text()}")
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder / "saved_model"))
    (folder / "float.tflite").write_bytes(converter.convert())


def _pinned(source: Path, target: Path, example: Any) -> None:
    import onnx
    import onnxslim

    model = onnx.load(source)
    for axis, size in zip(model.graph.input[0].type.tensor_type.shape.dim, example.shape, strict=True):
        axis.dim_value = size
    for output in model.graph.output:
        output.type.tensor_type.shape.dim[0].dim_value = 1
    if next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")) < 13:
        model = onnx.version_converter.convert_version(model, 13)
    model = onnxslim.slim(model)
    for node in model.graph.node:
        node.name = re.sub(r"[^A-Za-z0-9_./>-]", "_", node.name)
    onnx.save(model, target)


def _through_onnx2tf(folder: Path) -> None:
    scratch = folder / "onnx2tf"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    # It feeds pictures of its own to check itself, and would download them.
    np.save(scratch / "calibration_image_sample_data_20x128x128x3_float32.npy", np.zeros((20, 128, 128, 3), np.float32))
    command = [sys.executable, "-m", "onnx2tf", "-i", str(folder / "float.onnx"), "-o", "out", "-osd", "-nuo", "-n"]
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, errors="replace", check=False)
    if not (scratch / "out/saved_model.pb").exists():
        raise RuntimeError(f"onnx2tf: {_last_error(done.stdout + done.stderr)}")
    shutil.copytree(scratch / "out", folder / "saved_model")
    for path in (folder / "saved_model").glob("*.tflite"):
        path.unlink()


def _last_error(said: str) -> str:
    """The error at the end of a long trace: its message is often a line or two below its name."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", said).splitlines() if line.strip()]
    errors = [i for i, line in enumerate(lines) if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return " ".join(lines[errors[-1] : errors[-1] + 2]) if errors else (lines[-1] if lines else "no word")


def _keras_answers(call: Callable[[Any], list[Any]], folder: Path) -> list[Any]:
    test = np.load(folder / "test.npy", mmap_mode="r")
    parts = [[np.asarray(out) for out in call(np.ascontiguousarray(test[i : i + 16]))] for i in range(0, len(test), 16)]
    return [np.concatenate(outs) for outs in zip(*parts, strict=True)]


def _onnx_answers(folder: Path) -> list[Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        folder / (folder / "model.txt").read_text(), providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name
    test = np.load(folder / "test.npy", mmap_mode="r")
    parts = [session.run(None, {name: np.ascontiguousarray(test[i : i + 1])}) for i in range(len(test))]
    return [np.concatenate(outs) for outs in zip(*parts, strict=True)]


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
