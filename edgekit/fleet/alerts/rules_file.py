"""The rules of alerts in a TOML file; without a file every rule has its usual bounds.

rules = read_rules(Path("alerts.toml"))

off = ["throttling"]            # disabled kinds
webhooks = ["https://chat.example/hook"]
topic = "ek/alerts"             # published there, too

[p99]
over = 2.0                      # times the budget, in two windows of 5 minutes running
clear = 1.5
least = 100                     # answers in a window

[bounds]
errors = 0.05                   # shares of the requests
refusals = 0.05
late = 0.05                     # of the answers
fallback = 0.05
drift = 0.2
offline_s = 300
flaps = 4                       # times that a board went offline within an hour
lag_s = 3600

[site]
many = 3                        # from so many boards of a site on, and from this share, they are one alert
share = 0.2
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from edgekit.fleet.store.fleet_errors import FleetError
from edgekit_profiles.schema import Table, parse_toml
from edgekit_runtime.system.files import read_regular

KINDS = (
    "p99", "errors", "refusals", "late", "fallback", "drift", "offline", "flapping", "lag", "throttling", "failing",
    "loss", "rollout", "server",
)  # fmt: skip
_MOST_BYTES = 1 << 20
_MANY = 100_000_000
_NUMBERS = (
    ("p99", "over", "p99_over", 0, _MANY), ("p99", "clear", "p99_clear", 0, _MANY), ("p99", "least", "least", 1, _MANY),
    ("bounds", "errors", "errors_over", 0, 1), ("bounds", "refusals", "refusals_over", 0, 1),
    ("bounds", "late", "late_over", 0, 1), ("bounds", "flaps", "flaps", 1, _MANY),
    ("bounds", "fallback", "fallback_over", 0, 1), ("bounds", "drift", "drift_over", 0, 100),
    ("bounds", "offline_s", "offline_s", 1, _MANY), ("bounds", "lag_s", "lag_s", 1, _MANY),
    ("site", "many", "many", 1, _MANY), ("site", "share", "share", 0, 1),
)  # fmt: skip
"""table, key, field of Rules, least, most"""
_TOPIC = re.compile(r"[^$+#\x00][^+#\x00]{0,199}\Z")


@dataclass(frozen=True)
class Rules:
    """p99_over, p99_clear: times the budget.
    least: answers of a window.
    windows: running. *_over: shares, or the PSI.

    offline_s: how long a board is gone. flaps: how often within an hour. lag_s: how old its oldest report.
    many, share: of a site's boards, from which they form one finding.
    off: disabled kinds.
    webhooks: URLs. topic: of MQTT, empty for none.
    """

    p99_over: float = 2.0
    p99_clear: float = 1.5
    least: int = 100
    windows: int = 2
    errors_over: float = 0.05
    refusals_over: float = 0.05
    late_over: float = 0.05
    fallback_over: float = 0.05
    drift_over: float = 0.2
    offline_s: float = 300.0
    flaps: int = 4
    lag_s: float = 3600.0
    many: int = 3
    share: float = 0.2
    off: tuple[str, ...] = ()
    webhooks: tuple[str, ...] = ()
    topic: str = ""


def read_rules(path: Path) -> Rules:
    """Raises FleetError with every mistake in the file."""
    try:
        top = Table(parse_toml(read_regular(path, _MOST_BYTES).decode("utf-8")), str(path), mistake=_mistake)
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise FleetError(f"cannot read the rules: {why}", where=str(path), do="Check the file") from error
    tables = {name: top.table(name, {}) for name in ("p99", "bounds", "site")}
    numbers: dict[str, Any] = {}
    for name, key, field_name, least, most in _NUMBERS:
        table, usual = tables[name], getattr(Rules, field_name)
        value = usual
        if table.has(key):
            value = table.integer(key) if isinstance(usual, int) else table.real(key, usual)
        if not least <= value <= most:
            table.wrong(key, f"is {value:g}", f"Write a number from {least} to {most:,}")
        numbers[field_name] = value
    rules = Rules(**numbers, off=top.texts("off", ()), webhooks=top.texts("webhooks", ()), topic=top.text("topic", ""))
    for kind in rules.off:
        if kind not in KINDS:
            top.wrong("off", f"names an unknown kind of alert, '{kind}'", f"Known: {', '.join(KINDS)}")
    if not 1.0 <= rules.p99_clear <= rules.p99_over:
        tables["p99"].wrong("clear", "is not between 1 and 'over'", "Write a number from 1 to that of over")
    for url in rules.webhooks:
        if not _is_webhook(url):
            top.wrong("webhooks", "has an entry that is not an http or https URL", "Write https://...")
    if rules.topic and not _TOPIC.match(rules.topic):
        top.wrong("topic", "is not a topic name", "Write it like ek/alerts: without +, # or $, at most 200 characters")
    for table in (top, *tables.values()):
        table.done()
    top.refuse()
    return rules


def _is_webhook(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def _mistake(file: str, path: str, key: str, what: str, do: str) -> FleetError:
    dotted = f"{path}.{key}" if path else key
    return FleetError(f"'{dotted}' {what}", where=file, do=do)
