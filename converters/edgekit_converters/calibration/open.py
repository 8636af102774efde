"""One way in: a path or `module:function` -> the Dataset that reads it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from edgekit_converters.calibration.arrays import open_npy, open_npz
from edgekit_converters.calibration.dataset import Dataset
from edgekit_converters.calibration.files import PREPROCESSINGS, open_files, open_recordings
from edgekit_converters.calibration.folder import files_in, open_folder
from edgekit_converters.calibration.function import open_function
from edgekit_converters.errors import CalibrationError
from edgekit_runtime.contract.kinds import pictures
from edgekit_runtime.contract.spec import Contract

__all__ = ["open_dataset"]

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def open_dataset(path: str | os.PathLike[str], contract: Contract, *, labelled: bool = True) -> Dataset:
    """An image folder (sub-folders are labels), a folder of `.wav` recordings, `PREPROCESSING:folder` (see `files`), a
    `.npy` or `.npz` (`x` or input names; `y`), or `module:function`.

    labelled=False: a folder's sub-folders are only folders, which is all that calibration needs.
    Raises CalibrationError: what is wrong, where, what to do. A fault of a single item shows when it is read.
    """
    place = Path(path)
    if place.is_dir():
        if len(pictures(contract.inputs)) < len(contract.inputs) and files_in(place, {".wav"}):
            return open_recordings(place, contract, labelled=labelled)
        return open_folder(place, contract, labelled=labelled)
    if place.is_file():
        if place.suffix.lower() == ".npy":
            return open_npy(place, contract)
        if place.suffix.lower() == ".npz":
            return open_npz(place, contract)
        raise CalibrationError(
            "is no set of examples", where=str(place), do="Give an image folder, a .npy, a .npz or module:function"
        )
    if place.exists():
        raise CalibrationError(
            "is not a regular file", where=str(place), do="Give an image folder, a .npy, a .npz or module:function"
        )
    reading, _, folder = str(path).partition(":")
    if reading in PREPROCESSINGS and Path(folder).is_dir():
        return open_files(reading, Path(folder), contract, labelled=labelled)
    if isinstance(path, str) and _FUNCTION.fullmatch(path):
        return open_function(path, contract)
    raise CalibrationError(
        "does not exist", where=str(path), do="Give an image folder, a .npy, a .npz or module:function"
    )
