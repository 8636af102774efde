"""A bundle as the model repository of Triton, or of KServe's Triton runtime, for clusters.

    made = export(bundle, folder, Export("triton", gpu=True))
    made.host_line("http://gpu-box:8000")         # Host("http://gpu-box:8000", model="net")

Rules:
- the repository holds an unchanged ONNX artifact with float inputs and outputs, and Triton's configuration: requests
  that wait form a batch and none waits for one; the queue obeys a request's own timeout;
- each instance is warmed up with golden examples, at every preferred batch, before it is ready;
- on a GPU the onnxruntime backend uses TensorRT. `python` is for a Triton without that backend;
- a stateful model, or one without an ONNX artifact, is refused. An encrypted artifact is written in clear;
- a device knows the server only as a `Host`, which proves itself with a golden example.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from edgekit.host.http1 import ExportError
from edgekit_profiles import load
from edgekit_runtime.bundle.manifest import ArtifactEntry
from edgekit_runtime.bundle.reader import Bundle
from edgekit_runtime.contract.adapt import Adapter
from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.remote.oip import datatype_of
from edgekit_runtime.system.errors import EdgekitError
from edgekit_runtime.system.files import write_durably

Server = Literal["triton", "kserve"]
Backend = Literal["onnxruntime", "python"]
PREFERRED = (8, 16, 32)
"""Batches that Triton prefers to form; the last is the largest."""
QUEUE_US = 10_000_000
QUEUE = 1024
_PRECISIONS = {"float16": "FP16", "int8": "INT8"}


@dataclass(frozen=True)
class Export:
    """Options of an export.

    recipe: of the artifact; None for the primary one, or the first in ONNX.
    gpu: run instances on a GPU; None if the bundle's profile has one.
    storage: where KServe finds the repository, `s3://...` or `pvc://...`; None for a claim named after the model.
    """

    server: Server = "triton"
    backend: Backend = "onnxruntime"
    gpu: bool | None = None
    recipe: str | None = None
    storage: str | None = None


@dataclass(frozen=True)
class ExportedModel:
    """The written repository. inputs, outputs: contract name -> server's name, if they differ."""

    model: str
    recipe: str
    files: tuple[Path, ...]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    def host_line(self, url: str) -> str:
        """What a device passes to `open_bundle(hosts=[...])`."""
        parts = [json.dumps(url), f"model={json.dumps(self.model)}"]
        named = {"inputs": self.inputs, "outputs": self.outputs}
        parts += [f"{name}={json.dumps(dict(found))}" for name, found in named.items() if found]
        return f"Host({', '.join(parts)})"


def export(bundle: Bundle, folder: Path, how: Export | None = None) -> ExportedModel:
    """Write a verified bundle's repository into a new or empty folder. Raises ExportError."""
    how, manifest = how or Export(), bundle.manifest
    if manifest.contract.state != "none":
        raise ExportError("the model is stateful", where=str(bundle.path))
    entry, how = _artifact(bundle, how.recipe), replace(how, gpu=_has_gpu(bundle) if how.gpu is None else how.gpu)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", manifest.name).strip("-.") or "model"
    model = folder / name
    files: dict[Path, bytes] = {
        model / "1" / "model.onnx": bundle.blob(entry.blob),
        model / "config.pbtxt": _config(bundle, entry, name, how).encode(),
        **{model / "warmup" / file: data for file, data in _warmups(bundle, entry).items()},
    }
    if how.backend == "python":
        files[model / "1" / "model.py"] = (Path(__file__).parent / "triton_model.txt").read_bytes()
    if how.server == "kserve":
        files[folder / "inferenceservice.yaml"] = _service(name, how).encode()
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ExportError("the folder is not empty", where=str(folder), do="Pass a new folder with -o")
        for path, data in files.items():
            write_durably(path, data)
    except OSError as error:
        raise ExportError(f"cannot write: {error.strerror or error}", where=str(folder)) from error
    inputs, outputs = ({t.name: t.tensor for t in tensors if t.name != t.tensor} for tensors in _ends(entry))
    return ExportedModel(name, entry.recipe, tuple(files), inputs, outputs)


def _artifact(bundle: Bundle, recipe: str | None) -> ArtifactEntry:
    """Raises ExportError."""
    offered = [one for one in bundle.manifest.artifacts if one.role in ("primary", "alternate")]
    fitting = [
        one
        for one in offered
        if one.format == "onnx" and all(t.quantization is None for tensors in _ends(one) for t in tensors)
    ]
    for one in fitting:
        if recipe in (None, one.recipe):
            return one
    has = ", ".join(one.recipe for one in offered)
    what = "no ONNX artifact with float inputs and outputs" if recipe is None else f"no ONNX artifact '{recipe}'"
    raise ExportError(
        f"the bundle has {what}; it has {has}",
        where=str(bundle.path),
        do="Build for host-gpu, or for host-cpu with --recipe onnx-f32",
    )


def _has_gpu(bundle: Bundle) -> bool:
    """Whether the bundle's profile has a GPU; False for an unknown profile."""
    try:
        profile = load(bundle.manifest.target.profile)
    except EdgekitError:
        return False
    return any(one.kind == "gpu" for one in profile.accelerators) and profile.kind == "host"


def _ends(entry: ArtifactEntry) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    return entry.inputs, entry.outputs


def _free(entry: ArtifactEntry) -> bool:
    """Whether the batch axis is free, so that Triton may form batches."""
    return all(tensor.free_batch for tensors in _ends(entry) for tensor in tensors)


def _config(bundle: Bundle, entry: ArtifactEntry, name: str, how: Export) -> str:
    """config.pbtxt, protobuf's text format of Triton's ModelConfig."""
    free = _free(entry)
    lines = [
        f"# {bundle.manifest.name} {bundle.manifest.version}, {entry.recipe}; written by edgekit host export",
        f"name: {json.dumps(name)}",
        f"backend: {json.dumps(how.backend)}",
        f"max_batch_size: {PREFERRED[-1] if free else 0}",
    ]
    for kind, tensors in zip(("input", "output"), _ends(entry), strict=True):
        for tensor in tensors:
            lines.append(f"{kind} {{ name: {json.dumps(tensor.tensor)} {_form(tensor, free)} }}")
    lines.append(f"instance_group {{ count: 1 kind: {'KIND_GPU' if how.gpu else 'KIND_CPU'} }}")
    if free:
        preferred = ", ".join(map(str, PREFERRED))
        policy = f"default_timeout_microseconds: {QUEUE_US} allow_timeout_override: true max_queue_size: {QUEUE}"
        lines.append(f"dynamic_batching {{\n  preferred_batch_size: [ {preferred} ]")
        lines.append(f"  default_queue_policy {{ {policy} }}\n}}")
    if how.gpu and how.backend == "onnxruntime":
        mode = f'parameters {{ key: "precision_mode" value: "{_PRECISIONS.get(entry.precision, "FP32")}" }}'
        accelerator = f'gpu_execution_accelerator {{ name: "tensorrt"\n  {mode} }}'
        lines.append(f"optimization {{ execution_accelerators {{ {accelerator} }} }}")
    return "\n".join([*lines, *_warmup_lines(bundle, entry)]) + "\n"


def _warmup_lines(bundle: Bundle, entry: ArtifactEntry) -> list[str]:
    """Every batch is warmed with the first golden example, and every other example alone."""
    free, count = _free(entry), len(bundle.manifest.golden)
    batches = [(0, batch) for batch in ((1, *PREFERRED) if free else (1,))] if count else []
    lines = []
    for number, batch in (*batches, *((number, 1) for number in range(1, count))):
        lines.append(f'model_warmup {{ name: "golden {number}, batch {batch}" batch_size: {batch}')
        for tensor in entry.inputs:
            value = f"{_form(tensor, free)} input_data_file: {json.dumps(_file(number, tensor))}"
            lines.append(f"  inputs {{ key: {json.dumps(tensor.tensor)} value {{ {value} }} }}")
        lines.append("}")
    return lines


def _warmups(bundle: Bundle, entry: ArtifactEntry) -> dict[str, bytes]:
    """The golden examples for this artifact, one file an input, as long as a fixed batch.

    Raises ExportError for another free axis.
    """
    found = {}
    for number, golden in enumerate(bundle.manifest.golden):
        items = bundle.golden_items(golden)
        for tensor in entry.inputs:
            if -1 in tensor.shape[1:]:
                raise ExportError(
                    f"'{tensor.tensor}' has dynamic axes besides the batch: {list(tensor.shape)}",
                    where=str(bundle.path),
                    do="Fix them when you export the model",
                )
            item = Adapter(bundle.manifest.contract.input(tensor.name), tensor)(items[tensor.name])
            count = 1 if tensor.free_batch else max(1, tensor.shape[0])
            found[_file(number, tensor)] = np.repeat(item, count, axis=0).tobytes()
    return found


def _file(number: int, tensor: TensorSpec) -> str:
    return f"golden-{number}-{re.sub(r'[^A-Za-z0-9_-]+', '-', tensor.name)}"


def _form(tensor: TensorSpec, free: bool) -> str:
    dims = ", ".join(map(str, tensor.shape[1:] if free else tensor.shape))
    return f"data_type: TYPE_{datatype_of(np.dtype(tensor.dtype))} dims: [ {dims} ]"


def _service(name: str, how: Export) -> str:
    """KServe's InferenceService; JSON's strings are YAML's."""
    service = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:40] or "model"
    lines = [
        "# Upload the model folder to storageUri first, then: kubectl apply -f inferenceservice.yaml",
        "apiVersion: serving.kserve.io/v1beta1",
        "kind: InferenceService",
        "metadata:",
        f"  name: {json.dumps(service)}",
        "spec:",
        "  predictor:",
        "    minReplicas: 1",
        "    model:",
        "      modelFormat:",
        "        name: triton",
        "      runtime: kserve-tritonserver",
        "      protocolVersion: v2",
        f"      storageUri: {json.dumps(how.storage or f'pvc://{service}')}",
    ]
    if how.gpu:
        lines += ["      resources:", "        limits:", '          nvidia.com/gpu: "1"']
    return "\n".join(lines) + "\n"
