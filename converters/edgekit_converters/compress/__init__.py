"""A trained float model made ready for 8 bits by a little more training of that very model.

    network = read_network(model)                       # of a Keras 3 model: batch norm folded, activations fused
    trained = train(network, data, TrainingOptions())   # best checkpoint, ranges learnt with the weights
    data = with_record(keras_bytes, record)             # a .keras file whose ranges `edgekit build` takes

Rules: only layers whose 8-bit arithmetic is known are simulated; the rest is refused by name. Nothing here decides
whether a step was worth it: that is measured on artifacts, by the caller.
"""
