"""What MLServer serves: y = 2 x, and an ONNX artifact by ONNX Runtime."""

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Double(MLModel):
    async def predict(self, payload):
        x = NumpyCodec.decode_input(payload.inputs[0])
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", 2 * x)])


class Onnx(MLModel):
    async def load(self):
        self.session = onnxruntime.InferenceSession(self.settings.parameters.uri, providers=["CPUExecutionProvider"])
        return True

    async def predict(self, payload):
        fed = {one.name: NumpyCodec.decode_input(one) for one in payload.inputs}
        names = [output.name for output in self.session.get_outputs()]
        made = zip(names, self.session.run(names, fed), strict=True)
        return InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output(name, value) for name, value in made]
        )
