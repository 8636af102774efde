"""How hypothesis tries examples: everywhere the same rules, in CI too.

Where the runtime's suite runs again, on another Python or another engine, EDGEKIT_TEST_EXAMPLES says which share of
them is enough: what the examples search is the same code, and what differs there differs for most of them.

Rules:
- Each run tries other examples; hypothesis' own profile for CI tries the same ones each time. A failure prints the line
  (`@reproduce_failure`) that repeats it.
- No test fails because one example took long: other processes take their share of the machine.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

SHARE = float(os.environ.get("EDGEKIT_TEST_EXAMPLES", "1"))


def examples(all_of_them: int) -> int:
    """Of so many, at least ten."""
    return max(10, round(all_of_them * SHARE))


def load_profile() -> None:
    settings.register_profile(
        "edgekit", max_examples=examples(100), deadline=None, derandomize=False, print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    settings.load_profile("edgekit")
