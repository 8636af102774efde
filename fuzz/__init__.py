"""Fuzzing of everything that reads what nobody vouches for: see README.md here."""
