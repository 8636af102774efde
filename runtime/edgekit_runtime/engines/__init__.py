"""Engines: what runs one artifact. One small protocol, the heavy import inside.

    with load_engine("tflite", data, threads=4) as engine:
        outputs = engine.run([tensor])        # in the order of engine.inputs / engine.outputs

Rules:
- an engine is used by one thread at a time;
- `run` returns arrays that own their memory: they never alias an engine's buffer;
- the choice of the engine for a format stands in one function, `pick`.
"""
