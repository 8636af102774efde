"""A recipe in, an artifact out.

    artifact = convert(source, recipe("tflite-int8"), samples)
    artifact.data, artifact.inputs, artifact.quantized_macs

Rules: calibration data is streamed, one example at a time; an artifact is returned only after the engine that boards
run has loaded it, with the contract's tensor names; the same inputs give the same bytes.
"""
