"""What boards reported, in SQLite or PostgreSQL: windows, events, boards and roll-ups."""
