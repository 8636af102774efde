"""Model files as plain values.
One reader for .tflite and one for .onnx, which every other package uses. Nothing is run.

    from edgekit_converters.formats import tflite
    tflite.read(data).main.operators[0].op          # "CONV_2D"

Rules: `tflite` and `onnx` read; `tflite_edit` writes. What a number stands for (`AffineGrid`, `Grid`) is the same in
both formats. Facts of a file are computed here once; no other package decodes its bytes.
"""
