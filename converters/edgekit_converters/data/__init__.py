"""Data to calibrate and evaluate with, and what a model's inputs and outputs mean.

    contract = describe(source, find_contract_file(Path("model.keras")))
    calibration, held_out = split(open_dataset("photos/", contract))

Rules:
- a dataset has a length, may be read again and again, and gives the same items each time, made one by one by the
  board's own decoder;
- an unreadable file is left out, counted and named; more than a tenth of them is an error;
- NaN and infinity are refused where they are read, and the error names the item;
- the contract file wins over the model's own metadata; `mean` and `std` have no default for a float input.
"""
