"""A recipe in, an artifact out.

    artifact = Workspace(source, samples).make(recipe("tflite-int8"))
    artifact.data, artifact.inputs, artifact.quantized_macs

Rules: calibration data is streamed, one example at a time; an artifact is returned only after the engine that boards
run has loaded it, with the contract's tensor names; the same inputs give the same bytes.
"""
