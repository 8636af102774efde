"""Engines: what runs one artifact. One small protocol, the heavy import inside.

    with load_engine("tflite", data, threads=4) as engine:
        outputs = engine.run([tensor])        # in the order of engine.inputs / engine.outputs

One thread at a time uses an engine.
"""
