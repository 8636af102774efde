"""Answers kept: what a request is (`identify`), the exact tier in memory, and requests in flight that can be joined."""

from __future__ import annotations

from edgekit_runtime.cache.flight import Flights
from edgekit_runtime.cache.identity import Identity, identify
from edgekit_runtime.cache.memory import MISS, CacheStats, MemoryCache, Miss

__all__ = ["MISS", "CacheStats", "Flights", "Identity", "MemoryCache", "Miss", "identify"]
