"""A list's address holds its filters, order and page, and nothing else does.

asked = ListQuery.read({"state": "late", "sort": "-p99", "page": "2"})
asked.query                 # Query(state="late", sort="p99", descending=True, offset=100)
asked.link(state="hot")     # "?state=hot&sort=-p99": another filter begins at page 1
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlencode

from edgekit.fleet.store.records import GROUPS, SORTS, STATES, GroupBy, Query

PAGE = 100
DIGITS = "[0-9]{1,15}"
_MOST_TEXT = 100
_HOUR_MS = 3600 * 1000
RANGES = {"1h": _HOUR_MS, "6h": 6 * _HOUR_MS, "1d": 24 * _HOUR_MS, "7d": 168 * _HOUR_MS, "14d": 336 * _HOUR_MS}
_EXACT = ("site", "group", "model", "version", "profile")
_WORDS = ("id", *_EXACT)
_ORDER = ("q", "state", *_EXACT, "by", "sort", "page")


@dataclass(frozen=True)
class ListQuery:
    """given: the valid parameters by name.
    by: how boards are grouped, or None for a list."""

    given: Mapping[str, str]
    page: int
    by: GroupBy | None

    @classmethod
    def read(cls, params: Mapping[str, str]) -> ListQuery:
        """Invalid parameters are dropped."""
        given = {name: params[name][:_MOST_TEXT] for name in _EXACT if name in params}
        if text := params.get("q", "")[:_MOST_TEXT]:
            given["q"] = text
        if (state := params.get("state", "")) in STATES:
            given["state"] = state
        if params.get("sort", "").removeprefix("-") in SORTS:
            given["sort"] = params["sort"]
        by = params.get("by") if params.get("by") in GROUPS else None
        page = max(1, whole_number(params.get("page", ""), 1))
        return cls(given, page, cast("GroupBy | None", by))

    @property
    def query(self) -> Query:
        sort = self.given.get("sort", "id")
        exact: dict[str, Any] = {name: self.given.get(name) for name in _EXACT}
        return Query(
            text=self.given.get("q", ""), state=self.given.get("state", ""), **exact, sort=sort.removeprefix("-"),
            descending=sort.startswith("-"), offset=(self.page - 1) * PAGE, limit=PAGE,
        )  # fmt: skip

    @property
    def narrowed(self) -> bool:
        """Whether it filters boards."""
        return any(name != "sort" for name in self.given)

    @property
    def exact(self) -> dict[str, str]:
        """Filters set by links, without a field in the form."""
        return {name: self.given[name] for name in _EXACT if name in self.given}

    def link(self, **changes: str | int | None) -> str:
        """This list's address with other parameters, from its first page. None drops one."""
        parts: dict[str, str | int | None] = {**self.given, "by": self.by, **changes}
        if parts.get("page") == 1:
            parts["page"] = None
        kept = {
            name: value for name in _ORDER if (value := parts.get(name)) is not None and (value != "" or name in _EXACT)
        }
        return "?" + urlencode(kept)

    def sorted_by(self, column: str) -> str:
        """The list's address sorted by this column: numbers descending, a second click reverses."""
        now = self.given.get("sort", "id")
        first, second = (column, f"-{column}") if column in _WORDS else (f"-{column}", column)
        return self.link(sort=second if now == first else first)

    def direction(self, column: str) -> str:
        """The value of aria-sort."""
        now = self.given.get("sort", "id")
        return "none" if now.removeprefix("-") != column else "descending" if now.startswith("-") else "ascending"


def whole_number(text: str, otherwise: int) -> int:
    """At most 15 digits, which every database's integers hold."""
    return int(text) if re.fullmatch(DIGITS, text) else otherwise


def range_of(params: Mapping[str, str]) -> str:
    """One of RANGES; a day by default."""
    wanted = params.get("range", "1d")
    return wanted if wanted in RANGES else "1d"
