"""Answers kept, so that what was computed once need not be computed again.

What a request is (`identify`); exact answers in memory and on disk; answers of requests that look alike (`Similar`) or
mean the same (`Semantic`); requests in flight that can be joined (`Flights`); whether looking up pays (`Worth`). The
journey talks to one object, `Cache`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit_runtime.lazy import lazily

if TYPE_CHECKING:
    from edgekit_runtime.cache.disk import DiskCache, DiskStats
    from edgekit_runtime.cache.identity import Flights, Identity, identify, namespace, of_artifact
    from edgekit_runtime.cache.kept import KeptForm
    from edgekit_runtime.cache.memory import MISS, MemoryCache, MemoryStats, Miss
    from edgekit_runtime.cache.shared import SharedCache, SharedStats
    from edgekit_runtime.cache.similar import Semantic, Similar, SimilarHit
    from edgekit_runtime.cache.tiered import Cache, CacheStats, Hit, Look, SimilarStats, Worth, WorthStats

__all__ = [
    "MISS",
    "Cache",
    "CacheStats",
    "DiskCache",
    "DiskStats",
    "Flights",
    "Hit",
    "Identity",
    "KeptForm",
    "Look",
    "MemoryCache",
    "MemoryStats",
    "Miss",
    "Semantic",
    "SharedCache",
    "SharedStats",
    "Similar",
    "SimilarHit",
    "SimilarStats",
    "Worth",
    "WorthStats",
    "identify",
    "namespace",
    "of_artifact",
]

__getattr__ = lazily(
    __name__,
    {
        "edgekit_runtime.cache.disk": (
            "DiskCache",
            "DiskStats",
        ),
        "edgekit_runtime.cache.identity": (
            "Flights",
            "Identity",
            "identify",
            "namespace",
            "of_artifact",
        ),
        "edgekit_runtime.cache.kept": ("KeptForm",),
        "edgekit_runtime.cache.memory": (
            "MISS",
            "MemoryCache",
            "MemoryStats",
            "Miss",
        ),
        "edgekit_runtime.cache.shared": (
            "SharedCache",
            "SharedStats",
        ),
        "edgekit_runtime.cache.similar": (
            "Semantic",
            "Similar",
            "SimilarHit",
        ),
        "edgekit_runtime.cache.tiered": (
            "Cache",
            "CacheStats",
            "Hit",
            "Look",
            "SimilarStats",
            "Worth",
            "WorthStats",
        ),
    },
)
