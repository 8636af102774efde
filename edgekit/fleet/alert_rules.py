"""The rules of alerts in a TOML file; without a file every rule has its usual bounds.

rules = read_rules(Path("alerts.toml"))

off = ["throttling"]            # kinds that are not looked at
webhooks = ["https://chat.example/hook"]
topic = "ek/alerts"             # published there, too

[p99]
over = 2.0                      # times the budget, in two windows of 5 minutes running
clear = 1.5
least = 100                     # answers in a window

[bounds]
errors = 0.05                   # shares of the requests
refusals = 0.05
fallback = 0.05
drift = 0.2
offline_s = 300
lag_s = 3600

[site]
many = 3                        # from so many boards of a site on, and from this share, they are one alert
share = 0.2
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from edgekit.fleet.alerts import KINDS, Boards, Rules
from edgekit.fleet.errors import FleetError
from edgekit_profiles.schema import Table, parse_toml
from edgekit_runtime.whole_file import read_regular

_MOST_BYTES = 1 << 20
_MANY = 100_000_000
_TOPIC = re.compile(r"[^$+#\x00][^+#\x00]{0,199}\Z")


def read_rules(path: Path) -> Rules:
    """Raises FleetError, with every mistake of the file."""
    try:
        top = Table(parse_toml(read_regular(path, _MOST_BYTES).decode("utf-8")), str(path), mistake=_mistake)
    except (OSError, ValueError, RecursionError) as error:
        raise FleetError(f"the rules cannot be read ({error})", where=str(path), do="Check the file") from error
    usual = Rules()
    p99, bounds, site = (top.table(name, {}) for name in ("p99", "bounds", "site"))
    rules = replace(
        usual,
        off=top.texts("off", ()),
        webhooks=top.texts("webhooks", ()),
        topic=top.text("topic", ""),
        p99_over=p99.real("over", usual.p99_over),
        p99_clear=p99.real("clear", usual.p99_clear),
        least=p99.integer("least") if p99.has("least") else usual.least,
        errors_over=bounds.real("errors", usual.errors_over),
        refusals_over=bounds.real("refusals", usual.refusals_over),
        fallback_over=bounds.real("fallback", usual.fallback_over),
        drift_over=bounds.real("drift", usual.drift_over),
        offline_s=bounds.real("offline_s", usual.offline_s),
        lag_s=bounds.real("lag_s", usual.lag_s),
        boards=Boards(
            site.integer("many") if site.has("many") else usual.boards.many, site.real("share", usual.boards.share)
        ),
    )
    for kind in rules.off:
        if kind not in KINDS:
            top.wrong("off", f"names '{kind}', which is no kind of alert", f"Known: {', '.join(KINDS)}")
    if not 1.0 <= rules.p99_clear <= rules.p99_over:
        p99.wrong("clear", "is not between 1 and 'over'", "Write a smaller number than over = ...")
    for url in rules.webhooks:
        if not _is_webhook(url):
            top.wrong("webhooks", "names what is no http or https URL", "Write https://...")
    if rules.topic and not _TOPIC.match(rules.topic):
        top.wrong("topic", "is no topic to publish to", "Write it as ek/alerts: no +, # or $, at most 200 characters")
    for table, key, value, least, most in (
        (p99, "least", rules.least, 1, _MANY),
        (bounds, "errors", rules.errors_over, 0, 1),
        (bounds, "refusals", rules.refusals_over, 0, 1),
        (bounds, "fallback", rules.fallback_over, 0, 1),
        (bounds, "drift", rules.drift_over, 0, 100),
        (bounds, "offline_s", rules.offline_s, 1, _MANY),
        (bounds, "lag_s", rules.lag_s, 1, _MANY),
        (site, "many", rules.boards.many, 1, _MANY),
        (site, "share", rules.boards.share, 0, 1),
    ):
        if not least <= value <= most:
            table.wrong(key, f"is {value:g}", f"Write a number from {least} to {most:,}")
    for table in (top, p99, bounds, site):
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
