"""What models have done, for Prometheus.
The page as text, and the page over HTTP on loopback.
"""

from __future__ import annotations

from edgekit_runtime.metrics.page import (
    CONTENT_TYPE,
    CacheFigures,
    MetricsServer,
    ModelMetrics,
    family_text,
    histogram_text,
    metrics_text,
    serve_metrics,
)

__all__ = [
    "CONTENT_TYPE",
    "CacheFigures",
    "MetricsServer",
    "ModelMetrics",
    "family_text",
    "histogram_text",
    "metrics_text",
    "serve_metrics",
]
