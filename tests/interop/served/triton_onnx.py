"""An ONNX artifact in a real Triton: its Python backend runs ONNX Runtime."""

from pathlib import Path

import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        file = Path(args["model_repository"], args["model_version"], "model.onnx")
        self.session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])

    def execute(self, requests):
        responses = []
        for request in requests:
            fed = {
                i.name: pb_utils.get_input_tensor_by_name(request, i.name).as_numpy() for i in self.session.get_inputs()
            }
            names = [output.name for output in self.session.get_outputs()]
            made = zip(names, self.session.run(names, fed), strict=True)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in made]))
        return responses
