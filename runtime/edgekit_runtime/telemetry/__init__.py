"""What a board reports of its own work.
Counted by the meter, cut into windows, spooled, and sent where its owner said.

meter -> one window a minute -> spool (SQLite) -> MQTT -> ... the ingestor's acknowledgement -> the spool forgets

Without `telemetry=` nothing but the meter runs, and nothing leaves the board.
"""
