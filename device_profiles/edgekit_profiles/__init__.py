"""Boards as data: one TOML a board, the loader that checks it, and the latency estimate."""
