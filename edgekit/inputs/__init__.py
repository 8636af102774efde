"""What a person asks about: files, folders of files, and files as they come into a folder."""

from __future__ import annotations

from edgekit.inputs.arrivals import Arrivals
from edgekit.inputs.files import InputsError, expand, frames, list_files, load

__all__ = ["Arrivals", "InputsError", "expand", "frames", "list_files", "load"]
