"""Model files judged by their bytes alone, before an interpreter sees them.

    facts = check_model("tflite", data)         # raises ModelFileError
    facts.ops                                   # ("ADD", "CONV_2D", "FULLY_CONNECTED")

Interpreters take their files' word for offsets, indices and sizes; a file that lies can end the process or take all of
its memory. Here the whole structure is walked first, in plain Python: nothing is run, nothing is loaded, no file is
opened.
"""
