"""The model that a real Triton serves in the interoperability tests: y = 2 x, for the Python backend."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if x.size == 1:  # asked to be slow: one value, the seconds
                time.sleep(float(x.ravel()[0]))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", (2 * x).astype(np.float32))]))
        return responses
