"""Model files as plain values: one reader for .tflite and one for .onnx. Nothing is run.

    from edgekit_converters.formats import tflite_file
    tflite_file.read(data).main.operators[0].op          # "CONV_2D"

Rules: what a number stands for (`AffineGrid`, `Grid`) is the same in both formats. Facts of a file are computed here
once; no other package decodes its bytes.
"""
