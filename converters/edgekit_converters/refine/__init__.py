"""Float weights made ready to be quantized.
The same layers and shapes, other constants, less lost in 8 bits.

    refined = apply(graph, ("round",), statistics, feeds)     # seconds; the quantizer then finds these very integers
    islands = restore_layers(refined, graph, {"block_1/conv"})    # layers that stay in float get their own weights back

Rules: only constants change; a step works on layers, never on names or formats, so .tflite and .onnx gain alike; no
step needs labels; a layer for which a step does no good keeps what it has.
"""
