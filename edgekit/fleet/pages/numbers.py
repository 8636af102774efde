"""Whole numbers in an address: at most 15 digits, which every database's integers hold.

Route(f"/rollouts/{ROW}", ...)                             # `number`; more digits: there is no such page
whole_number(request.query_params.get("before", ""), 0)     # more digits: as if it were left out
"""

from __future__ import annotations

import re

from starlette.convertors import IntegerConvertor, register_url_convertor  # noqa: TID253

ROW = "{number:row}"
_DIGITS = "[0-9]{1,15}"


class _Row(IntegerConvertor):
    regex = _DIGITS


register_url_convertor("row", _Row())


def whole_number(text: str, otherwise: int) -> int:
    return int(text) if re.fullmatch(_DIGITS, text) else otherwise
