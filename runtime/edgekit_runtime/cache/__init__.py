"""Cached answers: exact ones, similar ones, and requests in flight. See `tiered.Cache`."""
