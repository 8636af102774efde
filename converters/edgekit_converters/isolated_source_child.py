"""The process in which an untrusted model is opened.
It enters a sandbox, then imports Keras, TensorFlow or PyTorch. `sources.isolated` asks it over standard input:

    python -m edgekit_converters.isolated_source_child FOLDER MODEL KERAS_HOME BYTES
"""

from __future__ import annotations

import os
import queue
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

from edgekit_converters.recipe.conversion_errors import SourceError, one_line
from edgekit_converters.sources.sandbox import Sandbox, enter_sandbox
from edgekit_runtime.system.children import limit_files, limit_memory, limit_processor_time
from edgekit_runtime.system.errors import EdgekitError, print_traceback
from edgekit_runtime.system.memory import lacks_memory

Waiting: TypeAlias = "queue.SimpleQueue[tuple[dict[str, Any], bytes]]"

_MOST_OPEN = 4096
_LOG = "Set EDGEKIT_CONVERTER_LOG=1 to see where it failed, or export the model to ONNX"


def main(folder: str, model: str, keras_home: str, memory: str) -> None:
    """Serve until the parent closes the pipe. memory: bytes that this process may take."""
    answers, asked = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what libraries print is not an answer
    missing = enter_sandbox(Sandbox(readable=[Path(model), Path(keras_home)], writable=[Path(folder)]))
    limit_memory(int(memory))
    limit_files(int(memory), _MOST_OPEN)
    waiting: Waiting = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(asked, waiting), daemon=True).start()
    _serve(answers, waiting, missing, Bounds(model, int(memory)))


@dataclass(frozen=True)
class Bounds:
    """Limits that may explain a framework's error. memory: bytes."""

    model: str
    memory: int

    def explain(self, error: BaseException) -> SourceError | None:
        """Return an error that names the limit that stopped the model.
        None where neither did."""
        if any(map(lacks_memory, _chain(error))):
            what = f"it needs more than the {self.memory / 1e9:.1f} GB of memory that a model of its size may take"
            do = "Use a smaller model, or give its inputs smaller shapes: --shape NAME=N,H,W,C"
            return SourceError(what, where=self.model, do=do)
        for one in _chain(error):
            denied = isinstance(one, PermissionError) or type(one).__name__ == "PermissionDeniedError"  # TensorFlow's
            if denied and self.model not in str(one):  # else the file itself cannot be read
                what = f"the model tried to reach files outside its folder, the network or a program: {one_line(one)}"
                do = "Export the network without that, or, if you know the file's author, set EDGEKIT_ISOLATE=off"
                return SourceError(what, where=self.model, do=do)
        return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _listen(asked: IO[bytes], waiting: Waiting) -> None:
    """Read in a thread, so that this process ends with its parent even while it computes."""
    from edgekit_converters.sources.isolated import read_frame

    while True:
        try:
            waiting.put(read_frame(asked))
        except (EOFError, OSError, ValueError, MemoryError):
            shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)  # where the other one was killed, nothing else does
            os._exit(0)


def _serve(answers: IO[bytes], waiting: Waiting, missing: Sequence[str], bounds: Bounds) -> None:
    from edgekit_converters.sources.isolated import unpack, write_frame  # first, as `_listen` imports it meanwhile

    # isort: split
    from edgekit_converters.recipe.progress import silent
    from edgekit_converters.sources.load import load
    from edgekit_converters.sources.load_options import LoadOptions
    from edgekit_converters.sources.source_model import description_of
    from edgekit_runtime.system.strict_json import to_json

    source: Any = None
    while True:
        head, data = waiting.get()
        limit_processor_time(os.cpu_count() or 1)
        try:
            if head["do"] == "open":
                options = dict(head["options"])
                path, shapes = Path(options.pop("path")), options.pop("shapes")
                shapes = {name: tuple(sizes) for name, sizes in shapes.items()}
                source = load(path, LoadOptions(shapes=shapes, **options))
                write_frame(answers, {"source": to_json(description_of(source)), "missing": list(missing)})
            elif head["do"] == "predict":
                import numpy as np

                found = [np.ascontiguousarray(array) for array in source.predict(unpack(head["arrays"], data))]
                shapes = [[a.dtype.str, list(a.shape)] for a in found]
                write_frame(answers, {"arrays": shapes}, *(a.tobytes() for a in found))
            elif head["do"] == "onnx":
                source.items[:] = unpack(head["arrays"], data)
                write_frame(answers, {}, source.onnx())
            else:
                source.items[:] = unpack(head["arrays"], data)
                from edgekit_converters.targets.workspace import convert_float_model

                write_frame(answers, {}, convert_float_model(source, head["format"], head["batch"], silent))
        except Exception as error:  # noqa: BLE001 - as each framework does
            explained = bounds.explain(error) or error
            if not isinstance(explained, EdgekitError):
                print_traceback(error)
                kind = SourceError if head["do"] in ("open", "predict") else EdgekitError  # one recipe's
                explained = kind(f"{type(error).__name__}: {one_line(error)}", where=bounds.model, do=_LOG)
            texts = {"what": explained.what, "where": explained.where, "do": explained.do}
            write_frame(answers, {"error": {"type": type(explained).__name__, **texts}})


if __name__ == "__main__":
    main(*sys.argv[1:])
