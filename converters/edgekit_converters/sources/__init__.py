"""Trained models read as a SourceModel: its kind, inputs and outputs, and float answers.

    source = load(Path("net.keras"))
    source.inputs[0].shape                  # (-1, 224, 224, 3)
    source.predict([batch])                 # the original, in float

Rules: the suffix names the format and the file's first bytes must agree; code that a file holds (Lambda layers,
pickles) is refused unless the file is trusted; only the batch axis may be free, and --shape pins the others; weights
are finite.
"""
