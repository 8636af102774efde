"""ncnn artifacts on the CPU, one item at a time.

Rules:
- ncnn trusts its files: `ncnn_structure` checks the bytes here again, and ncnn gets text made of what they hold;
- weights are read through a link to memory: no decrypted model touches a disk, and a reader of files stops at the end;
- an artifact of 32-bit floats is computed in 32 bits, one of 16-bit floats in 16 where the processor has them;
- threads wait asleep: ncnn's would spin for 20 ms after each layer;
- with `kernels="vulkan"` it runs on a GPU, the best that the driver offers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.engines.registry import Engine, EngineInfo, EngineSetup, check_inputs, quiet_stderr
from edgekit_runtime.modelfile.ncnn_structure import NcnnNetwork, read_network
from edgekit_runtime.system.errors import EngineError, ModelFileError

_HALF = ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic")


class NcnnEngine(Engine):
    """One network; a run makes an extractor of its own."""

    def __init__(self, module: Any, info: EngineInfo, form: str, data: bytes, setup: EngineSetup) -> None:
        try:
            network = read_network(data)
        except ModelFileError as error:
            raise EngineError(f"ncnn {info.version} refuses the artifact: {error.what}") from error
        self._module, self.info = module, info
        self._net: Any = self._open(network)
        self.inputs, self.outputs = (
            tuple(TensorSpec(side.name, side.name, "float32", side.shape) for side in sides)
            for sides in (network.inputs, network.outputs)
        )

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        if self._net is None:
            raise EngineError("the engine was closed", do="Open the bundle again")
        check_inputs(self, inputs)
        found = []
        with self._net.create_extractor() as extractor:
            for spec, array in zip(self.inputs, inputs, strict=True):
                extractor.input(spec.tensor, self._module.Mat(np.ascontiguousarray(array[0])).clone())
            for spec in self.outputs:
                failed, blob = extractor.extract(spec.tensor)
                values = np.array(blob) if failed == 0 else np.empty(0)
                if values.size != np.prod(spec.shape) or values.dtype != np.float32:
                    raise EngineError(f"the inference failed at '{spec.tensor}' (ncnn's code {failed})", where="ncnn")
                found.append(values.reshape(spec.shape))
        return found

    def _open(self, network: NcnnNetwork) -> Any:
        """A loaded network. Raises EngineError."""
        vulkan, net = self.info.kernels == "vulkan", self._module.Net()
        with quiet_stderr():  # it lists the devices
            devices = self._module.get_gpu_count() if vulkan else 0
        if vulkan and any(layer.eight_bit for layer in network.layers):
            raise EngineError("ncnn computes 8 bits on the processor alone", where=self.info.name)
        if vulkan and not devices:
            raise EngineError("no Vulkan driver offers a GPU here", where=self.info.name, do="Install the GPU's driver")
        options = net.opt
        options.num_threads, options.openmp_blocktime, options.use_vulkan_compute = self.info.threads, 0, vulkan
        options.use_bf16_storage = False
        for name in _HALF:
            setattr(options, name, network.half)
        with quiet_stderr():  # it names what it refuses
            failed = _load(net, network)
        if failed or net.opt.use_vulkan_compute != vulkan:
            on = " on the GPU" if vulkan else ""
            raise EngineError(f"{self.info.name} {self.info.version} refuses the artifact{on}")
        return net

    def close(self) -> None:
        self._net = None


def _load(net: Any, network: NcnnNetwork) -> int:
    """ncnn's code, 0 if it took both files."""
    for read, data in ((net.load_param, network.param().encode()), (net.load_model, network.weights)):
        memory = os.memfd_create("model")
        try:
            with os.fdopen(os.dup(memory), "wb") as file:
                file.write(data)
            if code := read(f"/proc/self/fd/{memory}"):
                return int(code)
        finally:
            os.close(memory)
    return 0
