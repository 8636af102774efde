"""Data to calibrate and evaluate with, and what a model's inputs and outputs mean.

    contract = describe(source, find_contract_file(Path("model.keras")))
    calibration, held_out = split(open_dataset("photos/", contract))

Rules:
- a dataset has a length, may be read again and again, and gives the same items each time; items are made one by one;
- an item holds what the board's own decoder makes of the file; array files are never unpickled;
- a file that cannot be read is left out, counted and named; more than a tenth of such files is an error;
- NaN and infinity are refused where they are read, and the error names the item;
- the contract file wins over the model's own metadata; `mean` and `std` have no default for a float input.
"""
