"""A recipe in, an artifact out.

    artifact = convert(source, recipe("tflite-int8"), samples)
    artifact.data, artifact.inputs, artifact.quantized_macs

Rules: a recipe is data, and its name says format, precision and form; calibration data is streamed, one example at a
time; the artifact is loaded into the engine that boards run before it is handed out, and its tensors carry the
contract's names; the same inputs give the same bytes.
"""
