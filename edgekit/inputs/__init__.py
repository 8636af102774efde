"""What a person asks about: files, folders of files, and files as they come into a folder."""

from __future__ import annotations

from edgekit.inputs.arrivals import Arrivals
from edgekit.inputs.files import InputsError, expanded, listed, load
from edgekit.inputs.frames import frames

__all__ = ["Arrivals", "InputsError", "expanded", "frames", "listed", "load"]
