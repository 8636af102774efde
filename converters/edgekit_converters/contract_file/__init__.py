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

from __future__ import annotations

from edgekit_converters.contract_file.describe import (
    default_file,
    describe,
    detect_scores,
    find_contract_file,
    settle,
    stated_keys,
)
from edgekit_converters.contract_file.draft import Family, draft, families, left_to_say

__all__ = [
    "Family",
    "default_file",
    "describe",
    "detect_scores",
    "draft",
    "families",
    "find_contract_file",
    "left_to_say",
    "settle",
    "stated_keys",
]
