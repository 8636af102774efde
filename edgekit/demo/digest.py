"""What the demo prints of each command: a few lines out of the JSON that the command gives.

Rules: a figure is the command's own; the file of the plain converter stands beside edgekit's; warnings are never left
out; a command that fails is no matter of this module, the demo then prints all that it said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgekit.report.decision import sentences_of
from edgekit.report.words import DASH, format_score, number, percent, points, size, span
from edgekit_runtime.errors import sentences

Json = Mapping[str, Any]


def digest(command: str, found: Json) -> Iterator[str]:
    """command: build, inspect, run or bench. found: its JSON."""
    yield from {"build": _build, "inspect": _inspect, "run": _run, "bench": _bench}[command](found)


def _build(found: Json) -> Iterator[str]:
    """The original, the plain converter's file, and what each board got."""
    for one in found["data"]:
        if one["level"] == "warning":
            yield f"warning: {sentences(one['what'], one['do'])}"
    boards = found["bundles"]
    chosen = {board["recipe"] for board in boards}
    times = {(board["profile"], c["recipe"]): span(c["estimate"]) for board in boards for c in board["candidates"]}
    times |= {(board["profile"], c["recipe"]): span(c["estimate"]) for board in boards for c in board["compared"]}
    rows = [("", "size", "top-1", "drop, 95 % interval", "cosine", *(board["profile"] for board in boards))]
    shown = [c for c in found["candidates"] if c["recipe"] in chosen or c["file"] is not None]
    shown.sort(key=lambda c: c["file"] is None)  # edgekit's last
    of = shown[0]["fidelity"]
    rows.append(("the original", DASH, format_score(of["original"], of["metric"]), *[DASH] * (len(rows[0]) - 3)))
    for candidate in shown:
        name, fidelity = candidate["recipe"], candidate["fidelity"]
        rows.append(
            (
                f"edgekit, {name}" if candidate["file"] is None else "the plain converter",
                size(candidate["bytes"]),
                format_score(fidelity["artifact"], fidelity["metric"]),
                " to ".join(map(points, fidelity["ci95"])),
                f"{fidelity['cosine']:.4f}",
                *(times.get((board["profile"], name), DASH) for board in boards),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        right = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join([name.ljust(widths[0]), *right])
    spans = [candidate["fidelity"]["ci95"] for candidate in shown]
    if max(low for low, _ in spans) <= min(high for _, high in spans):
        yield f"The intervals overlap: {of['items']} items do not tell these apart."
    for _, sentence in sentences_of(found):
        yield sentence
    yield f"report  {found['page'] or found['report']}"


def _inspect(found: Json) -> Iterator[str]:
    manifest = found["manifest"]
    recipes = " and ".join(artifact["recipe"] for artifact in manifest["artifacts"])
    signed = "signed by " + ", ".join(found["signed_by"]) if found["signed_by"] else "not signed"
    yield f"{recipes}, {len(manifest['golden'])} golden examples, {signed}; every SHA-256 is right"


def _run(found: Json) -> Iterator[str]:
    for answer in found["answers"]:
        best = ", ".join(f"{percent(one['score'])} {one['label']}" for one in answer["top"])
        yield f"{Path(answer['input']).name}: {best}"


def _bench(found: Json) -> Iterator[str]:
    yield (
        f"on this machine: p50 {number(found['p50_ms'])} ms, p99 {number(found['p99_ms'])} ms, "
        f"{found['throughput_per_s']:,.0f}/s with one caller, {found['peak_rss_mb']:.0f} MB"
    )
