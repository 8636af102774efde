"""A dashboard for Grafana, made from a table.

python -m edgekit.fleet.grafana > edgekit/fleet/grafana.json
"""

from __future__ import annotations

import json
from typing import Any

_PICK = 'model=~"$model",version=~"$version",profile=~"$profile"'
_BY = "by (model, version, profile)"
_NAMES = "{{model}} {{version}} {{profile}}"
_TOTAL = f"sum {_BY} (rate(edgekit_fleet_answers_total{{{_PICK}}}[$__rate_interval]))"


def _ratio(name: str) -> str:
    return f"sum {_BY} (rate(edgekit_fleet_{name}_total{{{_PICK}}}[$__rate_interval])) / {_TOTAL}"


def _quantile(q: float) -> str:
    buckets = f"rate(edgekit_fleet_latency_seconds_bucket{{{_PICK}}}[$__rate_interval])"
    return f"histogram_quantile({q}, sum by (le, model, version, profile) ({buckets}))"


def _gauge(name: str) -> str:
    """Without the labels that Prometheus adds, so it can stand beside other series."""
    return f"max {_BY} (edgekit_fleet_{name}{{{_PICK}}})"


_BOARDS = f"edgekit_fleet_devices{{{_PICK}"
_REFUSED = "rate(edgekit_fleet_payloads_refused_total[$__rate_interval])"
_PANELS = (
    ("Boards by state", "none", f"sum by (state) ({_BOARDS}}})", "{{state}}"),
    ("Boards by version", "none", f'sum by (model, version) ({_BOARDS},state=~"online|offline"}})',
     "{{model}} {{version}}"),
    ("p99", "s", _quantile(0.99), _NAMES),
    ("p99, times the budget", "none", f"{_quantile(0.99)} / {_gauge('budget_seconds')}", _NAMES),
    ("p50", "s", _quantile(0.5), _NAMES),
    ("Answers a second", "reqps", _TOTAL, _NAMES),
    ("Over budget", "percentunit", _ratio("over_budget"), _NAMES),
    ("Errors", "percentunit", _ratio("errors"), _NAMES),
    ("Drift: median PSI of the boards", "none", _gauge("drift_psi"), _NAMES),
    ("Answers from a host", "percentunit", _ratio("host_answers"), _NAMES),
    ("Answers from the cache", "percentunit", _ratio("cache_hits"), _NAMES),
    ("Payloads refused", "cps", f"sum by (reason) ({_REFUSED})", "{{reason}}"),
    ("Age of the newest stored window", "s", "edgekit_fleet_ingest_lag_seconds", "age"),
    ("Ingestor's share of a core", "percentunit", "edgekit_fleet_ingest_busy_ratio", "busy"),
    ("Windows that wait on boards", "none", "edgekit_fleet_windows_waiting", "windows"),
    ("Windows that boards gave up", "none", "edgekit_fleet_windows_lost", "windows"),
    ("Connection to the broker", "bool", "edgekit_fleet_broker_connected", "connected"),
)  # fmt: skip
"""title, unit, query, legend"""


def dashboard() -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    panels = [
        {
            "id": i + 1, "type": "timeseries", "title": title, "datasource": source,
            "gridPos": {"x": 12 * (i % 2), "y": 8 * (i // 2), "w": 12, "h": 8},
            "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
            "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
            "targets": [{"refId": "A", "datasource": source, "expr": query, "legendFormat": legend}],
        }
        for i, (title, unit, query, legend) in enumerate(_PANELS)
    ]  # fmt: skip
    variables = [{"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}] + [
        {
            "name": name, "type": "query", "datasource": source, "multi": True, "includeAll": True, "allValue": ".*",
            "current": {"text": "All", "value": "$__all"}, "refresh": 2,
            "query": {"query": f"label_values(edgekit_fleet_answers_total, {name})", "refId": name},
        }
        for name in ("model", "version", "profile")
    ]  # fmt: skip
    return {
        "title": "edgekit fleet", "uid": "edgekit-fleet", "schemaVersion": 39, "version": 1, "tags": ["edgekit"],
        "time": {"from": "now-24h", "to": "now"}, "refresh": "1m", "timezone": "browser",
        "templating": {"list": variables}, "panels": panels,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
