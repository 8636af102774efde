"""A model file as a graph of layers: read, run with every tensor in sight, and edited.

One view for .tflite and .onnx.

    graph = open_graph("tflite", data)
    graph.layers[0].name, graph.layers[0].kind          # a layer is called after the tensor that it makes
    with graph.watch() as watched:
        watched.run(arrays)[graph.layers[0].name]       # its activations, in float

Rules: a float graph and what a quantizer made of it are aligned by tensor name; a value of a quantized tensor comes
back dequantized; a graph is never changed in place.
"""
