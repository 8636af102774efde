"""A profile to begin with, for a board that has none: what was read on the board, and what stands for the rest.

Rules: it is a profile that `edgekit profiles validate` accepts as it is; what was read says so in its source, and what was
taken from another profile names it; what nobody can read from a file, the memory's bandwidth above all, is marked to look up.

    Path("my-board.toml").write_text(starting_toml(read_facts(), load("cortex-a72")))
"""

from __future__ import annotations

import json
import re

from edgekit_profiles.facts import Facts
from edgekit_profiles.profile import Profile

__all__ = ["starting_name", "starting_toml"]

_FALLBACK = ("aarch64", "3.11", "2.36")


def starting_name(facts: Facts) -> str:
    """What the file is to be called, without `.toml`."""
    return re.sub(r"[^a-z0-9]+", "-", facts.model.lower()).strip("-") or "my-board"


def starting_toml(facts: Facts, base: Profile | None) -> str:
    """base: the profile that stands for the board, None where none does."""
    read, other = "read on the board", f"as in the profile {base.name}" if base else "a placeholder: look it up"
    fast = facts.clusters[0] if facts.clusters else None
    base_core = base.core if base else None
    kind = fast.type if fast else base_core.type if base_core else "unknown"
    clock = fast.clock_ghz if fast and fast.clock_ghz else base_core.clock_ghz if base_core else 1.0
    count = fast.count if fast else base_core.count if base_core else 1
    ram = facts.ram_mb or (base.memory.ram_mb if base else 512)
    bandwidth = base.memory.bandwidth_gbps if base else None
    machine = facts.machine or (base.arch if base else _FALLBACK[0])
    python = ".".join(facts.python.split(".")[:2]) or (base.os.python if base else _FALLBACK[1])
    glibc = facts.glibc or (base.os.glibc if base else _FALLBACK[2])
    lines = [
        f"name = {_quoted(starting_name(facts))}            # the file must be called so, with .toml",
        f"title = {_quoted(facts.model or 'My board')}",
        f"arch = {_quoted(machine)}",
        f"soc = {_quoted(facts.compatible[-1] if facts.compatible else 'unknown')}",
        f"threads = {count}",
        "",
        "[core]",
        f"type = {_quoted(kind)}",
        f"count = {count}",
        f"clock_ghz = {clock:g}",
        *([f"simd = {json.dumps(list(facts.simd))}"] if facts.simd else []),
        "",
        "[memory]",
        f"ram_mb = {ram}",
        *(
            [f"bandwidth_gbps = {bandwidth:g}            # look it up: transfers a second times the bus's bytes"]
            if bandwidth
            else ["# bandwidth_gbps = 12.8          # look it up: without it no latency can be estimated"]
        ),
        "",
        "[os]",
        f"name = {_quoted(facts.system or 'Linux')}",
        f"python = {_quoted(python)}",
        f"glibc = {_quoted(glibc)}",
        *([f"debian = {_quoted(facts.codename)}"] if facts.codename in ("bullseye", "bookworm", "trixie") else []),
        "",
        *_marks(facts),
        "[sources]",
        f"core = {_quoted(read if fast and fast.clock_ghz else f'{read}; clock {other}')}",
        f'"memory.ram_mb" = {_quoted(read if facts.ram_mb else other)}',
        *([f'"memory.bandwidth_gbps" = {_quoted(other)}'] if bandwidth else []),
        f"os = {_quoted(read if facts.python and facts.glibc else other)}",
    ]
    return "\n".join(lines) + "\n"


def _marks(facts: Facts) -> list[str]:
    if not facts.model and not facts.compatible:
        return []
    marks = ["[detect]"]
    marks += [f"models = {json.dumps([facts.model])}"] if facts.model else []
    marks += [f"compatible = {json.dumps([facts.compatible[0]])}"] if facts.compatible else []
    return [*marks, ""]


def _quoted(text: str) -> str:
    """A TOML string: JSON's escapes are TOML's, once what is not plain is replaced."""
    return json.dumps(re.sub(r"[\x00-\x1f\x7f]", " ", text), ensure_ascii=False)
