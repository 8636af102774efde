"""An ONNX artifact in KServe's SDK server: python kserve_onnx.py PORT MODEL.onnx."""

import sys

import onnxruntime
from kserve import InferOutput, InferResponse, Model, ModelServer

TYPES = {"tensor(float)": "FP32", "tensor(uint8)": "UINT8"}


class Onnx(Model):
    def __init__(self, path):
        super().__init__("tiny")
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.ready = True

    def get_input_types(self):
        return [described(one) for one in self.session.get_inputs()]

    def get_output_types(self):
        return [described(one) for one in self.session.get_outputs()]

    def predict(self, payload, headers=None, response_headers=None):
        fed = {one.name: one.as_numpy() for one in payload.inputs}
        names = [output.name for output in self.session.get_outputs()]
        outputs = []
        for name, value in zip(names, self.session.run(names, fed), strict=True):
            outputs.append(InferOutput(name, list(value.shape), "FP32"))
            outputs[-1].set_data_from_numpy(value, binary_data=False)
        return InferResponse(payload.id, self.name, outputs)


def described(one):
    shape = [-1, *one.shape[1:]]  # the batch axis has a name there
    return {"name": one.name, "datatype": TYPES[one.type], "shape": shape}


if __name__ == "__main__":
    ModelServer(http_port=int(sys.argv[1]), enable_grpc=False, workers=1).start([Onnx(sys.argv[2])])
