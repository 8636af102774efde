"""What a model's inputs and outputs mean.
The model itself says it, and the `.contract.toml` that a person put beside it.

    file = find_contract_file(Path("model.keras"))      # model.contract.toml, or None
    contract = describe(source, file)

Rules:
- without a file the model file's own metadata count, and the file always wins over them; where there are none, every
  input is a tensor, as the model has it: nothing about pixels is guessed;
- an unknown key, a wrong type or a number that does not fit the model is an error that names file and key;
- `mean` and `std` have no default for a float input: a forgotten normalisation is the commonest silent mistake.
"""
