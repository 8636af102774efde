"""The host owner's page names what the server has."""

from __future__ import annotations

from pathlib import Path

from edgekit.cli.host import serve
from edgekit.host.admission import MAX_WAITING
from edgekit.host.api import LONG_JSON
from edgekit.host.http1 import HttpLimits, Patience
from edgekit.host.models import MAX_ANSWER, MAX_ITEMS
from edgekit_runtime.system.strict_json import MOST_VALUES

PAGE = (Path(__file__).parents[2] / "docs" / "host-owner.md").read_text(encoding="utf-8")


def test_every_option_is_there():
    options = [max(option.opts, key=len) for option in serve.params if option.opts[0].startswith("-")]
    assert [option for option in options if f"`{option}`" not in PAGE] == []


def test_the_limits_are_those_of_the_code():
    limits, patience = HttpLimits(), Patience()
    for row in (
        f"| one body | {limits.body_bytes // 2**20} MiB; JSON without binary tensors "
        f"{limits.json_bytes // 2**20} MiB |",
        f"| values in one JSON, in or out | {MOST_VALUES:,} lists, objects and numbers;",
        f"| JSON above {LONG_JSON // 2**10} KiB | parsed one body at a time,",
        f"| one answer's tensors | {MAX_ANSWER // 2**20} MiB |",
        f"| all bodies and answers in progress | {limits.bodies_bytes // 2**20} MiB |",
        f"| headers | {limits.headers}, and {limits.head_bytes // 2**10} KiB in total |",
        f"| connections | {limits.connections}; {limits.half_open_a_peer} half-open per address.",
        f"| items waiting for one model | {MAX_WAITING:,} |",
        f"| time to receive headers, body | {patience.head:g} s, {patience.body:g} s |",
        f"| an idle connection | {patience.idle:g} s |",
        f"| a client that does not read its answer | {patience.writing:g} s |",
        f"A request may have up to {MAX_ITEMS} items,",
    ):
        assert row in PAGE, row
