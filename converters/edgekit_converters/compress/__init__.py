"""A trained float model made ready for 8 bits by a little more training.

    network = read_network(model)                       # of a Keras 3 model: batch norm folded, activations fused
    trained = train(network, data, TrainingOptions())   # best checkpoint, ranges learnt with the weights
    data = with_record(keras_bytes, record)             # a .keras file whose ranges `edgekit build` takes

Rules: only layers whose 8-bit arithmetic is known are simulated; others are refused by name. The caller decides by
measured artifacts whether a step was worth it.
"""
