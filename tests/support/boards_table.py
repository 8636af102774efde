"""docs/board-list.md: the tables of boards, made from the profiles. `tests/support/boards_table.py` writes it anew.

What was proven of a board is derived, not written down: an estimate's grade by asking for one of MobileNetV1, and what
is emulated by the images and processors that the tests in tests/arm run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edgekit_profiles import CannotEstimateError, Profile, installable, mobilenet_v1
from edgekit_profiles.catalogue import built_in
from edgekit_profiles.estimate import estimate

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "board-list.md"
CAPS = ROOT / "benchmarks" / "results" / "runtime_memory_cap.json"
# What CI runs under QEMU: (architecture, Debian release) -> processors. tests/docs/test_boards.py holds it against
# tests/arm.
EMULATED = {
    ("aarch64", "bookworm"): ("cortex-a53", "cortex-a72", "cortex-a76"),
    ("aarch64", "trixie"): ("cortex-a72",),
    ("armv7l", "bookworm"): ("cortex-a15",),
    ("armv7l", "trixie"): ("cortex-a15",),
}
ENGINES = {"litert": "LiteRT", "tflite-runtime": "tflite-runtime", "onnxruntime": "ONNX Runtime", "ncnn": "ncnn",
           "llama.cpp": "llama.cpp"}  # fmt: skip


def table() -> str:
    head = "| profile | board | cores | other images | estimate, float32 / INT8 | emulated |"
    return "\n".join([head, "| --- | --- | --- | --- | --- | --- |", *map(row, built_in().boards())]) + "\n"


def row(board: str) -> str:
    first, *others = built_in().of(board)
    core, little = first.core, first.little
    cores = f"{core.count} x {core.type}, {core.clock_ghz:g} GHz"
    cores += f" + {little.count} x {little.type}" if little else ""
    modes = [f"`@{mode.name}`" for mode in first.modes if mode.name != first.power_mode]
    cores += f"; also {', '.join(modes)}" if modes else ""
    images = ", ".join(f"`-{profile.image}`" for profile in others)
    return f"| `{board}` | {first.title} | {cores} | {images} | {grades(first)} | {emulated([first, *others])} |"


def systems() -> str:
    """One row for each system that an image may be, with what installs there."""
    found: dict[tuple[str, str], tuple[str, str, list[str]]] = {}
    for name in built_in().names():
        profile = built_in().load(name)
        system = f"Python {profile.os.python}, glibc {profile.os.glibc}" if profile.os.glibc else profile.os.name
        key = (f"{system}, {profile.os.debian}" if profile.os.debian else system, profile.arch)
        on = ", ".join(EMULATED.get((profile.arch, profile.os.debian), ())) or "never"
        if profile.measured_here:
            on = "native: CI runs on it"
        found.setdefault(key, (installs(profile), on, []))[2].append(f"`{name}`")
    head = "| system | processor | engines that install | emulated on | profiles |"
    rows = [
        f"| {system} | {arch} | {engines} | {on} | {', '.join(names)} |"
        for (system, arch), (engines, on, names) in sorted(found.items(), key=lambda item: -len(item[1][2]))
    ]
    return "\n".join([head, "| --- | --- | --- | --- | --- |", *rows]) + "\n"


def installs(profile: Profile) -> str:
    found = [
        f"{ENGINES[s.engine]} {s.version}" + (" (Debian's)" if s.package else "") for s in installable(profile) if s.ok
    ]
    return ", ".join(found) or "none"


def grades(profile: Profile) -> str:
    if profile.measured_here:
        return "measured by the build, there"
    return " / ".join(grade(profile, precision) for precision in ("float32", "int8"))


def grade(profile: Profile, precision: str) -> str:
    """By the engine that would run TFLite there; by LiteRT's kernels where none installs."""
    tflite = [s.engine for s in installable(profile) if s.ok and s.format == "tflite"]
    try:
        return estimate(profile, mobilenet_v1(precision), tflite[0] if tflite else "litert").grade  # type: ignore[arg-type]
    except CannotEstimateError:
        return "refused"


def emulated(profiles: list[Profile]) -> str:
    """Of the board's images the best: on its own processor, on another one, or not at all."""
    if profiles[0].measured_here:
        return "native"
    on = [EMULATED.get((profile.arch, profile.os.debian), ()) for profile in profiles if installs(profile) != "none"]
    if any(profile.core.type in processors for profile in profiles for processors in on):
        return "its processor"
    return "another processor" if any(on) else "never"


def memory() -> str:
    """From what benchmarks/runtime/memory_cap.py wrote: peaks under the caps, and whether the answers were the same."""
    written = json.loads(CAPS.read_text(encoding="utf-8"))["tables"]
    tables = {(runs[0]["recipe"], runs[0]["engine"]): runs for runs in written.values()}
    caps = [heading(one) for one in next(iter(tables.values()))[1:]]
    rows = [f"| artifact | engine | {' | '.join(caps)} | same answers |", "|---" * (len(caps) + 3) + "|"]
    for (recipe, engine), (free, *capped) in tables.items():
        assert [heading(one) for one in capped] == caps
        peaks = " | ".join(f"{peak(one):.0f}" for one in capped)
        same = all(one["answers"] == free["answers"] and not one["error"] for one in capped)
        rows.append(f"| `{recipe}` | {ENGINES[engine]} | {peaks} | {'yes' if same else '**no**'} |")
    return "\n".join(rows) + "\n"


def heading(run: dict[str, Any]) -> str:
    counted = "process (`ulimit -v`)" if run["together_mb"] is None else "process and child (cgroup)"
    return f"{run['cap_mb']} MiB, {counted}"


def peak(run: dict[str, Any]) -> float:
    """In MiB, of what the cap counts."""
    return float(run["peak_rss_mb"] if run["together_mb"] is None else run["together_mb"])


def page() -> str:
    return f"""<!-- Generated whole from the profiles: python tests/support/boards_table.py -->
# List of boards

**No board was used to make edgekit.** [Boards](boards.md) says what these tables rest on.

- *estimate*: the [grade](boards.md#how-long-it-will-take) of a latency with the board's TFLite engine. \
`refused`: not enough is known.
- *emulated*: CI installs wheel and bundle on that system under QEMU and replays the golden examples, on this or \
another processor.

## Boards

{table()}
## Systems

What installs follows from the system's Python, glibc and processor, and from the published wheels.

{systems()}
## Memory

Peak in MiB of bundles of the demo's network under caps that the kernel enforces, on x86-64
(`benchmarks/runtime/memory_cap.py`).

{memory()}"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
