"""roofline.toml as text, from the constants of a fit and the bands of its errors; and what differs between two of them.

text = written(fitted)
tomllib.loads(text)["cores"]["cortex-a72"]["int8"]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

DIGITS = 4
_HEAD = """\
# Constants of the latency roofline. Written by `python benchmarks/estimate --write`, which fits them to the published
# single-image latencies of benchmarks/estimate/published_latencies.csv (every row has its source); `--check` compares.
#
#     t = sum over kinds of macs / (rate[core] * speed[generation][kind] * kernels[kind] * GHz * threads^exponent)
#       + bytes / (bandwidth * efficiency[core]) + operations * overhead[core] * overhead[kernels] / GHz
#
# How far off it was on boards that the fit had not seen stands in benchmarks/results/estimate.json and docs/boards.md.
"""
_ABOUT = {
    "machine": "thread_exponent: what n threads gain is n to this power.",
    "cores": "Multiply-accumulates a cycle and core in a 1x1 convolution, with ncnn's kernels; the part of the "
    "nominal\n"
    "# bandwidth that is reached; microseconds an operation costs at 1 GHz. inferred: rates without a published "
    "latency,\n"
    "# from float16's, which was 1.9 times float32's on cores that have both. boards: 1 where one board of the core\n"
    "# was published; such cores were fitted after all others, whose constants they leave as they are.",
    "speeds": "Of each kind of operation against a 1x1 convolution, on cores without and with the dot product.",
    "frameworks": "Speed of each kind of operation against ncnn's, and the cost of an operation's dispatch against "
    "ncnn's.",
    "anchoring": "carried_at_least: the part of the roofline's error on MobileNetV1, in the logarithm, that is "
    "carried over to a\n"
    "# network that has nothing in common with it. host_weight: of the ratio measured on the workstation.",
    "tested": "Multiply-accumulates of the smallest and the largest network in the table. beyond: "
    "how many times smaller or larger\n"
    "# another may be before its range is widened.",
    "apart": "Processors whose boards were published further apart than the bands allow. times: "
    "how many were published.\n"
    "# estimated: what holds 90 % of published over predicted where no board with it was in the fit. boards: "
    "the least and the\n"
    "# largest median of a board.",
    "bands": "What holds 90 % of published over predicted on boards that were left out of the fit. estimated: "
    "the roofline\n"
    "# alone. carried: its ratio to MobileNetV1 on the board. blended: together with the workstation's ratio. "
    "derived_anchor:\n"
    "# how far an anchor may be off that was not measured; inferred_rate: as far as float32's rate was off where "
    "it is known;\n"
    "# one_board: on boards of a core of which the fit saw another one alone.\n"
    "# derived_anchor and untested_size are judgement: nothing was published to take them from.",
}


def written(fitted: Mapping[str, Any]) -> str:
    """fitted: section -> table, as the roofline reads it."""
    lines = [_HEAD]
    for name, about in _ABOUT.items():
        lines.append(f"# {about}")
        lines.extend(_section(name, fitted[name]))
        lines.append("")
    return "\n".join(lines)


def rounded(value: Any) -> Any:
    """Floats to four digits, wherever they are."""
    if isinstance(value, Mapping):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(inner) for inner in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def differences(one: Any, other: Any, tolerance: float = 0.01, where: str = "") -> Iterator[str]:
    """Keys that only one has, and figures further apart than `tolerance` of their size."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted({*one, *other}):
            place = f"{where}.{key}" if where else key
            if key not in one or key not in other:
                yield f"{place} is in one only"
            else:
                yield from differences(one[key], other[key], tolerance, place)
    elif isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, tolerance, f"{where}[{index}]")
    elif isinstance(one, (int, float)) and isinstance(other, (int, float)):
        if not math.isclose(one, other, rel_tol=tolerance):
            yield f"{where}: {one:.{DIGITS}g} and {other:.{DIGITS}g}"
    elif one != other:
        yield f"{where}: {one} and {other}"


def _section(name: str, table: Mapping[str, Any]) -> Iterator[str]:
    """Tables of tables get headings of their own; the innermost stand on one line."""
    plain = {key: value for key, value in table.items() if not _nested(value)}
    if plain:
        yield f"[{name}]"
        yield from (f"{key} = {_value(value)}" for key, value in plain.items())
    for key, value in table.items():
        if _nested(value):
            yield from _section(f"{name}.{key}", value)


def _nested(value: Any) -> bool:
    return isinstance(value, Mapping) and any(isinstance(inner, (Mapping, list)) for inner in value.values())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else str(rounded(float(value) if isinstance(value, float) else value))
