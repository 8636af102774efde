"""What a board reports of its own work; without `telemetry=` only the meter runs.

meter -> one window a minute -> spool (SQLite) -> MQTT -> ... the ingestor's acknowledgement -> the spool forgets
"""
