"""Representative and evaluation data.
Opened from a folder, an array file or a function, linted, split and streamed.

    dataset = open_dataset("photos/", contract)
    calibration, held_out = split(dataset)
    artifact = convert(source, recipe, SourceSamples(calibration, contract, source), progress)

Rules:
- a dataset has a length, may be read again and again, and gives the same items each time; items are made one by one;
- an item holds canonical arrays: what the board's own decoder makes of the file, so both see the same pixels;
- array files are never unpickled;
- a file that cannot be read is left out, counted and named; more than a tenth of such files is an error;
- NaN and infinity are refused where they are read, and the error names the item.
"""
