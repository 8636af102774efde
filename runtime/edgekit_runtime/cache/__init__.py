"""Answers kept, so that what was computed once need not be computed again.

What a request is (`identify`); exact answers in memory and on disk; answers of requests that look alike (`Similar`) or
mean the same (`Semantic`); requests in flight that can be joined (`Flights`); whether looking up pays (`Worth`). The
journey talks to one object, `Cache`.
"""
