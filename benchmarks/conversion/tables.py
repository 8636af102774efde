"""The fidelity tables, for a terminal and for the docs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models import CASES

_Found = Mapping[str, Mapping[str, Mapping[str, Any]]]


def printed(found: _Found) -> str:
    lines = []
    for name, cells in found.items():
        lines += ["", f"{name}: {CASES[name].what}{_original(cells)}"]
        lines += [
            f"  {'':34} {'agreement, 95 %':>22} {'metric':>7} {'cosine':>7} {'float':>6} {'size':>6} {'latency':>8}"
        ]
        for row, cell in cells.items():
            shown = row.replace("*", "")
            if "reason" in cell:
                lines.append(f"  {shown:34} {cell['reason'][:90]}")
                continue
            agreement, metric, cosine, left, size, latency = _values(cell)
            lines.append(
                f"  {shown:34} {agreement:>22} {metric:>7} {cosine:>7} {left:>6} {size:>6} {latency:>8}{_notes(cell)}"
            )
    return "\n".join(lines)


def markdown(found: _Found, conditions: Mapping[str, Any]) -> str:
    said = ", ".join(f"{key} {value}" for key, value in conditions.items() if isinstance(value, (str, int, float)))
    lines = [f"Measured on: {said}. One thread.", ""]
    for name, cells in found.items():
        lines += [f"#### {name}: {CASES[name].what}{_original(cells)}", ""]
        lines += [
            "| | agreement, 95 % interval | metric | cosine | MACs in float | size | latency |",
            "|---|---|---|---|---|---|---|",
        ]
        for row, cell in cells.items():
            values = (cell["reason"][:110].replace("|", "/"), *[""] * 5) if "reason" in cell else _values(cell)
            lines.append(f"| {row}{_notes(cell)} | {' | '.join(values)} |")
        sure = next((cell["sure"]["items"] for cell in cells.values() if "sure" in cell), None)
        if sure:
            lines += ["", f"Of the {sure} items where float is over 0.5 sure:", ""]
            lines += ["| | agreement, 95 % interval |", "|---|---|"]
            lines += [f"| {row} | {_share(cell['sure'])} |" for row, cell in cells.items() if "sure" in cell]
        lines.append("")
    return "\n".join(lines)


def collapses(found: _Found) -> str:
    """The models that are known to collapse: what the others make of them, what edgekit found, named and did."""
    lines = [
        "| model | the others' static INT8 | edgekit, as it is | edgekit, repaired | the cause it names |",
        "|---|---|---|---|---|",
    ]
    for name in (name for name in found if CASES[name].naive):
        cells = found[name]
        theirs = [_brief(row, cells[row]) for row in cells if "edgekit" not in row and "dynamic" not in row]
        plain = [_brief(row, cells[row]) for row in cells if "edgekit" in row and "repaired" not in row]
        mended = [_repair(row, cells[row]) for row in cells if "repaired" in row]
        causes = [_cause(row, cells[row]) for row in cells if "repaired" in row]
        columns = ("; ".join(theirs), "; ".join(plain), "; ".join(mended), "; ".join(filter(None, causes)))
        lines.append(f"| {name}{_original(cells)} | {' | '.join(columns)} |")
    return "\n".join(lines)


def _brief(row: str, cell: Mapping[str, Any]) -> str:
    row = row.replace("*", "").removeprefix("edgekit, ").replace(", best of grid", ", best")
    if "reason" in cell:
        return f"{row}: {'does not run' if cell['reason'].startswith('does not run') else 'refused'}"
    return f"{row}: {100 * (cell['artifact'] if 'artifact' in cell else cell['agreement']):.1f}"


def _repair(row: str, cell: Mapping[str, Any]) -> str:
    if "reason" in cell:
        return f"{row.split(', ')[1]}: {cell['reason'][:90]}"
    made = cell["made"]
    if not made.get("repaired"):
        return f"{row.split(', ')[1]}: {100 * cell['artifact']:.1f}, kept the limit as it was"
    left = f"{made['float_layers']} layers and {100 * cell['float_macs']:.0f} % of the MACs in float"
    met = "" if made["met"] else "; the limit is not met"
    return f"{row.split(', ')[1]}: {100 * cell['artifact']:.1f}, {left}{met}"


def _cause(row: str, cell: Mapping[str, Any]) -> str:
    """The first that is named, and the second where there was something to repair."""
    made = cell.get("made", {})
    causes = [_short(cause) for cause in made.get("causes", ())[: 1 + bool(made.get("repaired"))]]
    return f"{row.split(', ')[1]}: {'. '.join(causes)}".replace("|", "/") if causes else ""


def _short(cause: str) -> str:
    """A cause with the last part of its layer's name: TensorFlow joins those of all that it fused."""
    layer, what = cause.split(": ", 1)
    return f"`{layer.split(';')[-1]}`: {what}" if layer else what


def _original(cells: Mapping[str, Mapping[str, Any]]) -> str:
    cell = next((cell for cell in cells.values() if "original" in cell), None)
    return f"; float: {cell['metric']} {100 * cell['original']:.2f} on {cell['metric_items']}" if cell else ""


def _values(cell: Mapping[str, Any]) -> tuple[str, ...]:
    left = cell.get("float_macs")
    return (
        _share(cell),
        f"{100 * cell['artifact']:.2f}" if "artifact" in cell else "",
        f"{cell['cosine']:.4f}",
        "?" if left is None else f"{100 * left:.0f} %",
        f"{cell['bytes'] / cell['float_bytes']:.2f}" if "float_bytes" in cell else f"{cell['bytes'] >> 10} KiB",
        f"{cell['min_ratio']:.2f}x" if "min_ratio" in cell else "",
    )


def _notes(cell: Mapping[str, Any]) -> str:
    return f" ({'; '.join(cell['notes'])})" if cell.get("notes") else ""


def _share(cell: Mapping[str, Any]) -> str:
    low, high = cell["ci95"]
    return f"{100 * cell['agreement']:.1f} % ({100 * low:.1f}-{100 * high:.1f})"
