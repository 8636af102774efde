"""What a language model in GGUF asks of llama.cpp: the number formats of its tensors."""

from __future__ import annotations

from edgekit_converters.formats.needs import Needs, Use
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_runtime.modelfile.gguf_structure import read_gguf
from edgekit_runtime.system.errors import ModelFileError


def read_needs(data: bytes) -> Needs:
    """Raises ConversionError."""
    try:
        return Needs("gguf", ops=tuple(Use(form, 1, form) for form in sorted(read_gguf(data).formats)))
    except ModelFileError as error:
        raise ConversionError(error.what, do=error.do) from error
