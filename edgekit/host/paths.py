"""Which engine answers for a served model, and why those of a GPU do not.

    for engine, why in not_taken(model.describe()): ...          # ("tensorrt", "not installed: pip install ...")

Rules:
- what was measured says it (`describe()["tuning"]`); nothing is loaded or tried here;
- a machine that has neither a GPU nor an engine of one has nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edgekit_runtime.engines.cuda import absent
from edgekit_runtime.engines.registry import ENGINES, available, on_gpu
from edgekit_runtime.errors import install_command


def not_taken(
    described: Mapping[str, Any],
    installed: Callable[[], Mapping[str, str]] = available,
    no_gpu: Callable[[], str] = absent,
) -> tuple[tuple[str, str], ...]:
    """(engine, reason), in the order in which engines are tried.
    described: what `Model.describe` says."""
    here = [name for name in installed() if on_gpu(name)]
    if not here and no_gpu():
        return ()
    runs, found = described["engine"]["name"], []
    for name in filter(on_gpu, ENGINES):
        if name == runs:
            continue
        tried = [one for one in described["tuning"]["candidates"] if one["engine"] == name]
        refused = [one["refused"] for one in tried if one["refused"]]
        times = [one["p50_ms"] for one in tried if one["p50_ms"] is not None]
        if name not in here:
            why = f"not installed: {install_command(ENGINES[name].extra)}"
        elif times:
            why = f"slower: {min(times):.3g} ms"
        else:
            why = refused[0] if refused else "not measured"
        found.append((name, why))
    return tuple(found)
