"""Model files judged by their bytes alone, before an interpreter sees them.

    facts = check_model("tflite", data)         # raises ModelFileError
    facts.ops                                   # ("ADD", "CONV_2D", "FULLY_CONNECTED")

Interpreters trust a file's offsets, indices and sizes. Here the whole structure is walked first, in plain Python.
"""
