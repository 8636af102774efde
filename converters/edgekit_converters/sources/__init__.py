"""A file that someone trained -> a SourceModel: what it is, its inputs and outputs, and the original answers in float.

    source = load(Path("net.keras"))
    source.inputs[0].shape                  # (-1, 224, 224, 3)
    source.predict([batch])                 # the original, in float

Rules: the suffix names the format and the file's first bytes must agree; nothing in a file is ever run (Lambda layers,
custom operators and external data are refused with the reason); only the batch axis may be free.
"""

from __future__ import annotations

from edgekit_converters.sources.load import FORMATS, LOADERS, load
from edgekit_converters.sources.model import SourceModel

__all__ = ["FORMATS", "LOADERS", "SourceModel", "load"]
