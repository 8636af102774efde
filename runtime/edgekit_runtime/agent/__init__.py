"""The board's half of a roll-out: an order over MQTT, an install, a report back.

order (ek/v1/ID/cmd, retained) -> agent -> edgekit_runtime.install -> report (ek/v1/ID/rep, retained)
"""
