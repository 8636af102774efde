"""What an artifact asks of a processor, read from its own bytes.
The input of the latency estimate.

Rules: an operation is counted as the engine runs it (activations fused, constants folded, quantize pairs absorbed);
what cannot be counted is listed in `Workload.unknown` by name, so that the estimate can refuse it.

    workload = read_workload("tflite", artifact.data, "int8")
    macs, weights = quantized_fraction("tflite", artifact.data)      # 1.0, 1.0 for a full INT8 model
"""
