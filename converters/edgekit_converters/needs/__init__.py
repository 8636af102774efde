"""What an artifact asks of a runtime, and which would refuse it or answer wrongly.

    needs = read_needs("tflite", artifact.data)
    barriers(needs, Runtime("tflite-runtime", "2.14.0", "aarch64"))         # () where nothing stands in the way

Rules: what is asked is derived from operators and tensors; what a file says of itself (`min_runtime_version`) only ever
adds to it, because files are seen that claim too little. Nothing is run, and no engine is imported.
"""
