"""The board's half of a roll-out: an order over MQTT, an install, a report back.

order (ek/v1/ID/cmd, retained) -> agent -> edgekit_runtime.install -> report (ek/v1/ID/rep, retained)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit_runtime.lazy import lazily

if TYPE_CHECKING:
    from edgekit_runtime.agent.loop import Agent, AgentOptions
    from edgekit_runtime.agent.wire import FINAL, Former, Order, OrderReport, Phase, parse_order, parse_report

__all__ = ["FINAL", "Agent", "AgentOptions", "Former", "Order", "OrderReport", "Phase", "parse_order", "parse_report"]

__getattr__ = lazily(
    __name__,
    {
        "edgekit_runtime.agent.loop": ("Agent", "AgentOptions"),
        "edgekit_runtime.agent.wire": (
            "FINAL",
            "Former",
            "Order",
            "Phase",
            "OrderReport",
            "parse_order",
            "parse_report",
        ),
    },
)
