"""The process in which a stranger's model is opened: a wall first, then Keras, TensorFlow or PyTorch.

python -m edgekit_converters.isolated_child FOLDER MODEL KERAS_HOME         # by `sources.isolated`, asked over standard input
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from pathlib import Path
from typing import IO, Any

from edgekit_converters.wall import Wall, build_wall


def main(folder: str, model: str, keras_home: str) -> None:
    """Answer until the other side closes the pipe."""
    answers, asked = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what libraries print is no answer
    missing = build_wall(Wall(readable=[Path(model), Path(keras_home)], writable=[Path(folder)]))
    waiting: queue.SimpleQueue[tuple[dict[str, Any], bytes]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(asked, waiting), daemon=True).start()
    _serve(answers, waiting, missing)


def _listen(asked: IO[bytes], waiting: queue.SimpleQueue[tuple[dict[str, Any], bytes]]) -> None:
    """In a thread of its own, so that this process ends with the other one also while it computes."""
    from edgekit_converters.sources.isolated import read_frame

    while True:
        try:
            waiting.put(read_frame(asked))
        except (EOFError, OSError, ValueError):
            os._exit(0)


def _serve(answers: IO[bytes], waiting: queue.SimpleQueue[tuple[dict[str, Any], bytes]], missing: Any) -> None:
    from edgekit_converters.sources.isolated import write_frame
    from edgekit_runtime.errors import EdgekitError

    source: Any = None
    while True:
        head, data = waiting.get()
        try:
            if head["do"] == "open":
                source, said = _open(head["options"])
                write_frame(answers, {"source": said, "missing": list(missing)})
            else:
                extra, parts = _done(source, head, data)
                write_frame(answers, extra, *parts)
        except EdgekitError as error:
            parts_of = {"what": error.what, "where": error.where, "do": error.do}
            write_frame(answers, {"error": {"type": type(error).__name__, **parts_of}})


def _open(options: dict[str, Any]) -> tuple[Any, Any]:
    from edgekit_converters.sources.description import Description
    from edgekit_converters.sources.load import load
    from edgekit_converters.sources.options import LoadOptions
    from edgekit_runtime.bundle.codec import to_json

    path = Path(options.pop("path"))
    shapes = {name: tuple(sizes) for name, sizes in options.pop("shapes").items()}
    source = load(path, LoadOptions(shapes=shapes, **options))
    said = {name: getattr(source, name) for name in Description.__dataclass_fields__}
    return source, {**to_json(Description(**{**said, "path": Path()})), "path": ""}


def _done(source: Any, head: dict[str, Any], data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    import importlib

    import numpy as np

    from edgekit_converters.progress import silent
    from edgekit_converters.sources.isolated import unpack
    from edgekit_converters.targets.stored import float_model_bytes
    from edgekit_converters.targets.workspace import FLOAT_MODELS

    if head["do"] == "predict":
        found = [np.ascontiguousarray(array) for array in source.predict(unpack(head["arrays"], data))]
        return {"arrays": [[a.dtype.str, list(a.shape)] for a in found]}, [a.tobytes() for a in found]
    if head["do"] == "onnx":
        return {}, [source.onnx()]
    module, function = FLOAT_MODELS[head["format"]].split(":")
    convert = getattr(importlib.import_module(module), function)
    more = () if head["batch"] == 1 else (head["batch"],)
    return {}, [float_model_bytes(convert(source, silent, *more))]


if __name__ == "__main__":
    main(*sys.argv[1:])
